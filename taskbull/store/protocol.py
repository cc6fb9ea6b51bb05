"""A command as bytes: packed by hiredis, except for long words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, cast

import hiredis
from hiredis import ProtocolError, Reader, ReplyError

from taskbull.errors import MaybeExecuted, TaskbullError
from taskbull.scripts.call import Word

# A command as bytes: packed by hiredis, except for long words.


_LONG = 1 << 14

# hiredis annotates it for one word only.
_pack = cast(Callable[[tuple[Word, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


def pack(words: tuple[Word, ...]) -> bytes:
    """Return the bytes of a command.

    Commands with a long word are joined here: hiredis takes 1.4 ms to copy a MB, and this 0.04.
    Long words stand at the end, and are bytes: the others are not looked at.
    """
    for word in reversed(words):
        if not isinstance(word, bytes):
            break
        if len(word) > _LONG:
            return _join(words)
    return _pack(words)


def _join(words: tuple[Word, ...]) -> bytes:
    pieces: list[bytes] = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        pieces += (b"$%d\r\n" % len(raw), raw, b"\r\n")
    return b"".join(pieces)


# A value that comes later, and those who wait for it: what asyncio and trio have alike.


class Recipient(Protocol):
    """Receives a value that comes later; one that is `done` does not want it any more."""

    def done(self) -> bool: ...
    def set_result(self, value: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Waiter(Recipient, Protocol):
    """A value that comes later, awaited by one task. A cancelled task leaves it `done`."""

    def __await__(self) -> Generator[Any, Any, Any]: ...
    def cancel(self) -> object: ...


# Commands out in order, replies back in order: the protocol of one connection, without IO.
#
# Its rules:
#
# - A command is *queued* until its bytes have been handed to a socket, and *sent* from then on.
# - Replies come in the order in which commands were sent; each goes to the waiter of its command.
# - If a caller leaves before its command was sent, the command is dropped. If it leaves later, the
#   reply is read and discarded.
# - When a connection dies, what was sent may have been executed: its callers are told so. What is
#   still queued goes out with the next connection.


Reply: TypeAlias = Any
"""What hiredis makes of a reply: bytes, int, None, a list of those, or a ReplyError."""

ASKING = pack(("ASKING",))
CHUNK = 1 << 18  # bytes handed to a socket at once; a larger command goes alone
LARGE = 1 << 16  # bytes that a slow network may need a while for

QUEUE_LIMIT = 1 << 24  # bytes that may wait to be sent before further callers wait for room


class Note:
    """What is special about a command, and whether it was sent; most need none."""

    __slots__ = ("asking", "sent")

    def __init__(self, *, asking: bool = False) -> None:
        self.asking = asking
        self.sent = False


class _Ignored:
    """The waiter of a reply that nobody waits for."""

    def done(self) -> bool:
        return True


_IGNORED: Any = _Ignored()


class Pipeline:
    """The commands that wait to be sent, and the callers that wait for replies."""

    def __init__(self) -> None:
        self.queued: deque[tuple[bytes, Recipient, Note | None]] = deque()
        self.room: deque[Waiter] = deque()  # callers that wait until the queue is shorter
        self.sent: deque[Recipient] = deque()
        self.full = False  # so much waits to be sent that a caller had better wait before more
        self.written = 0  # commands ever sent
        self.received = 0  # times that bytes came, be it half a reply
        self.on_bytes: Callable[[], None] | None = None  # called then
        self._large: deque[tuple[int, int]] = deque()  # large writes: the last command, the bytes
        self._queued_bytes = 0
        self._reader = Reader()

    @property
    def answered(self) -> int:
        """How many commands were ever answered."""
        return self.written - len(self.sent)

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for a command to be sent."""
        return any(not waiter.done() for _, waiter, _ in self.queued)

    def queue(self, command: bytes, waiter: Recipient, note: Note | None = None) -> None:
        """Queue a packed command."""
        self.queued.append((command, waiter, note))
        self._queued_bytes += len(command)
        if self._queued_bytes > QUEUE_LIMIT:
            self.full = True

    def take(self) -> bytes:
        """Return the bytes to send next, and expect their replies."""
        queued, sent = self.queued, self.sent
        out: list[bytes] = []
        size = 0
        before = len(sent)
        while queued and size < CHUNK:
            command, waiter, note = queued.popleft()
            size += len(command)
            if waiter.done():  # its caller was cancelled: nobody wants it any more
                continue
            if note is not None:
                note.sent = True
                if note.asking:  # in the same breath: it holds for the very next command only
                    out.append(ASKING)
                    sent.append(_IGNORED)
            out.append(command)
            sent.append(waiter)
        self.written += len(sent) - before
        if size >= LARGE:
            self._large.append((self.written, size))
        self._shorten(size)
        return b"".join(out)

    @property
    def under_way(self) -> int:
        """How many bytes of large commands have been sent and not yet answered."""
        answered = self.answered
        while self._large and self._large[0][0] <= answered:
            self._large.popleft()
        return sum(size for _, size in self._large)

    def succeed(self, former: Pipeline) -> None:
        """Take over what waits to be sent on the former pipeline."""
        self.queued, self.room, self.full = former.queued, former.room, former.full
        self._queued_bytes = former._queued_bytes
        former.queued, former.room = deque(), deque()

    def expect(self, waiter: Recipient) -> None:
        """Expect the reply of a command that was sent past the queue."""
        self.sent.append(waiter)
        self.written += 1

    def feed(self, data: bytes) -> None:
        """Hand the replies in `data` to their waiters.

        Raises `ProtocolError` if this is not the Redis protocol, or more replies than commands.
        """
        reader, sent = self._reader, self.sent
        self.received += 1
        if self.on_bytes is not None:
            self.on_bytes()
        reader.feed(data)
        gets = reader.gets
        try:
            while (reply := gets()) is not False:
                if not sent:
                    raise ProtocolError(f"a reply that no command asked for: {str(reply)[:80]}")
                waiter = sent.popleft()
                if not waiter.done():
                    waiter.set_result(reply)
        except MemoryError as error:
            raise ProtocolError("a reply that is too large for this machine's memory") from error

    def lose(self, reason: str) -> None:
        """Forget the connection: whatever was sent on it may or may not have been executed."""
        self._reader = Reader()
        self._large.clear()
        while self.sent:
            _fail(self.sent.popleft(), lambda: MaybeExecuted(f"{reason} before the reply came"))

    def refuse(self, make_error: Callable[[], TaskbullError]) -> None:
        """Fail what is queued: none of it was sent."""
        while self.queued:
            command, waiter, _ = self.queued.popleft()
            self._shorten(len(command))
            _fail(waiter, make_error)

    def _shorten(self, size: int) -> None:
        self._queued_bytes -= size
        if self.full and self._queued_bytes <= QUEUE_LIMIT:
            self.full = False
            while self.room:
                waiter = self.room.popleft()
                if not waiter.done():
                    waiter.set_result(None)


def _fail(waiter: Recipient, make_error: Callable[[], TaskbullError]) -> None:
    if not waiter.done():
        waiter.set_exception(make_error())  # one each: a shared one would collect tracebacks


__all__ = ["Note", "Pipeline", "ProtocolError", "Reply", "ReplyError", "Word", "pack"]

"""The Redis protocol of one connection, without I/O.

`pack` encodes commands, `Pipeline` matches replies to the callers that wait for them, and `Waiter`
is the part of a future that asyncio and trio have in common.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, cast

import hiredis
from hiredis import ProtocolError, Reader, ReplyError

from taskbull.errors import MaybeExecuted, TaskbullError
from taskbull.scripts.call import Word

# Encoding commands.


_LONG = 1 << 14

# hiredis annotates the function for one word only.
_pack = cast(Callable[[tuple[Word, ...]], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


def pack(words: tuple[Word, ...]) -> bytes:
    """Return the bytes of a command.

    hiredis takes 1.4 ms per MB, so commands with a long word are joined in Python, which takes
    0.04 ms. Only `bytes` words at the end are checked, because long words are always there.
    """
    for word in reversed(words):
        if not isinstance(word, bytes):
            break
        if len(word) > _LONG:
            return _join(words)
    return _pack(words)


def _join(words: tuple[Word, ...]) -> bytes:
    chunks: list[bytes] = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        chunks += (b"$%d\r\n" % len(raw), raw, b"\r\n")
    return b"".join(chunks)


# Futures: the part that asyncio and trio have in common.


class Recipient(Protocol):
    """ChildResultReader of a later value. Once it is `done`, it must not be given one."""

    def done(self) -> bool: ...
    def set_result(self, value: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Waiter(Recipient, Protocol):
    """A later value that one task awaits. It is also `done` if the task was cancelled."""

    def __await__(self) -> Generator[Any, Any, Any]: ...
    def cancel(self) -> object: ...


# Pipelining: commands go out in order, and replies come back in the same order.
#
# - A command is *queued* until its bytes are handed to a socket. From then on it is *sent*.
# - Each reply goes to the waiter of the oldest unanswered command.
# - If a caller is cancelled or times out before its command was sent, the command is dropped. If
#   that happens later, the reply is read and discarded.
# - When a connection dies, commands that were sent may have been executed, so their callers get
#   `MaybeExecuted`. Queued commands are sent on the next connection.


Reply: TypeAlias = Any
"""A reply as hiredis decodes it: bytes, int, None, a list of those, or a `ReplyError`."""

ASKING = pack(("ASKING",))
CHUNK = 1 << 18  # bytes per write; the last command may exceed it
LARGE = 1 << 16  # bytes that a slow network may take a while to transfer

QUEUE_LIMIT = 1 << 24  # queued bytes above which new callers wait for room


class Note:
    """Options and state of a queued command. Most commands need no note."""

    __slots__ = ("asking", "sent")

    def __init__(self, *, asking: bool = False) -> None:
        self.asking = asking
        self.sent = False


class _Ignored:
    """Waiter for a reply that no caller needs."""

    def done(self) -> bool:
        return True


_IGNORED: Any = _Ignored()


class Pipeline:
    """Queued commands, and the callers that wait for replies."""

    def __init__(self) -> None:
        self.queued: deque[tuple[bytes, Recipient, Note | None]] = deque()
        self.room: deque[Waiter] = deque()  # callers that wait while the queue is full
        self.sent: deque[Recipient] = deque()
        self.full = False  # True while new callers should wait for room
        self.written = 0  # number of commands sent so far
        self.received = 0  # number of times that bytes arrived, even part of a reply
        self.on_bytes: Callable[[], None] | None = None  # called when bytes arrive
        self._large: deque[tuple[int, int]] = deque()  # large writes: last command, bytes
        self._queued_bytes = 0
        self._reader = Reader()

    @property
    def answered(self) -> int:
        """Number of commands answered so far."""
        return self.written - len(self.sent)

    @property
    def wanted(self) -> bool:
        """True if a caller still waits for a queued command."""
        return any(not waiter.done() for _, waiter, _ in self.queued)

    def queue(self, command: bytes, waiter: Recipient, note: Note | None = None) -> None:
        """Queue a packed command. Its reply goes to `waiter`."""
        self.queued.append((command, waiter, note))
        self._queued_bytes += len(command)
        if self._queued_bytes > QUEUE_LIMIT:
            self.full = True

    def take(self) -> bytes:
        """Return the bytes to send next, and expect the replies.

        Drops commands whose callers were cancelled or timed out.
        """
        queued, sent = self.queued, self.sent
        out: list[bytes] = []
        size = 0
        before = len(sent)
        while queued and size < CHUNK:
            command, waiter, note = queued.popleft()
            size += len(command)
            if waiter.done():  # its caller was cancelled or timed out
                continue
            if note is not None:
                note.sent = True
                if note.asking:  # ASKING applies to the next command only
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
        """Bytes of large writes that are sent but not yet answered."""
        answered = self.answered
        while self._large and self._large[0][0] <= answered:
            self._large.popleft()
        return sum(size for _, size in self._large)

    def succeed(self, former: Pipeline) -> None:
        """Take over the queued commands of the former pipeline."""
        self.queued, self.room, self.full = former.queued, former.room, former.full
        self._queued_bytes = former._queued_bytes
        former.queued, former.room = deque(), deque()

    def expect(self, waiter: Recipient) -> None:
        """Expect a reply to a command that bypassed the queue."""
        self.sent.append(waiter)
        self.written += 1

    def feed(self, data: bytes) -> None:
        """Hand the replies in `data` to their waiters.

        Raises `ProtocolError` if the data is not valid, if a reply has no command, or if a reply
        does not fit into memory.
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
        """Fail all sent commands with `MaybeExecuted`: the connection is lost."""
        self._reader = Reader()
        self._large.clear()
        while self.sent:
            _fail(self.sent.popleft(), lambda: MaybeExecuted(f"{reason} before the reply came"))

    def refuse(self, make_error: Callable[[], TaskbullError]) -> None:
        """Fail all queued commands, which were not sent."""
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
        waiter.set_exception(make_error())  # a shared exception would collect tracebacks


__all__ = ["Note", "Pipeline", "ProtocolError", "Reply", "ReplyError", "Word", "pack"]

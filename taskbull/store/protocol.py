"""The Redis protocol, sockets, and the parts of running a call that both stores share."""

from __future__ import annotations

import os
import re
import select
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import Enum, auto
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import hiredis
from hiredis import ProtocolError, Reader, ReplyError
from msgspec import MsgspecError, Struct

from taskbull.core.validation import shown
from taskbull.errors import (
    ConnectionLost,
    InvalidReply,
    MaybeExecuted,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.scripts.call import ONE_CALL, AnyRequest, AnySteps, Request, Word
from taskbull.scripts.call import info as read_info
from taskbull.store.address import Endpoint
from taskbull.store.credentials import Credentials

__all__ = ["Note", "Pipeline", "ProtocolError", "Reply", "ReplyError", "Word", "pack"]


# The Redis protocol of one connection, without I/O.
#
# `pack` encodes commands, `Pipeline` matches replies to the callers that wait for them, and
# `Waiter` is the part of a future that asyncio and trio have in common.


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
    def in_flight(self) -> int:
        """Bytes of large writes that are sent but not yet answered."""
        answered = self.answered
        while self._large and self._large[0][0] <= answered:
            self._large.popleft()
        return sum(size for _, size in self._large)

    def succeed(self, previous: Pipeline) -> None:
        """Take over the queued commands of the previous pipeline."""
        self.queued, self.room, self.full = previous.queued, previous.room, previous.full
        self._queued_bytes = previous._queued_bytes
        previous.queued, previous.room = deque(), deque()

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


# The parts of running a call that both stores share, without I/O.
#
# `Deadline` limits a call, and `Drive` runs an operation of several calls. `read_refusal`
# interprets an error reply, and `redeliver` decides what follows it.


# Deadlines.


class Deadline:
    """Time limit shared by all attempts of a call. `None` disables it.

    It counts from now, or from `since`.
    """

    __slots__ = ("_end", "clock", "seconds")

    def __init__(
        self, seconds: float | None, clock: Callable[[], float], since: float | None = None
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        self._end = inf if seconds is None else (clock() if since is None else since) + seconds

    @property
    def left(self) -> float:
        """Seconds left: negative after the deadline, and `inf` without one."""
        return self._end - self.clock()

    @property
    def timeout(self) -> float | None:
        """Seconds left as a timeout: None without a deadline, and never negative."""
        return None if self._end == inf else max(0.0, self._end - self.clock())

    @property
    def last_answer(self) -> float:
        """Seconds reserved for a reply. With fewer left, a call is not resent."""
        return 0.0 if self.seconds is None else min(1.0, self.seconds / 3)

    def too_late_after(self, failed: TaskbullError) -> bool:
        """Return True if it is too late to resend a call that failed with this error.

        After `ConnectionLost`, the call was not executed. It is resent only if there is time for a
        reply, because a lost reply would make that uncertain. After other errors the outcome is
        uncertain already, so any time left is enough.
        """
        return self.left <= (self.last_answer if isinstance(failed, ConnectionLost) else 0)

    def __str__(self) -> str:
        return "" if self.seconds is None else f" within {self.seconds:.3g} s"


# Driving an operation of several calls.
#
#     drive = Drive(steps, deadline)
#     while drive.asks:
#         with drive:
#             drive.answer = await self.run_within(drive.request(), drive.deadline)
#     return drive.result
#
# The error of a request is raised inside the operation, which may handle it.


T = TypeVar("T")

_GRACE = 1.0
"""Maximum seconds to wait for the reply of an operation that is given up."""


class Drive(Generic[T]):
    """An operation in progress: the request to serve next, and finally the result."""

    result: T
    _request: AnyRequest

    def __init__(self, steps: AnySteps[T], deadline: Deadline, *, renew: bool = True) -> None:
        """Advance to the first request. With `renew`, the deadline restarts after each result."""
        self.asks = True
        self.answer: Any = None
        self.deadline = deadline
        self._steps = steps
        self._renew = renew
        self._failed: TaskbullError | None = None
        self._go_on(partial(next, steps))

    def request(self) -> Any:
        """Return the request to serve next.

        Raises `ConnectionLost` if it is a call, the last call failed, and it is too late to try
        again.
        """
        request, failed = self._request, self._failed
        if failed and isinstance(request, ONE_CALL) and self.deadline.too_late_after(failed):
            raise ConnectionLost(str(failed)) from failed
        return request

    def fail(self, failed: Exception) -> None:
        """Raise the error of a failed request inside the operation, and advance to the next one."""
        self._failed = failed if isinstance(failed, TaskbullError) else None
        self._go_on(partial(self._steps.throw, failed))

    def close(self) -> None:
        """Abandon the operation."""
        self.asks = False
        self._steps.close()

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None:
            self._failed = None
            if self._renew:
                self.deadline = Deadline(self.deadline.seconds, monotonic)
            self._go_on(partial(self._steps.send, self.answer))
        elif isinstance(error, Exception):
            self.fail(error)
        else:
            self.close()
            return False
        return True

    def _go_on(self, step: Callable[[], AnyRequest]) -> None:
        try:
            self._request = step()
        except StopIteration as end:
            self.asks = False
            self.result = end.value


def time_to_finish(timeout: float | None, *, given_up: bool) -> tuple[Deadline, Deadline]:
    """Return the deadlines for a call in flight, and for the calls after it."""
    if not given_up:
        deadline = Deadline(timeout, monotonic)
        return deadline, deadline
    return Deadline(min(_GRACE, (timeout or 3 * _GRACE) / 3), monotonic), Deadline(0.0, monotonic)


# Error replies, and how a store reacts to each.
#
# Every code in `_REACTIONS` means that the command was **not executed**, so resending it is safe.
# This includes scripts: Redis returns `READONLY`, `OOM` and `MISCONF` at a script's first write.
# Other errors may come from the middle of a script. They are raised, and nothing is resent.


class Reaction(Enum):
    """A store's reaction to an error reply."""

    RAISE = auto()  # a retry would get the same error
    WAIT = auto()  # the server cannot serve now: retry soon
    LEAVE = auto()  # the server is no longer the primary: locate it and retry there
    LOAD = auto()  # the server does not have the script: load it and retry
    MOVED = auto()  # another node serves the slot now: retry there
    ASK = auto()  # the slot is migrating: retry there, this time only


_REACTIONS = {
    "LOADING": Reaction.WAIT,  # the server is loading its data
    "BUSY": Reaction.WAIT,  # a script has been running for too long
    "TRYAGAIN": Reaction.WAIT,  # the keys of a migrating slot are on two nodes
    "CLUSTERDOWN": Reaction.WAIT,  # a slot has no node, or the cluster has no majority
    "NOREPLICAS": Reaction.WAIT,  # min-replicas-to-write is not met
    "MASTERDOWN": Reaction.LEAVE,  # a replica without its primary
    "READONLY": Reaction.LEAVE,  # a primary that was made a replica
    "UNBLOCKED": Reaction.LEAVE,  # the same, for a blocked command
    "NOSCRIPT": Reaction.LOAD,
    "MOVED": Reaction.MOVED,
    "ASK": Reaction.ASK,
}

# Redis < 7 wraps the error of a command in a script: "ERR Error running script …: -READONLY …"
_WRAPPED = re.compile(
    r"^ERR Error running script .*?: (?:@user_script: ?\d+: )+-?(?P<inner>[A-Z]+ .*)$", re.DOTALL
)

_REDIRECTION = re.compile(r"\S+ \S+ (?P<host>\S*):(?P<port>\d{1,5})(?!\S)")

# ACL errors inside a script. Redis < 7 does not name the command.
_FORBIDDEN = re.compile(
    r"^(?:ERR )+(?:Error running script .*: |ACL failure in script: )"
    r"(?P<said>(?:The user executing the script can't|User \S+ has no permissions) [^@]*)",
    re.DOTALL,
)


def unreachable(where: str, deadline: Deadline, reason: str) -> ConnectionLost:
    """Return the error for a call that could not be sent before its deadline."""
    reason = re.sub(r"^cannot connect to \S+: ", "", reason)
    tried = f"tried for {deadline.seconds:.3g} s" if deadline.seconds else ""
    details = "; ".join(filter(None, [reason, tried]))
    return ConnectionLost(f"cannot connect to {where}" + (f" ({details})" if details else ""))


class Refusal(Struct, frozen=True):
    """A parsed error reply, and the reaction to it."""

    message: str
    reaction: Reaction
    error: TaskbullError
    """Error to raise if the store gives up."""

    @property
    def transient(self) -> bool:
        """True if the error may go away without intervention."""
        return self.reaction in {Reaction.WAIT, Reaction.LEAVE}

    @property
    def summary(self) -> str:
        """Message without the location in a script."""
        return self.message.partition(" script: ")[0]

    def given_up(self, node: Endpoint, deadline: Deadline) -> TaskbullError:
        """Return the error for a call that was retried until its deadline."""
        where = f"Redis at {node}" if node != Endpoint() else "Redis"
        if isinstance(self.error, ServerUnavailable):
            message = f"{where} could not serve the call{deadline}: {self.message}"
            return ServerUnavailable(self.error.code, message)
        return unreachable(where, deadline, self.message)

    def target(self, asked: Endpoint) -> Endpoint:
        """Return the node that a MOVED or ASK error names.

        An empty host means the host that was asked. Raises `InvalidReply` if no node is named.
        """
        found = _REDIRECTION.match(self.message)
        if found is None or int(found["port"]) not in range(1, 65536):
            raise invalid_reply(asked, ReplyError(self.message))
        return Endpoint(found["host"].strip("[]") or asked.host, int(found["port"]))


def read_refusal(reply: ReplyError | ConnectionLost) -> Refusal:
    """Interpret an error reply, or the lack of a connection."""
    message = str(reply)
    if isinstance(reply, ConnectionLost):  # not sent: another node may have taken over
        return Refusal(message, Reaction.LEAVE, reply)
    if wrapped := _WRAPPED.match(message):
        message = wrapped["inner"]
    elif forbidden := _FORBIDDEN.match(message):
        said = forbidden["said"].removesuffix(" script: on ").strip()
        message = f"NOPERM {said}; taskbull doctor says what the user lacks"
    code = message.partition(" ")[0]
    reaction = _REACTIONS.get(code, Reaction.RAISE)
    transient = reaction in {Reaction.WAIT, Reaction.LEAVE}
    error = (ServerUnavailable if transient else ServerRefused)(code, message)
    return Refusal(message, reaction, error)


# Parsing replies.


NONSENSE = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    MsgspecError,
)
"""Exceptions that parsing raises if a reply does not fit its command."""


def invalid_reply(where: object, reply: Reply) -> InvalidReply:
    """Return the error for a reply that could not be parsed."""
    return InvalidReply(
        f"Redis at {where} sent a reply that does not fit the command: {shown(reply)}"
    )


def read_reply(call: Request[T], reply: Reply, where: object) -> T:
    """Return the result of a call from its reply.

    Raises `InvalidReply` if the reply does not fit the call.
    """
    try:
        return call.parse(reply)
    except TaskbullError:
        raise
    except NONSENSE as error:
        raise invalid_reply(where, reply) from error


def loading(call: Request[T]) -> list[tuple[Word, ...]]:
    """Return the commands that must precede a call: SCRIPT LOAD if it has a script."""
    return [] if call.script is None else [("SCRIPT", "LOAD", call.script.source)]


def read_replies(call: Request[T], replies: Sequence[Reply], where: object) -> T:
    """Return the result of a call from its reply and those to the commands before it.

    Raises the first error among the replies.
    """
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise read_refusal(reply).error
    return read_reply(call, replies[-1], where)


# Redelivery after an error reply.
#
# `redeliver` is a generator. A store performs each `Step` that it yields and sends back the result.
# A call that gets no error reply never uses it.


PATIENCE = 10.0
"""Seconds that a call is retried while the server replies that it cannot serve."""

LONGEST_PAUSE = 0.5
"""Maximum seconds between two attempts."""

_INSTANT = 0.001

REDIRECTIONS = 16
"""Maximum number of MOVED, ASK and NOSCRIPT replies that one call handles."""


class Send(Struct, frozen=True):
    """Send the call to a node, or to the node of its key, and return the reply."""

    node: Endpoint | None = None
    asking: bool = False


class Load(Struct, frozen=True):
    """Load the call's script on a node; return the reply only if it is an error."""

    node: Endpoint


class Moved(Struct, frozen=True):
    """Record that `node` now serves the call's slot."""

    node: Endpoint


class Leave(Struct, frozen=True):
    """Stop using the connection to a node, and locate the servers again."""

    node: Endpoint
    reason: str = ""


class Pause(Struct, frozen=True):
    """Wait before the next attempt."""

    seconds: float


Step: TypeAlias = Send | Load | Moved | Leave | Pause
Replied: TypeAlias = tuple[Endpoint, Reply]
"""The node that was asked, and its reply or a `ConnectionLost`."""

Redelivery: TypeAlias = Generator[Step, Any, Reply]


def redeliver(first: Replied, deadline: Deadline, *, keep_trying: bool = True) -> Redelivery:
    """Yield the steps that follow a call's first reply, and return its final reply.

    Raises the error if it is permanent, if time is up, or after too many redirections. Without
    `keep_trying`, transient errors are raised immediately.
    """
    node, reply = first
    asking = False
    insistence = _RetryLoop(deadline, keep_trying=keep_trying)
    redirections = 0
    while isinstance(reply, ReplyError | ConnectionLost):
        refusal = read_refusal(reply)
        if refusal.transient:
            asking = False
            node, reply = yield from insistence.try_again(node, refusal)
            continue
        redirections += 1
        if refusal.reaction is Reaction.RAISE or redirections > REDIRECTIONS:
            raise refusal.error
        if refusal.reaction is Reaction.LOAD:
            if not_loaded := (yield Load(node)):
                reply = not_loaded
                continue
        else:
            node, asking = refusal.target(node), refusal.reaction is Reaction.ASK
            if not asking:
                yield Moved(node)
        node, reply = yield Send(node, asking)
    return reply


class _RetryLoop:
    """Retry loop of one call, with growing pauses.

    It stops when less time is left than a reply may take. The call was not executed, and a last
    attempt without a reply would make that uncertain.
    """

    def __init__(self, deadline: Deadline, *, keep_trying: bool) -> None:
        self._deadline = deadline
        self._insist = keep_trying
        self._patience = Deadline(PATIENCE, deadline.clock)
        self._pause = 0.005
        self._answer = deadline.last_answer
        self._former: Refusal | None = None

    def try_again(self, node: Endpoint, refusal: Refusal) -> Generator[Step, Any, Replied]:
        deadline, patience = self._deadline, self._patience
        if deadline.left <= 0 and self._former is not None:
            refusal = self._former  # The last attempt had no time to find the cause.
        self._former = refusal
        if refusal.reaction is Reaction.LEAVE:  # even before giving up, for the calls that follow
            yield Leave(node, refusal.summary)
        if not self._insist:
            raise refusal.error
        left = deadline.left - self._answer
        if isinstance(refusal.error, ServerUnavailable):  # a missing connection has no such limit
            left = min(left, patience.left)
        if left < _INSTANT:
            raise refusal.given_up(node, deadline if deadline.left < patience.left else patience)
        yield Pause(min(self._pause, left))
        if deadline.left < self._answer / 2:  # the pause took longer on a busy machine
            raise refusal.given_up(node, deadline)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        sent_at = deadline.clock()
        replied: Replied = yield Send()
        if deadline.seconds is not None:
            self._answer = max(self._answer, 2 * (deadline.clock() - sent_at))
        return replied


# Helpers for sockets: timeouts of silent links, keep-alive, error texts.
#
# Code without an event loop uses this module, so it imports neither anyio nor asyncio. Together
# they are a third of the time that `import taskbull` would take a sync producer.


# Detecting dead links.
#
# A NAT, a load balancer or a lost host may drop a connection without notifying either end, while
# new connections work immediately. A silent link may also mean that the server is busy, so it is
# not closed yet. A second link is opened instead. If the server answers on that one while the
# first stays silent, the first is dead.


SUSPICIOUS = 1.0
"""Seconds of silence before the server is probed on another link."""

PROBE_TIMEOUT = 2.0
"""Seconds that the server has to answer on the other link."""

GRACE = 0.1
"""Seconds that a silent link has left after the other one answered: a reply may be in flight."""

FORGOTTEN = "no answer on this connection, while the server answers on another"

_SLOWEST = 512 * 1024  # bytes per second of the slowest link that counts as alive
_HIDDEN = 8 << 20  # bytes that network buffers may hold without visible progress


def allowance(size: int) -> float:
    """Return how many seconds `size` bytes in flight may delay a reply."""
    return min(size, _HIDDEN) / _SLOWEST


# Options and errors of sockets, blocking or not.


BROKEN = (OSError, UnicodeError)  # UnicodeError: an invalid host name

CLOSED = "the connection was closed by the server"

# Bytes per `recv`. Python allocates all of them first, and then frees the unused part. From 128 kB
# on, each allocation is a system call, which takes 18 µs per reply.
RECEIVE = 1 << 16
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,  # ms that sent data may remain unacknowledged
}


def keep_alive(raw: socket.socket) -> None:
    """Enable TCP keep-alive, so that the kernel detects a vanished peer without any command."""
    if raw.family == socket.AF_UNIX:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # macOS lacks TCP_KEEPIDLE and TCP_USER_TIMEOUT
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def replies_before_close(replies: list[Reply], error: Exception) -> list[Reply]:
    """Return the replies sent before the server closed, if the last is an error.

    Otherwise raise `error`.
    """
    if replies and isinstance(replies[-1], ReplyError):
        return replies
    raise error


def explain(error: Exception) -> str:
    """Return a short reason why a connection failed or was lost."""
    match error:
        case ProtocolError():
            return "the peer does not speak the Redis protocol"
        case _ if type(error).__module__.partition(".")[0] == "anyio":  # anyio is not imported here
            return CLOSED
        case OSError(errno=int(number)) if number > 0:  # asyncio has its own messages
            return os.strerror(number)
        case OSError(__cause__=OSError() as cause):  # from anyio, if all connection attempts failed
            return explain(cause)
        case OSError(__cause__=BaseExceptionGroup(exceptions=[OSError() as first, *_])):
            return explain(first)
        case _:
            return str(error)


# Blocking sockets with a timeout per operation.
#
# `settimeout` takes a system call, and then `send` and `recv` poll first: 3 system calls each.
# `PlainSocket` needs 1 for `send` and 2 for `recv`. `SyncSocket` uses `settimeout`, because
# TLS reads ahead and `poll` does not see the bytes that it holds.


_SHORTEST = 0.001
"""Minimum timeout in seconds. 0 and less have other meanings for `settimeout` and `poll`."""


class SyncSocket:
    """Connected socket with TLS. `send` and `receive` raise `TimeoutError` after some seconds."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._input = select.poll()
        self._input.register(raw, select.POLLIN)

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send as much as the system accepts; return the number of bytes."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.send(data)

    def receive(self, seconds: float) -> bytes:
        """Wait for data and return it, or `b""` if the peer has closed."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.recv(RECEIVE)

    def readable(self, seconds: float = 0.0) -> bool:
        """Return True if there is data to receive, or the peer has closed."""
        return bool(self._input.poll(seconds * 1000))

    def close(self) -> None:
        """Close the socket immediately."""
        self._raw.close()


class PlainSocket(SyncSocket):
    """Socket without TLS, in non-blocking mode."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        raw.setblocking(False)

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send as much as the system accepts; return the number of bytes.

        If it accepts nothing, wait until the socket is writable or readable, and return 0. The peer
        may be waiting until its data is received.
        """
        try:
            return self._raw.send(data)
        except BlockingIOError:
            room = select.poll()
            room.register(self._raw, select.POLLOUT | select.POLLIN)
            if not room.poll(max(seconds, _SHORTEST) * 1000):
                raise TimeoutError("timed out") from None
            return 0

    def receive(self, seconds: float) -> bytes:
        """Wait for data and return it."""
        while self._input.poll(max(seconds, _SHORTEST) * 1000):
            try:
                return self._raw.recv(RECEIVE)
            except BlockingIOError:  # spurious wake-up
                continue
        raise TimeoutError("timed out")


# The handshake on a new connection: log in, select the database and check the server.


_ADVICE = {
    "NOAUTH": " Put the password into the URL, as in redis://:password@host or "
    "redis://user:password@host (redis=…, TASKBULL_REDIS_URL or REDIS_URL)",
    "WRONGPASS": " The user name or password in the URL (redis=…, TASKBULL_REDIS_URL or REDIS_URL)"
    " is not the server's",
}

OLDEST = (6, 2)  # of Redis; Valkey reports 7.2 as its Redis version


class Handshake(Struct, frozen=True):
    """The first commands on a connection, and the check of their replies."""

    credentials: Credentials
    db: int = 0
    name: str = ""
    primary_only: bool = False

    def commands(self) -> list[bytes]:
        """Return the packed commands, which can be sent together."""
        words: list[tuple[str, ...]] = [self.credentials.words] if self.credentials.words else []
        if self.db:
            words.append(("SELECT", str(self.db)))
        if self.name:
            words.append(("CLIENT", "SETNAME", self.name))
        if self.primary_only:
            words.append(("ROLE",))
        words += [("INFO", "server"), ("PING",)]
        return [pack(command) for command in words]

    def check(self, endpoint: Endpoint, replies: list[Reply]) -> str:
        """Check the replies and return the server's run id, or "" if it is unknown.

        A client id is valid only within one run of a server. Raises `ConnectionLost` if a later
        attempt may succeed, otherwise `ServerRefused`.
        """
        complete = len(replies) == len(self.commands())
        info = replies[-2] if complete else None
        named = replies[-3 - self.primary_only] if complete and self.name else None
        for reply in replies:
            if not isinstance(reply, ReplyError) or reply is named or _lacks_info(reply, info):
                continue  # the client name and INFO are optional
            if complete and str(reply).startswith("MISCONF"):
                continue  # Redis cannot save, so it refuses PING and writes, but it can be read.
            if not complete and _is_unknown(reply):
                raise ServerRefused(
                    "INCOMPLETE",
                    f"Redis at {endpoint}: {reply}. It then closed the connection, which Redis "
                    "does not do after an error",
                )
            refusal = read_refusal(reply)
            if self.credentials.provider and str(reply).startswith(("WRONGPASS", "NOAUTH")):
                # The next connection asks again, and gets a newer password.
                raise ConnectionLost(
                    f"Redis at {endpoint} rejects the credentials that "
                    f"{self.credentials.provider}() returned: {refusal.message}"
                )
            if refusal.transient or "max number of clients" in refusal.message:
                raise ConnectionLost(f"{endpoint}: {refusal.message}")
            raise _refused(endpoint, refusal)
        if self.primary_only and replies[-3][0] != b"master":
            raise ConnectionLost(f"{endpoint} is a replica, not the primary")
        fields = read_info(info) if isinstance(info, bytes) else {}
        _check_version(endpoint, fields.get("redis_version", ""))
        return fields.get("run_id", "")


def _refused(endpoint: Endpoint, refusal: Refusal) -> TaskbullError:
    if not isinstance(refusal.error, ServerRefused):
        return refusal.error
    code = refusal.error.code
    return ServerRefused(code, f"Redis at {endpoint}: {refusal.message}{_ADVICE.get(code, '')}")


def _lacks_info(reply: ReplyError, info: Reply) -> bool:
    """Return True if INFO is forbidden or unknown. The version is then not checked."""
    return reply is info and (str(reply).startswith("NOPERM") or _is_unknown(reply))


def _is_unknown(reply: ReplyError) -> bool:
    return "unknown command" in str(reply).lower()


def _check_version(endpoint: Endpoint, version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ServerRefused(
            "VERSION",
            f"{endpoint} runs Redis {version}; taskbull needs {oldest} or newer, or Valkey",
        )


def dial_error(endpoint: Endpoint, error: Exception, timeout: float, *, tls: bool) -> TaskbullError:
    """Return the error for a failed connection attempt.

    It is `ConnectionLost` if a later attempt may succeed, otherwise `ServerRefused`.
    """
    match error:
        case TimeoutError():
            # A server without TLS reads the greeting as an incomplete command, and waits.
            hint = "; does it support TLS?" if tls else ""
            seconds = float(f"{timeout:.2g}")  # the rest of a longer limit has many digits
            return ConnectionLost(f"no answer from {endpoint} within {seconds:g} s{hint}")
        case ProtocolError():
            return ServerRefused("PROTOCOL", f"{endpoint} does not speak the Redis protocol")
        case _ if type(error).__module__ == "ssl":  # ssl is imported only for TLS
            return ServerRefused("TLS", f"{endpoint}: no TLS connection ({error})")
        case _:
            return ConnectionLost(f"cannot connect to {endpoint}: {explain(error)}")

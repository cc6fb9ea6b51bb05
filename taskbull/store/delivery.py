"""The parts of running a call that both stores share, without I/O.

`Deadline` limits a call, and `Drive` runs an operation of several calls. `read_refusal` interprets
an error reply, and `redeliver` decides what follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from enum import Enum, auto
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import MsgspecError, Struct

from taskbull.core.validation import shown
from taskbull.errors import (
    ConnectionLost,
    InvalidReply,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.scripts.call import ONE_CALL, AnyRequest, AnySteps, Request, Word
from taskbull.store.address import Endpoint
from taskbull.store.protocol import Reply, ReplyError

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

# ACL errors inside a script. Redis < 7 does not name the command.
_FORBIDDEN = re.compile(
    r"^(?:ERR )+(?:Error running script .*: |ACL failure in script: )"
    r"(?P<said>(?:The user executing the script can't|User \S+ has no permissions) [^@]*)",
    re.DOTALL,
)


def unreachable(where: str, deadline: Deadline, reason: str) -> ConnectionLost:
    """Return the error for a call that could not be sent before its deadline."""
    reason = re.sub(r"^cannot connect to \S+: ", "", reason)
    tried = "" if deadline.seconds is None else f"tried for {deadline.seconds:.3g} s"
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

        An empty host means the host that was asked.
        """
        _, _, place = self.message.split()[:3]
        host, _, port = place.rpartition(":")
        return Endpoint(host.strip("[]") or asked.host, int(port))


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

    def try_again(self, node: Endpoint, refusal: Refusal) -> Generator[Step, Any, Replied]:
        deadline, patience = self._deadline, self._patience
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

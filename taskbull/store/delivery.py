"""How long a call may take in all, whatever it meets on the way."""

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
from taskbull.scripts.call import Request, Steps, Word
from taskbull.store.address import Endpoint
from taskbull.store.protocol import Reply, ReplyError

# How long a call may take in all, whatever it meets on the way.


class Deadline:
    """So many seconds from now, or since an instant, over all tries; None: no deadline."""

    __slots__ = ("_end", "clock", "seconds")

    def __init__(
        self, seconds: float | None, clock: Callable[[], float], since: float | None = None
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        self._end = inf if seconds is None else (clock() if since is None else since) + seconds

    @property
    def left(self) -> float:
        """The seconds left: below 0 when it is over, `inf` without a deadline."""
        return self._end - self.clock()

    @property
    def timeout(self) -> float | None:
        """The seconds left, as timeouts are given: None without a deadline, and never below 0."""
        return None if self._end == inf else max(0.0, self._end - self.clock())

    @property
    def last_answer(self) -> float:
        """The seconds reserved for an answer: with fewer left, a call is not sent again."""
        return 0.0 if self.seconds is None else min(1.0, self.seconds / 3)

    def too_late_after(self, failed: TaskbullError) -> bool:
        """Return whether it is too late to send a call again that failed with this error.

        A refused call was surely not executed, and stays so: it is sent again only if there is
        time for an answer. Where that is uncertain already, any time will do.
        """
        return self.left <= (self.last_answer if isinstance(failed, ConnectionLost) else 0)

    def __str__(self) -> str:
        return "" if self.seconds is None else f" within {self.seconds:.3g} s"


# An operation of several calls on its way: what both stores share, without IO.
#
#     drive = Drive(steps, deadline)
#     while drive.asks:
#         with drive:
#             drive.answer = await self.run_within(drive.request(), drive.deadline)
#     return drive.result
#
# What goes wrong with a call is raised in the operation, which may know better.


T = TypeVar("T")

_GRACE = 1.0
"""Seconds for which the answer is waited for of an operation that is given up."""


class Drive(Generic[T]):
    """Runs an operation until it returns."""

    result: T
    _request: Request[Any]

    def __init__(self, steps: Steps[T], deadline: Deadline, *, renew: bool = True) -> None:
        """Ask for the first call; `renew`: each call has as long as the first."""
        self.asks = True
        self.answer: Any = None
        self.deadline = deadline
        self._steps = steps
        self._renew = renew
        self._failed: TaskbullError | None = None
        self._go_on(partial(next, steps))

    def request(self) -> Request[Any]:
        """Return the call to make next; raise `ConnectionLost` if it is too late to try again."""
        failed = self._failed
        if failed is not None and self.deadline.too_late_after(failed):
            raise ConnectionLost(str(failed)) from failed
        return self._request

    def fail(self, failed: TaskbullError) -> None:
        """Go on from a call that was made elsewhere, and failed."""
        self._failed = failed
        self._go_on(partial(self._steps.throw, failed))

    def close(self) -> None:
        """Break it off: nobody wants its result."""
        self.asks = False
        self._steps.close()

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, TaskbullError):
            self.fail(error)
            return True
        if error is None:
            self._failed = None
            if self._renew:
                self.deadline = Deadline(self.deadline.seconds, monotonic)
            self._go_on(partial(self._steps.send, self.answer))
        return error is None

    def _go_on(self, step: Callable[[], Request[Any]]) -> None:
        try:
            self._request = step()
        except StopIteration as end:
            self.asks = False
            self.result = end.value


def time_to_finish(timeout: float | None, *, given_up: bool) -> tuple[Deadline, Deadline]:
    """Return until when the answer of a call under way is waited for, and it is sent again."""
    if not given_up:
        deadline = Deadline(timeout, monotonic)
        return deadline, deadline
    return Deadline(min(_GRACE, (timeout or 3 * _GRACE) / 3), monotonic), Deadline(0.0, monotonic)


# What each error reply of Redis means for the call that got it: one table of reactions.
#
# Every code below says that the command was **not executed**, so that sending it again is safe.
# That holds for scripts too: Redis refuses `READONLY`, `OOM` and `MISCONF` at a script's first
# write. Other errors may come from the middle of a script; they go to the caller and nothing is
# repeated.


class Reaction(Enum):
    """What a store does about an error reply."""

    RAISE = auto()  # it is the caller's: waiting would not change it
    WAIT = auto()  # the server cannot serve for now: try again soon
    LEAVE = auto()  # this is not the primary any more: find it, try there
    LOAD = auto()  # the server does not know the script: load it, try again
    MOVED = auto()  # the slot lives elsewhere now: go there
    ASK = auto()  # the slot is on its way: ask there, this once


_REACTIONS = {
    "LOADING": Reaction.WAIT,  # reading its data after a start
    "BUSY": Reaction.WAIT,  # someone's script runs for too long
    "TRYAGAIN": Reaction.WAIT,  # the keys of a migrating slot are on both sides
    "CLUSTERDOWN": Reaction.WAIT,  # a slot has no node, or the cluster has no majority
    "NOREPLICAS": Reaction.WAIT,  # min-replicas-to-write is not met
    "MASTERDOWN": Reaction.LEAVE,  # a replica without its primary
    "READONLY": Reaction.LEAVE,  # a primary that was made a replica
    "UNBLOCKED": Reaction.LEAVE,  # the same, told to a blocked command
    "NOSCRIPT": Reaction.LOAD,
    "MOVED": Reaction.MOVED,
    "ASK": Reaction.ASK,
}

# Redis < 7 wraps what a command inside a script said: "ERR Error running script …: -READONLY …"
_WRAPPED = re.compile(
    r"^ERR Error running script .*?: (?:@user_script: ?\d+: )+-?(?P<inner>[A-Z]+ .*)$", re.DOTALL
)


# What an ACL rule forbids inside a script: Redis < 7 does not even say which command it was.
_FORBIDDEN = re.compile(
    r"^(?:ERR )+(?:Error running script .*: |ACL failure in script: )"
    r"(?P<said>(?:The user executing the script can't|User \S+ has no permissions) [^@]*)",
    re.DOTALL,
)


class Refusal(Struct, frozen=True):
    """An error reply, read: what was said, and what to do about it."""

    message: str
    reaction: Reaction
    error: TaskbullError
    """What the caller gets if it comes to that."""

    @property
    def transient(self) -> bool:
        """Whether time alone may heal it."""
        return self.reaction in {Reaction.WAIT, Reaction.LEAVE}

    @property
    def summary(self) -> str:
        """What was said, without the place in a script."""
        return self.message.partition(" script: ")[0]

    def given_up(self, node: Endpoint, deadline: Deadline) -> TaskbullError:
        """Return the error of a call that was tried until its deadline."""
        where = f"Redis at {node}" if node != Endpoint() else "Redis"
        if isinstance(self.error, ServerUnavailable):
            told = f"{where} could not serve the call{deadline}: {self.message}"
            return ServerUnavailable(self.error.code, told)
        return ConnectionLost(f"{where} could not be reached{deadline}: {self.message}")

    def target(self, asked: Endpoint) -> Endpoint:
        """Where a MOVED or ASK points to; an empty host means the one that was asked."""
        _, _, place = self.message.split()[:3]
        host, _, port = place.rpartition(":")
        return Endpoint(host.strip("[]") or asked.host, int(port))


def read_refusal(reply: ReplyError | ConnectionLost) -> Refusal:
    """Read an error reply, or the lack of one."""
    message = str(reply)
    if isinstance(reply, ConnectionLost):  # never sent: another node may have taken over
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


# Calls and their replies: what both stores share.


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
"""What reading a reply raises that does not fit its command."""


def invalid_reply(where: object, reply: Reply) -> InvalidReply:
    """Return the error for a reply that could not be read."""
    return InvalidReply(
        f"Redis at {where} sent a reply that does not fit the command: {shown(reply)}"
    )


def read_reply(call: Request[T], reply: Reply, where: object) -> T:
    """Return the result of a call; raise `InvalidReply` if the reply does not fit it."""
    try:
        return call.parse(reply)
    except TaskbullError:
        raise
    except NONSENSE as error:
        raise invalid_reply(where, reply) from error


def loading(call: Request[T]) -> list[tuple[Word, ...]]:
    """Return the command that must go before a call, so that the server knows its script."""
    return [] if call.script is None else [("SCRIPT", "LOAD", call.script.source)]


def read_replies(call: Request[T], replies: Sequence[Reply], where: object) -> T:
    """Read the replies to a call and what went before it; raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise read_refusal(reply).error
    return read_reply(call, replies[-1], where)


# What follows an error reply, until a call has its result: a generator of steps, without IO.
#
# Both stores drive it: they perform each `Step` and send back the result. The ordinary call never
# comes here: it begins with the first error reply.


PATIENCE = 10.0
"""Seconds for which a call insists when the server says "not now"."""

LONGEST_PAUSE = 0.5
"""Seconds between two tries at most."""

_INSTANT = 0.001

REDIRECTIONS = 16
"""MOVED, ASK and NOSCRIPT that one call follows before it gives up."""


class Send(Struct, frozen=True):
    """Send the call to a node (None: wherever its key is) and return the reply."""

    node: Endpoint | None = None
    asking: bool = False


class Load(Struct, frozen=True):
    """Load the call's script on a node; return the reply if it is an error, else None."""

    node: Endpoint


class Moved(Struct, frozen=True):
    """Note that the call's slot lives on `node` now."""

    node: Endpoint


class Leave(Struct, frozen=True):
    """Leave the connection to a node, and look anew for the servers."""

    node: Endpoint
    reason: str = ""


class Pause(Struct, frozen=True):
    """Wait."""

    seconds: float


Step: TypeAlias = Send | Load | Moved | Leave | Pause
Replied: TypeAlias = tuple[Endpoint, Reply]
"""The node that was asked, and its reply; a `ConnectionLost` may stand for one."""

Redelivery: TypeAlias = Generator[Step, Any, Reply]


def redeliver(first: Replied, deadline: Deadline, *, insist: bool = True) -> Redelivery:
    """Continue after a first reply until there is one without an error, or no hope.

    A caller that does not `insist` is told at once what only time may heal.
    """
    node, reply = first
    asking = False
    insistence = _Insistence(deadline, insist=insist)
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


class _Insistence:
    """Sends one call again and again, after growing pauses, while there is time.

    It stops when less time is left than an answer may take: a refused call was not executed, and a
    last try without an answer would make that uncertain.
    """

    def __init__(self, deadline: Deadline, *, insist: bool) -> None:
        self._deadline = deadline
        self._insist = insist
        self._patience = Deadline(PATIENCE, deadline.clock)
        self._pause = 0.005
        self._answer = deadline.last_answer

    def try_again(self, node: Endpoint, refusal: Refusal) -> Generator[Step, Any, Replied]:
        deadline, patience = self._deadline, self._patience
        if refusal.reaction is Reaction.LEAVE:  # whoever gives up: the next need not find out again
            yield Leave(node, refusal.summary)
        if not self._insist:
            raise refusal.error
        left = deadline.left - self._answer
        if isinstance(refusal.error, ServerUnavailable):  # no connection at all is waited out
            left = min(left, patience.left)
        if left < _INSTANT:
            raise refusal.given_up(node, deadline if deadline.left < patience.left else patience)
        yield Pause(min(self._pause, left))
        if deadline.left < self._answer / 2:  # it was a long pause, on a busy machine
            raise refusal.given_up(node, deadline)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        sent_at = deadline.clock()
        replied: Replied = yield Send()
        if deadline.seconds is not None:
            self._answer = max(self._answer, 2 * (deadline.clock() - sent_at))
        return replied

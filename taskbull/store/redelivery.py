"""What follows an error reply, until a call has its result: a generator of steps, without IO.

Both stores drive it: they perform each `Step` and send back the result. The ordinary call
never comes here: it begins with the first error reply.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

from msgspec import Struct

from taskbull.errors import ConnectionLost, ServerUnavailable
from taskbull.store.address import Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.error_replies import Reaction, Refusal, read_refusal
from taskbull.store.pipeline import Reply, ReplyError

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

"""How a call that met trouble is brought to its end: a generator of steps, without IO.

Both stores drive it: they perform each `Step` and send back what came of it. The ordinary call
never comes here; it begins with the first reply that means trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from hiredis import ReplyError
from msgspec import Struct

from taskbull.errors import ConnectionLost
from taskbull.store.address import Endpoint
from taskbull.store.pipeline import Reply
from taskbull.store.trouble import Answer, read_trouble

PATIENCE = 10.0
"""Seconds for which a call insists when the server says "not now"."""

LONGEST_PAUSE = 0.5
"""Seconds between two tries at most."""

REDIRECTIONS = 16
"""MOVED, ASK and NOSCRIPT that one call follows before it gives up."""


class Send(Struct, frozen=True):
    """Send the call to a node (None: wherever the routes say) and give the reply."""

    node: Endpoint | None = None
    asking: bool = False


class Load(Struct, frozen=True):
    """Load the call's script on a node; give the reply if it means trouble, else None."""

    node: Endpoint


class Moved(Struct, frozen=True):
    """Note that the call's slot lives on `node` now."""

    node: Endpoint


class Leave(Struct, frozen=True):
    """Let the connection to a node end, and look anew for where to go."""

    node: Endpoint


class Pause(Struct, frozen=True):
    """Wait."""

    seconds: float


Step: TypeAlias = Send | Load | Moved | Leave | Pause
Replied: TypeAlias = tuple[Endpoint, Reply]
"""The node that was asked, and its reply; a `ConnectionLost` may stand for one."""

Delivery: TypeAlias = Generator[Step, Any, Reply]


def deliver(
    first: Replied, clock: Callable[[], float], deadline: float, *, insist: bool = True
) -> Delivery:
    """Go on from a first reply until there is a true one, or no hope; `deadline` may be `inf`.

    Who does not `insist` is told at once what only time may heal, and comes back later.
    """
    node, reply = first
    asking = False
    patience = clock() + PATIENCE
    pause = 0.005
    redirections = 0
    while isinstance(reply, ReplyError | ConnectionLost):
        trouble = read_trouble(reply)
        if trouble.transient:
            # That there is no connection is waited out, unless the caller set a deadline.
            limit = deadline if isinstance(reply, ConnectionLost) else min(patience, deadline)
            if trouble.answer is Answer.LEAVE:
                yield Leave(node)  # whoever gives up: the next call need not find out again
            if not insist or (left := limit - clock()) <= 0:
                raise trouble.error
            yield Pause(min(pause, left))
            if clock() >= limit:
                raise trouble.error
            pause = min(pause * 2, LONGEST_PAUSE)
            asking = False
            node, reply = yield Send()
            continue
        redirections += 1
        if trouble.answer is Answer.RAISE or redirections > REDIRECTIONS:
            raise trouble.error
        if trouble.answer is Answer.LOAD:
            if refusal := (yield Load(node)):
                reply = refusal
                continue
        else:
            node, asking = trouble.target(node), trouble.answer is Answer.ASK
            if not asking:
                yield Moved(node)
        node, reply = yield Send(node, asking)
    return reply

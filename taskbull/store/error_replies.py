"""What each error reply of Redis means for the call that got it: one table of reactions.

Every code below says that the command was **not executed**, so that sending it again is safe.
That holds for scripts too: Redis refuses `READONLY`, `OOM` and `MISCONF` at a script's first write.
Other errors may come from the middle of a script; they go to the caller and nothing is repeated.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from msgspec import Struct

from taskbull.errors import ConnectionLost, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.store.address import Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.pipeline import ReplyError


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

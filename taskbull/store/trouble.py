"""What each error reply of Redis means for the call that got it: the decided answers, in one table.

Every code below says that the command was **not executed**, so that sending it again is safe.
That holds for scripts too: Redis refuses `READONLY`, `OOM` and `MISCONF` at a script's first write.
Other errors may come from the middle of a script; they go to the caller and nothing is repeated.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from hiredis import ReplyError
from msgspec import Struct

from taskbull.errors import ConnectionLost, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.store.address import Endpoint
from taskbull.store.limit import Limit


class Answer(Enum):
    """What a store does about an error reply."""

    RAISE = auto()  # it is the caller's: waiting would not change it
    WAIT = auto()  # the server cannot serve for now: try again soon
    LEAVE = auto()  # this is not the primary any more: find it, try there
    LOAD = auto()  # the server does not know the script: load it, try again
    MOVED = auto()  # the slot lives elsewhere now: go there
    ASK = auto()  # the slot is on its way: ask there, this once


_ANSWERS = {
    "LOADING": Answer.WAIT,  # reading its data after a start
    "BUSY": Answer.WAIT,  # someone's script runs for too long
    "TRYAGAIN": Answer.WAIT,  # the keys of a migrating slot are on both sides
    "CLUSTERDOWN": Answer.WAIT,  # a slot has no node, or the cluster has no majority
    "NOREPLICAS": Answer.WAIT,  # min-replicas-to-write is not met
    "MASTERDOWN": Answer.LEAVE,  # a replica without its primary
    "READONLY": Answer.LEAVE,  # a primary that was made a replica
    "UNBLOCKED": Answer.LEAVE,  # the same, told to a blocked command
    "NOSCRIPT": Answer.LOAD,
    "MOVED": Answer.MOVED,
    "ASK": Answer.ASK,
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


class Trouble(Struct, frozen=True):
    """A reply that means trouble, read: what was said, and what to do about it."""

    message: str
    answer: Answer
    error: TaskbullError
    """What the caller gets if it comes to that."""

    @property
    def transient(self) -> bool:
        """Whether time alone may heal it."""
        return self.answer in {Answer.WAIT, Answer.LEAVE}

    @property
    def summary(self) -> str:
        """What was said, without the place in a script."""
        return self.message.partition(" script: ")[0]

    def given_up(self, node: Endpoint, limit: Limit) -> TaskbullError:
        """Make the error of a call that was tried until its limit."""
        where = f"Redis at {node}" if node != Endpoint() else "Redis"
        if isinstance(self.error, ServerUnavailable):
            told = f"{where} could not serve the call{limit}: {self.message}"
            return ServerUnavailable(self.error.code, told)
        return ConnectionLost(f"{where} could not be reached{limit}: {self.message}")

    def target(self, asked: Endpoint) -> Endpoint:
        """Where a MOVED or ASK points to; an empty host means the one that was asked."""
        _, _, place = self.message.split()[:3]
        host, _, port = place.rpartition(":")
        return Endpoint(host.strip("[]") or asked.host, int(port))


def read_trouble(reply: ReplyError | ConnectionLost) -> Trouble:
    """Read an error reply, or the lack of one."""
    message = str(reply)
    if isinstance(reply, ConnectionLost):  # never sent: another node may have taken over
        return Trouble(message, Answer.LEAVE, reply)
    if wrapped := _WRAPPED.match(message):
        message = wrapped["inner"]
    elif forbidden := _FORBIDDEN.match(message):
        said = forbidden["said"].removesuffix(" script: on ").strip()
        message = f"NOPERM {said}; taskbull doctor says what the user lacks"
    code = message.partition(" ")[0]
    answer = _ANSWERS.get(code, Answer.RAISE)
    transient = answer in {Answer.WAIT, Answer.LEAVE}
    error = (ServerUnavailable if transient else ServerRefused)(code, message)
    return Trouble(message, answer, error)

"""One call of a cycle, from the worker to Redis and back."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from msgspec import Struct

from taskbull.scripts.call import Call
from taskbull.scripts.cycle import Cycled, Hold
from taskbull.store.async_store import SentOn
from taskbull.store.pipeline import Reply
from taskbull.worker.run import Run


class TokenSequence:
    """Calls that are made one after the other: Redis remembers what it answered to the last."""

    def __init__(self) -> None:
        # By its beginning whoever cancels a job knows that its worker can be told.
        self._id = f"tb:{uuid.uuid4()}"  # its text is made once: 1 µs
        self._calls = 0

    def next_token(self) -> str:
        """Return the token of the next call, which no other call has."""
        self._calls += 1
        return f"{self._id}:{self._calls}"

    def is_last(self, token: str) -> bool:
        """Return whether it is the token of the last call."""
        return token == f"{self._id}:{self._calls}"


class CycleCall(Struct, eq=False):
    """A call that was sent; it is given its reply where the connection reads it.

    No task waits for that: a job that runs alone is ended, and the next one taken, in two passes of
    the event loop where a task that waits for replies would need five.
    """

    arrive: Callable[[CycleCall, Reply], None]
    """Takes the reply, or what went wrong."""
    sequence: TokenSequence
    token: str
    call: Call[Cycled]
    batch: list[Run]
    """What it writes."""
    want: int
    """How many jobs it asks for."""
    wakes: int
    """How often the worker had been told of jobs by then."""
    now_ms: int
    sent_at: float
    fresh_for: float
    """Seconds after which the locks of the jobs that it takes are in doubt."""
    apart: bool
    """Whether its outcome is sent by itself, because a call with several was refused."""
    is_open: bool
    """Whether it may bring jobs that have stalled before."""
    hold: Hold
    """How it delays those that it does not bring."""
    way: SentOn | None = None
    """Where it was sent; None: it could not be sent at once."""

    def done(self) -> bool:
        """Return that the reply is wanted."""
        return False

    def set_result(self, reply: Reply, /) -> None:
        """Take the reply."""
        self.arrive(self, reply)

    def set_exception(self, error: BaseException, /) -> None:
        """Take what went wrong."""
        self.arrive(self, error)

"""How many jobs a worker asks for, and when: the bookkeeping of one queue, without IO.

Its rules:

- A call asks for as many jobs as there are free slots, never for more: others want theirs, too.
- One call may always be under way. Further ones, up to `CALLS`, are worth their price when enough
  has gathered for them: so Redis works on one while Python runs the jobs of another.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Fail
from taskbull.core.retry import attempts_of, undecidable
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.call import is_denial
from taskbull.scripts.cycle import Packed, pack_outcome
from taskbull.worker.run import Run

# How many jobs a worker asks for, and when: the bookkeeping of one queue, without IO.
#
# Its rules:
#
# - A call asks for as many jobs as there are free slots, never for more: others want theirs, too.
# - One call may always be under way. Further ones, up to `CALLS`, are worth their price when enough
#   has gathered for them: so Redis works on one while Python runs the jobs of another.


CALLS = 4
"""Calls under way at once, at the most."""

BATCH = 50
"""Jobs to end and to take in one call, at the most: Redis serves nobody else meanwhile."""

_ENOUGH = 25
"""Jobs that are worth a further call while another is under way, where there are many slots."""


class Allowance(Protocol):
    """Says how many jobs may be taken of those that are wanted: a circuit breaker does."""

    def allowed(self, wanted: int, asked: int) -> int: ...


class Demand:
    """Knows the slots of a queue, what was asked for, and whether there may be more."""

    def __init__(self, concurrency: int, allowance: Allowance | None = None) -> None:
        self._concurrency = concurrency
        self._allowance = allowance
        self.enough = max(1, min(_ENOUGH, concurrency // 2))
        """How many jobs are worth a call of their own."""
        self.occupied = 0
        """Slots with a job, taken and not ended."""
        self.asked = 0
        """Jobs that calls under way may bring."""
        self.under_way = 0
        """Calls that were sent and are not yet done with."""
        self.hungry = True
        """Whether there may be jobs in Redis that nobody has asked for."""
        self.wakes = 0
        """How often somebody has said that there may be some."""
        self.limited_until = 0.0
        """When jobs may be taken again, by the worker's clock; 0: they may."""
        self.held_until = 0.0
        """When the longest `RateLimited` of a job here is over, by the worker's clock."""
        self.stopping = False

    def room(self) -> int:
        """Return how many jobs may be asked for now."""
        if self.stopping or self.limited_until:
            return 0
        free = self._concurrency - self.occupied - self.asked
        return free if self._allowance is None else self._allowance.allowed(free, self.asked)

    def wake(self) -> None:
        """Note that there may be jobs."""
        self.wakes += 1
        self.hungry = True

    def due(self, outcomes: int, apart: int) -> int | None:
        """Return how many jobs a call is to ask for that is due now; None if none is.

        So many `outcomes` are to be written. If `apart` of them go one by one, no jobs are asked
        for.
        """
        under_way = self.under_way
        if apart:
            return 0 if outcomes and not under_way else None
        if under_way >= CALLS:
            return None
        least = self.enough if under_way else 1
        room = self.room()
        if outcomes >= least or (self.hungry and room >= least):
            return min(BATCH, room)
        return None

    def sent(self, want: int) -> None:
        """Note a call that asks for `want` jobs."""
        self.asked += want
        self.under_way += 1

    def answered(self, want: int, taken: int, wakes: int) -> None:
        """Note what a call has brought that was sent when there had been so many `wakes`."""
        if taken == want:
            self.hungry = True
        elif wakes == self.wakes:  # else somebody knows of jobs that came after this call
            self.hungry = False


# What became of jobs, on its way to Redis: gathered, packed, and put back where need be.


BATCH_BYTES = 1 << 20

MOST_CUTS = 8
"""How often in a row the connection may be cut while a large outcome is sent by itself."""

_LARGE = 100_000


class Outbox(deque[Run]):
    """Outcomes that Redis is to be told, in order.

    It is a deque, rather than has one, because each job is appended and the length asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.apart = 0
        """How many of the next ones go one by one: a call with several was refused."""

    def separate(self) -> None:
        """Have all that wait go one by one."""
        self.apart = len(self)

    def gather(self) -> list[Run]:
        """Take out what the next call is to write."""
        if self.apart:
            self.apart -= 1
            return [self.popleft()]
        batch: list[Run] = []
        size = 0
        while self and len(batch) < BATCH and size < BATCH_BYTES:
            run = self.popleft()
            size += _size(run)
            batch.append(run)
        return batch

    def put_back(self, batch: list[Run], *, apart: bool = False) -> None:
        """Put outcomes back, before all others."""
        self.extendleft(reversed(batch))
        self.apart += apart

    def withdraw(self, run: Run) -> bool:
        """Take an outcome out again if it is the next; return whether it was."""
        if not self or self[0] is not run:
            return False
        self.popleft()
        return True


def pack(batch: list[Run], now_ms: int) -> list[Packed]:
    """Put outcomes into the script's form; a job whose outcome has none has failed instead."""
    packed: list[Packed] = []
    for run in batch:
        job, token, outcome = run.job, run.token, run.outcome
        run.written_ms = now_ms
        try:
            attempts = attempts_of(job, run.policy) if isinstance(outcome, Fail) else 0
            packed.append(pack_outcome(job, token, outcome, attempts, now_ms))
        except Exception as fault:  # noqa: BLE001 - whatever is in a job, its worker lives on
            run.outcome = failed = undecidable(job, fault)
            # Bare: what the job says of itself, such as for how long it is kept, is not sound.
            packed.append(pack_outcome(Job(id=job.id), token, failed, 1, now_ms))
    return packed


def is_at_fault(run: Run, error: TaskbullError) -> bool:
    """Return whether an outcome that did not get through by itself is too much for Redis."""
    if isinstance(error, ServerRefused):
        return error.code == "ERR" and not is_denial(str(error))
    # Some servers and proxies cut the connection on which something too large comes.
    return run.refusals >= MOST_CUTS and _size(run) > _LARGE


def _size(run: Run) -> int:
    """Return about how many bytes an outcome sends."""
    outcome = run.outcome
    if isinstance(outcome, Complete):
        return len(outcome.value)
    if outcome.failure is not None:
        return len(outcome.failure.stack) + len(run.job.raw_stacktrace or b"")
    return 0

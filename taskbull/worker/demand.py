"""Decide when to call Redis, how many jobs to ask for, and which outcomes to send. No I/O.

`Demand` counts one queue's slots and calls. `Outbox` holds the outcomes that wait to be sent.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Fail
from taskbull.core.retry import attempts_of, fail_corrupt_job
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.call import is_denial
from taskbull.scripts.cycle import Packed, pack_outcome
from taskbull.worker.run import Run

# Demand. The rules:
#
# - A call asks for as many jobs as there are free slots and never for more, because other workers
#   want jobs as well.
# - One call may always be in flight. Up to `CALLS` are sent when enough has gathered for another,
#   so that Redis works on one call while Python runs the jobs of another.


CALLS = 4
"""Maximum number of concurrent calls."""

BATCH = 50
"""Maximum number of jobs to finish, and to fetch, in one call. Redis serves no other client during
the call."""

_ENOUGH = 25
"""Number of jobs that justify another concurrent call if there are many slots."""


class Allowance(Protocol):
    """A limit on the number of jobs to fetch, such as a circuit breaker."""

    def allowed(self, wanted: int, asked: int) -> int: ...


class Demand:
    """The state of one queue's slots, calls and expected jobs."""

    def __init__(self, concurrency: int, allowance: Allowance | None = None) -> None:
        self._concurrency = concurrency
        self._allowance = allowance
        self.enough = max(1, min(_ENOUGH, concurrency // 2))
        """Number of jobs that justify another concurrent call."""
        self.occupied = 0
        """Number of slots whose job was fetched and has no outcome yet."""
        self.asked = 0
        """Number of jobs that the calls in flight may return."""
        self.under_way = 0
        """Number of calls in flight, including those in recovery."""
        self.wants_jobs = True
        """True if Redis may have jobs that no call has asked for."""
        self.wakes = 0
        """Number of wake-ups so far."""
        self.limited_until = 0.0
        """Time when jobs may be fetched again, by the worker's clock, or 0 if they may be fetched
        now."""
        self.held_until = 0.0
        """Time when the latest `RateLimited` delay ends, by the worker's clock."""
        self.stopping = False

    def room(self) -> int:
        """Return the number of jobs that may be asked for now."""
        if self.stopping or self.limited_until:
            return 0
        free = self._concurrency - self.occupied - self.asked
        return free if self._allowance is None else self._allowance.allowed(free, self.asked)

    def wake(self) -> None:
        """Record that there may be jobs."""
        self.wakes += 1
        self.wants_jobs = True

    def due(self, outcomes: int, apart: int) -> int | None:
        """Return the number of jobs that the next call should ask for, or None if no call is due.

        `outcomes` is the number of outcomes to send. If `apart` of them must be sent one by one,
        the call asks for no jobs.
        """
        under_way = self.under_way
        if apart:
            return 0 if outcomes and not under_way else None
        if under_way >= CALLS:
            return None
        least = self.enough if under_way else 1
        room = self.room()
        if outcomes >= least or (self.wants_jobs and room >= least):
            return min(BATCH, room)
        return None

    def sent(self, want: int) -> None:
        """Record a call that asks for `want` jobs."""
        self.asked += want
        self.under_way += 1

    def answered(self, want: int, taken: int, wakes: int) -> None:
        """Record a reply with `taken` of `want` jobs.

        `wakes` is the number of wake-ups when the call was sent.
        """
        if taken == want:
            self.wants_jobs = True
        elif wakes == self.wakes:  # Otherwise jobs arrived after this call.
            self.wants_jobs = False


# Outcomes on their way to Redis: gathered, packed, and put back if necessary.


BATCH_BYTES = 1 << 20

MOST_CUTS = 8
"""Maximum number of lost connections in a row while one large outcome is sent alone."""

_LARGE = 100_000


class Outbox(deque[Run]):
    """The outcomes to send to Redis, in order.

    This is a deque rather than an object that holds one, because every job appends to it and reads
    its length.
    """

    def __init__(self) -> None:
        super().__init__()
        self.apart = 0
        """Number of outcomes to send one by one, because a call with several was refused."""

    def separate(self) -> None:
        """Send all waiting outcomes one by one."""
        self.apart = len(self)

    def gather(self) -> list[Run]:
        """Remove and return the outcomes for the next call."""
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
        """Put outcomes back at the front."""
        self.extendleft(reversed(batch))
        self.apart += apart

    def withdraw(self, run: Run) -> bool:
        """Remove an outcome if it is next in line, and return True if it was."""
        if not self or self[0] is not run:
            return False
        self.popleft()
        return True


def pack(batch: list[Run], now_ms: int) -> list[Packed]:
    """Encode outcomes for the script. A job whose outcome cannot be encoded fails instead."""
    packed: list[Packed] = []
    for run in batch:
        job, token, outcome = run.job, run.token, run.outcome
        run.written_ms = now_ms
        try:
            attempts = attempts_of(job, run.policy) if isinstance(outcome, Fail) else 0
            packed.append(pack_outcome(job, token, outcome, attempts, now_ms))
        except Exception as fault:  # noqa: BLE001 - no job may crash its worker
            run.outcome = failed = fail_corrupt_job(job, fault)
            # Use a bare job, because the stored options, such as retention, are not reliable.
            packed.append(pack_outcome(Job(id=job.id), token, failed, 1, now_ms))
    return packed


def is_at_fault(run: Run, error: TaskbullError) -> bool:
    """Return True if Redis failed to accept an outcome because of its content or size."""
    if isinstance(error, ServerRefused):
        return error.code == "ERR" and not is_denial(str(error))
    # Some servers and proxies close the connection if they receive too large a command.
    return run.refusals >= MOST_CUTS and _size(run) > _LARGE


def _size(run: Run) -> int:
    """Return the approximate size of an outcome in bytes."""
    outcome = run.outcome
    if isinstance(outcome, Complete):
        return len(outcome.value)
    if outcome.failure is not None:
        return len(outcome.failure.stack) + len(run.job.raw_stacktrace or b"")
    return 0

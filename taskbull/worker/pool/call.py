"""One call of a function in a process of the pool: its jobs, on their way there and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import TypeAlias

import msgspec

from taskbull.errors import TaskbullError
from taskbull.store.backend import Waiter, wake
from taskbull.worker.pool.frames import check_length
from taskbull.worker.pool.messages import Ask, Ended, Order, Standing, encode
from taskbull.worker.running_job import RunningJob, clock_ahead_ms, run_of
from taskbull.worker.threads import Stoppable

_ROOM = 65_536
"""Bytes for what an order has besides the job's data."""

End: TypeAlias = list[Ended] | TaskbullError
"""How a call ends: as the process says of each job, or because there is no process any more."""


class Seat(ABC):
    """A process, as calls see it: it has one of them, or none.

    All is written under the lock of the roster.
    """

    def __init__(self) -> None:
        self.call: PoolCall | None = None
        """What the process runs."""
        self.dismissed = False
        """Whether it is given no other job."""
        self.halted = False
        """Whether that is so because its job is ended from outside."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a message, without waiting; from any thread."""

    @abstractmethod
    def tell(self, standing: Standing) -> None:
        """Let the process know how a job of its call stands; from any thread."""

    @abstractmethod
    def halt(self, call: PoolCall, reason: str) -> None:
        """End a call that runs here: the process is told, then killed after the call's grace."""


class PoolCall:
    """A call of a function, until its end is known.

    `seat` is written under the lock of the roster, `ends` by the thread of the process; `inbox` and
    `waiter` belong to the event loop.
    """

    __slots__ = (
        "clock",
        "context",
        "ends",
        "grace",
        "inbox",
        "is_halted",
        "jobs",
        "number",
        "order",
        "seat",
        "waiter",
        "was_returned",
    )

    def __init__(
        self,
        number: int,
        jobs: Sequence[RunningJob],
        context: Context,
        grace: float,
        clock: Stoppable | None,
    ) -> None:
        self.number = number
        self.jobs = jobs
        more = len(jobs)
        self.order = b"".join([encode(_order(number, more := more - 1, job)) for job in jobs])
        self.context = context
        """That of the running job, or jobs; what the process logs gets the job's fields from it."""
        self.grace = grace
        self.clock = clock
        """What is stopped until a process is free."""
        self.seat: Seat | None = None
        """Where it is: None while it waits for a process."""
        self.ends: list[Ended] = []
        """How its jobs have ended, in their order."""
        self.is_halted = False
        """Whether it is to end."""
        self.was_returned = False
        """Whether a process died before it began the call."""
        self.inbox: deque[Ask | End] = deque()
        self.waiter: Waiter | None = None

    def listen(self) -> None:
        """Let the process know of each job that is cancelled, or whose lock is lost."""
        for place, job in enumerate(self.jobs):
            run_of(job).notify = partial(self._tell, place)

    def late_order(self) -> bytes:
        """Return the order of a call that had to wait; before it, what has happened meanwhile.

        By the same line: the function may ask as soon as it is called.
        """
        return b"".join((*map(encode, self.standings()), self.order))

    def standings(self) -> Iterator[Standing]:
        """Give what the process has to know of its jobs so far."""
        for place, job in enumerate(self.jobs):
            run = run_of(job)
            if run.cancelled is not None or run.lost is not None:
                yield self._standing(place)

    def _standing(self, place: int) -> Standing:
        run = run_of(self.jobs[place])
        return Standing(self.number, place, run.cancelled, run.lost is not None)

    def _tell(self, place: int) -> None:
        # It is noted in the run first, and a call gets its seat before its order is made: one of
        # the two tells.
        if self.seat is not None:
            self.seat.tell(self._standing(place))

    def deliver(self, message: Ask | End) -> None:
        """Take in what was told; in the event loop."""
        self.inbox.append(message)
        if self.waiter is not None:
            wake(self.waiter)

    def wait(self) -> None:
        """Note that it waits for a process again; in the event loop."""
        if self.clock is not None:
            self.clock.stop()

    def begin(self) -> None:
        """Note that a process has it, after it had to wait; in the event loop."""
        if self.clock is not None:
            self.clock.go_on()


def check_size(job: RunningJob) -> None:
    """Refuse a job that no process could be given, before others are called with it."""
    check_length(len(job.job.raw_data) + _ROOM)


def _order(number: int, more: int, running: RunningJob) -> Order:
    job = running.job
    return Order(
        number,
        more,
        running.queue,
        job.id,
        job.name,
        job.raw_data,
        msgspec.json.encode(job.options),
        job.created_ms,
        job.delay_ms,
        job.priority,
        job.attempts_made,
        job.attempts_started,
        job.stalled_count,
        job.previous_delay_ms,
        job.processed_ms,
        job.dedup_key,
        job.scheduler_id,
        job.parent_key,
        job.expiry_lifted,
        run_of(running).token,
        clock_ahead_ms(running),
    )

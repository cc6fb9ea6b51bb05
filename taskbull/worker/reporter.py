"""What happens to the jobs of one queue, told as events."""

from __future__ import annotations

from time import monotonic
from typing import Any, TypeVar, assert_never

from msgspec.structs import replace

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.outcome import (
    Complete,
    Fail,
    GiveBack,
    LimitQueue,
    RetryAfter,
    SnoozeFor,
    Written,
)
from taskbull.worker.lease import Lease
from taskbull.worker.listeners import Endings, Listeners

E = TypeVar("E", bound=events.Event)


class Reporter:
    """Tells the listeners of a worker what happens in one of its queues."""

    def __init__(self, listeners: Listeners, worker_id: str, queue: str) -> None:
        self._listeners = listeners
        self._worker_id = worker_id
        self._queue = queue
        self._started: list[Lease] = []  # not counted yet

    def tell(self, kind: type[E], **fields: Any) -> None:
        """Tell an event; `fields` are those of its kind."""
        self._listeners.tell(kind(worker_id=self._worker_id, queue=self._queue, **fields))

    def started(self, lease: Lease) -> None:
        """Tell that a job begins to run; it is counted with others, within a second."""
        listeners = self._listeners
        if listeners.counters:
            self._started.append(lease)
        if listeners.wanted(events.Started):
            listeners.tell(
                events.Started(worker_id=self._worker_id, queue=self._queue, job=lease.job)
            )

    def lost(self, lease: Lease, reason: str) -> None:
        """Tell that a job's lock is gone."""
        if not lease.ended and lease.began:
            lease.duration = monotonic() - lease.began
        self.tell(events.Lost, job=lease.job, duration=lease.duration, reason=reason)

    def ended(self, lease: Lease, outcome: Written) -> None:
        """Tell that Redis has accepted what became of a job."""
        self.ended_all([(lease, outcome)])

    def ended_all(self, endings: Endings) -> None:
        """Tell that Redis has accepted what became of several jobs."""
        listeners = self._listeners
        if listeners.counters:
            self.count_started()
            listeners.count_ended(self._worker_id, self._queue, endings)
        completed = listeners.wanted(events.Completed)
        for lease, outcome in endings:
            if completed or type(outcome) is not Complete:
                listeners.tell(self._event(lease, outcome))

    def count_started(self) -> None:
        """Count the jobs that have begun to run since the last time."""
        if self._started:
            started, self._started = self._started, []
            self._listeners.count_started(self._worker_id, self._queue, started)

    def _event(self, lease: Lease, outcome: Written) -> events.Event:
        common: Any = {
            "worker_id": self._worker_id,
            "queue": self._queue,
            "duration": lease.duration,
        }
        match outcome:
            case Complete(value):
                job = _after(lease, finished_ms=lease.written_ms, raw_returnvalue=value)
                return events.Completed(job=job, raw_value=value, **common)
            case Fail(failure, verdict):
                reason = failure.reason
                job = _after(lease, finished_ms=lease.written_ms, failed_reason=reason)
                return events.Failed(job=job, failure=failure, verdict=verdict, **common)
            case RetryAfter(failure, delay):
                job = _after(lease, failed_reason=failure.reason)
                return events.Retried(job=job, failure=failure, delay=delay, **common)
            case SnoozeFor(delay) | LimitQueue(delay):
                return events.Released(job=lease.job, delay=delay, **common)
            case GiveBack():
                return events.Released(job=lease.job, **common)
            case _:
                assert_never(outcome)


def _after(lease: Lease, **known: Any) -> Job:
    """Give the job as it stands in Redis after an attempt, as far as that is known here."""
    job = lease.job
    return replace(  # 0.2 µs
        job,
        attempts_made=job.attempts_made + 1,
        attempt_over=True,
        processed_ms=job.processed_ms or lease.written_ms - round(lease.duration * 1000),
        raw_progress=lease.raw_progress or job.raw_progress,
        **known,
    )

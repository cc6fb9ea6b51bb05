"""What happens in a worker, as small values; whoever wants to know listens.

Every event says which worker and which queue; those of a job carry it. That a job has ended is told
when Redis has accepted it, not before: a job whose lock was lost is never reported as completed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, assert_never

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Job
from taskbull.core.outcome import (
    AwaitChildren,
    Complete,
    Fail,
    Failure,
    GiveBack,
    Kind,
    LetGo,
    LimitQueue,
    Loss,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
)
from taskbull.core.validation import refusal

# Those that listeners may know: what `taskbull.events` has.
__all__ = [
    "CircuitClosed",
    "CircuitHalfOpened",
    "CircuitOpened",
    "Completed",
    "Ended",
    "Event",
    "Failed",
    "HeartbeatFailed",
    "JobEvent",
    "LocksRenewed",
    "LoopBlocked",
    "Loss",
    "Lost",
    "ProcessEnded",
    "ProcessRecycled",
    "ReconnectFailed",
    "Recovered",
    "RedisBack",
    "RedisLost",
    "Released",
    "Retried",
    "Stalled",
    "Started",
    "SweepSkipped",
    "Swept",
    "ThreadAbandoned",
]


class Event(Struct, frozen=True):
    """Something that happened in a worker. A listener to this class hears everything."""

    worker_id: str
    queue: str
    """Empty where it concerns all queues of the worker."""


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to a job."""

    job: Job


class Started(JobEvent, frozen=True, kw_only=True):
    """A job was taken and begins to run."""


class Ended(JobEvent, frozen=True, kw_only=True):
    """A job that had been started ended, in whichever way.

    The `job` of `Completed`, `Failed` and `Retried` is as it stands in Redis after the attempt:
    `processed_on`, `processed_by`, `attempts_made`, `progress` and, as it applies, `finished_on`,
    `returnvalue` and `failed_reason`; `attempt` is the one that ended. Its data and older stacks
    are as they were when the job was taken.
    """

    duration: float
    """Seconds for which it ran."""
    outcome: Outcome


class Completed(Ended, frozen=True, kw_only=True):
    """A job is done."""

    outcome: Complete

    @property
    def raw_value(self) -> bytes:
        """What it returned, as JSON."""
        return self.outcome.value

    @property
    def value(self) -> Any:
        """What it returned."""
        return payload.decode(self.outcome.value)


class Failed(Ended, frozen=True, kw_only=True):
    """A job failed for good."""

    outcome: Fail

    @property
    def failure(self) -> Failure:
        """What went wrong in its last attempt."""
        return self.outcome.failure

    @property
    def verdict(self) -> Verdict:
        """Why it is not tried again."""
        return self.outcome.verdict


class Retried(Ended, frozen=True, kw_only=True):
    """An attempt failed; the job runs again after `delay` seconds."""

    outcome: RetryAfter

    @property
    def failure(self) -> Failure:
        """What went wrong."""
        return self.outcome.failure

    @property
    def delay(self) -> float:
        """Seconds until it may run again."""
        return self.outcome.delay


class Released(Ended, frozen=True, kw_only=True):
    """A job waits again with no attempt spent: the worker stops, or the task asked for it."""

    outcome: SnoozeFor | LimitQueue | GiveBack | AwaitChildren

    @property
    def delay(self) -> float:
        """Seconds until it may run again."""
        return self.outcome.delay


class Lost(Ended, frozen=True, kw_only=True):
    """The job's lock is gone, so nothing was written: another worker runs it, or will."""

    outcome: LetGo

    @property
    def loss(self) -> Loss:
        """Why the lock is gone."""
        return self.outcome.loss

    @property
    def reason(self) -> str:
        """Why the lock is gone, as a sentence."""
        return self.outcome.reason


def told_as(kind: Kind) -> type[Ended]:
    """Return the class of the event that tells of an outcome."""
    match kind:
        case Kind.COMPLETED:
            return Completed
        case Kind.FAILED:
            return Failed
        case Kind.RETRIED:
            return Retried
        case Kind.SNOOZED | Kind.LIMITED | Kind.RELEASED | Kind.AWAITS_CHILDREN:
            return Released
        case Kind.LOST:
            return Lost
        case _:
            assert_never(kind)


class Stalled(JobEvent, frozen=True, kw_only=True):
    """A job whose worker is gone was put back by this one; `doomed`: to fail at its next start."""

    doomed: bool


class Swept(Event, frozen=True, kw_only=True):
    """A check for stalled jobs was made, by this worker or, just before, by another."""


class SweepSkipped(Event, frozen=True, kw_only=True):
    """The check for stalled jobs was still busy when the next one was due."""


class LocksRenewed(Event, frozen=True, kw_only=True):
    """The heartbeat renewed the locks of `count` jobs, in `duration` seconds."""

    count: int
    duration: float


class HeartbeatFailed(Event, frozen=True, kw_only=True):
    """The locks of `count` jobs could not be renewed; it is tried again soon."""

    count: int
    reason: str


class LoopBlocked(Event, frozen=True, kw_only=True):
    """The event loop did not move for `duration` seconds; told when it moves again."""

    duration: float
    where: str
    """The line that held it up, as far as known."""
    job: Job | None
    """The job that held it up, as far as known."""


class ThreadAbandoned(JobEvent, frozen=True, kw_only=True):
    """The job's function outlived its time in a thread, and still runs there."""

    abandoned: int
    """How many threads are abandoned now."""


class ProcessEnded(Event, frozen=True, kw_only=True):
    """A process of the pool has died, or had to be ended with its job; another takes its place."""

    pid: int
    reason: str
    job: Job | None
    """The job that ran in it when it died."""


class ProcessRecycled(Event, frozen=True, kw_only=True):
    """A process of the pool has done its share (`process_max_jobs`, `process_max_memory`)."""

    pid: int
    reason: str


class RedisLost(Event, frozen=True, kw_only=True):
    """Redis cannot be reached; running jobs go on, no new ones are taken."""

    reason: str


class ReconnectFailed(Event, frozen=True, kw_only=True):
    """A try to connect to Redis failed; the next one is in `delay` seconds."""

    reason: str
    delay: float


class RedisBack(Event, frozen=True, kw_only=True):
    """Redis is back."""

    duration: float
    """Seconds without it."""
    attempts: int
    """Tries to connect that failed meanwhile."""


class Recovered(Event, frozen=True, kw_only=True):
    """A call whose reply was lost was settled by what is in Redis."""

    adopted: int
    """Jobs that it had taken, and that run here now."""
    settled: int
    """Ended jobs that it had written."""
    resent: int
    """Ended jobs that are written again, because it had not."""


class CircuitOpened(Event, frozen=True, kw_only=True):
    """So many attempts failed in a row that no more jobs are taken for a while."""

    failures: int
    threshold: int


class CircuitHalfOpened(Event, frozen=True, kw_only=True):
    """After `duration` seconds without, a few jobs are tried."""

    duration: float


class CircuitClosed(Event, frozen=True, kw_only=True):
    """The jobs that were tried succeeded: all are taken again."""

    test_job_id: str


E = TypeVar("E", bound=Event)

Listener: TypeAlias = Callable[[E], object]


def check_listener(kind: object, listener: object) -> None:
    """Refuse what is not a kind of event, or cannot listen."""
    if not _is_event(kind):
        raise refusal("event", "be a class of taskbull.events", kind)
    if not callable(listener) or inspect.iscoroutinefunction(listener):
        raise refusal("listener", "be a plain function that takes the event", listener)


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event)

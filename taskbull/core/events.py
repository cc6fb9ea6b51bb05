"""Events that a worker emits, and the check for their listeners.

Every event names its worker and queue. Job events carry the job. A worker emits the event of a
finished job only after Redis has accepted the outcome. So a job that lost its lock is never
reported as completed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, assert_never

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Job
from taskbull.core.outcome import (
    AwaitChildren,
    Complete,
    Discard,
    Fail,
    Failure,
    Kind,
    LimitQueue,
    Loss,
    Outcome,
    Release,
    RetryAfter,
    SnoozeFor,
    Verdict,
)
from taskbull.core.validation import check_bool, is_async, refusal, takes

# The names that `taskbull.events` exports.
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
    """Base class of all events. A listener for this class receives every event."""

    worker_id: str
    queue: str
    """Name of the queue, or an empty string if the event concerns all queues of the worker."""


class JobEvent(Event, frozen=True, kw_only=True):
    """Base class of events about a job."""

    job: Job

    @property
    def ref(self) -> str:
        """String that identifies the job, for `app.job(ref)`."""
        return f"{self.queue}:{self.job.id}"


class Started(JobEvent, frozen=True, kw_only=True):
    """A worker fetched a job and is starting it."""


class Ended(JobEvent, frozen=True, kw_only=True):
    """Base class of events about the end of an attempt, whatever its outcome.

    The `job` of `Completed`, `Failed` and `Retried` has the values that Redis holds after the
    attempt: `processed_on`, `processed_by`, `attempts_made` and `progress`. Depending on the
    outcome, it also has `finished_on`, `returnvalue` or `failed_reason`. `attempt` is the number of
    the attempt that finished. The data and earlier stack traces are those read when the job was
    fetched.
    """

    duration: float
    """Run time of the attempt in seconds."""
    outcome: Outcome
    """Outcome of the attempt."""


class Completed(Ended, frozen=True, kw_only=True):
    """A job completed."""

    outcome: Complete

    @property
    def raw_value(self) -> bytes:
        """Result of the job as JSON."""
        return self.outcome.value

    @property
    def value(self) -> Any:
        """Result of the job, decoded."""
        return payload.decode(self.outcome.value)


class Failed(Ended, frozen=True, kw_only=True):
    """A job failed permanently."""

    outcome: Fail

    @property
    def failure(self) -> Failure:
        """Error of the last attempt."""
        return self.outcome.failure

    @property
    def verdict(self) -> Verdict:
        """Reason why the job is not retried."""
        return self.outcome.verdict


class Retried(Ended, frozen=True, kw_only=True):
    """An attempt failed, and the job will be retried after `delay` seconds."""

    outcome: RetryAfter

    @property
    def failure(self) -> Failure:
        """Error of the attempt."""
        return self.outcome.failure

    @property
    def delay(self) -> float:
        """Seconds until the job may run again."""
        return self.outcome.delay


class Released(Ended, frozen=True, kw_only=True):
    """A job was released without using an attempt.

    Either the worker is stopping, or the task asked for it.
    """

    outcome: SnoozeFor | LimitQueue | Release | AwaitChildren

    @property
    def delay(self) -> float:
        """Seconds until the job may run again."""
        return self.outcome.delay


class Lost(Ended, frozen=True, kw_only=True):
    """A job lost its lock, so its outcome was not stored.

    Another worker is running the job, or will run it.
    """

    outcome: Discard

    @property
    def loss(self) -> Loss:
        """Reason for the loss of the lock."""
        return self.outcome.loss

    @property
    def reason(self) -> str:
        """Reason for the loss of the lock, as a sentence."""
        return self.outcome.reason


def event_class_for(kind: Kind) -> type[Ended]:
    """Return the event class for an outcome."""
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
    """A worker returned a stalled job, whose own worker died, to its queue."""

    doomed: bool
    """True if the next worker that fetches the job will fail it without running it."""


class Swept(Event, frozen=True, kw_only=True):
    """This worker checked for stalled jobs, or another one had done so just before."""


class SweepSkipped(Event, frozen=True, kw_only=True):
    """A check for stalled jobs was skipped because the previous one was still running."""


class LocksRenewed(Event, frozen=True, kw_only=True):
    """The heartbeat renewed the locks of `count` jobs, in `duration` seconds."""

    count: int
    duration: float


class HeartbeatFailed(Event, frozen=True, kw_only=True):
    """The heartbeat could not renew the locks of `count` jobs and will retry soon."""

    count: int
    reason: str


class LoopBlocked(Event, frozen=True, kw_only=True):
    """The event loop was blocked for `duration` seconds. Emitted once it runs again."""

    duration: float
    where: str
    """Line of code that blocked the loop, if known."""
    job: Job | None
    """Job that blocked the loop, if known."""


class ThreadAbandoned(JobEvent, frozen=True, kw_only=True):
    """A job ran out of time, but its function is still running in a thread."""

    abandoned: int
    """Number of threads that are abandoned now."""


class ProcessEnded(Event, frozen=True, kw_only=True):
    """A pool process died or was killed together with its job. A new process replaces it."""

    pid: int
    reason: str
    job: Job | None
    """Job that was running in the process, if any."""


class ProcessRecycled(Event, frozen=True, kw_only=True):
    """A pool process was replaced because of `process_max_jobs` or `process_max_memory`."""

    pid: int
    reason: str


class RedisLost(Event, frozen=True, kw_only=True):
    """The connection to Redis was lost. Running jobs continue, and fetching is paused."""

    reason: str


class ReconnectFailed(Event, frozen=True, kw_only=True):
    """An attempt to connect to Redis failed. The next one follows after `delay` seconds."""

    reason: str
    delay: float


class RedisBack(Event, frozen=True, kw_only=True):
    """The connection to Redis was restored."""

    duration: float
    """Seconds without a connection."""
    attempts: int
    """Number of connection attempts that failed in that time."""


class Recovered(Event, frozen=True, kw_only=True):
    """A call whose reply was lost was resolved by comparing it with the data in Redis."""

    adopted: int
    """Number of jobs that the call had fetched. They now run in this worker."""
    settled: int
    """Number of outcomes that the call had stored."""
    resent: int
    """Number of outcomes that are sent again because the call had not stored them."""


class CircuitOpened(Event, frozen=True, kw_only=True):
    """A circuit breaker opened because `threshold` attempts in a row failed.

    The worker fetches no jobs of the queue for a while.
    """

    failures: int
    """Number of failed attempts in a row."""
    threshold: int
    """Configured threshold."""


class CircuitHalfOpened(Event, frozen=True, kw_only=True):
    """An open circuit breaker lets a few jobs through after `duration` seconds."""

    duration: float


class CircuitClosed(Event, frozen=True, kw_only=True):
    """A circuit breaker closed because its test jobs succeeded. All jobs are fetched again."""

    test_job_id: str
    """Id of the last test job."""


E = TypeVar("E", bound=Event)

Listener: TypeAlias = Callable[[E], object]


SuccessHook: TypeAlias = Callable[[Job, Any], object]
"""Function, plain or async, that is called with a completed job and its result."""

FailureHook: TypeAlias = Callable[[Job, Failure], object]
"""Function, plain or async, that is called with a failed job and its failure."""


def check_listener(kind: object, listener: Any, *, thread: bool = False) -> None:
    """Raise `ConfigurationError` unless the listener can be called with events of this class."""
    if not _is_event(kind):
        raise refusal("event", "be a class of taskbull.events", kind)
    if not callable(listener) or not takes(listener, 1):
        raise refusal("listener", "be a function that takes the event", listener)
    check_bool("thread", thread)
    if thread and is_async(listener):
        raise refusal("listener", "be a sync function to run in a thread", listener)


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Event)

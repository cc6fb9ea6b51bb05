"""Calls to pool processes: their jobs, the requests of those jobs, and their results.

The process decides the outcome of a job whose function raised, and sends it as a `RemoteOutcome`.
This module converts outcomes to remote outcomes and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.failure import reason_of
from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Fail,
    Failure,
    LimitQueue,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.errors import (
    PermanentError,
    ProcessDied,
    RaisedInProcess,
    RateLimited,
    Retry,
    Snooze,
    Steering,
    TaskbullError,
    TransientError,
    WaitForChildren,
)
from taskbull.store.backend import Waiter, wake
from taskbull.worker.pool.messages import (
    Ask,
    Done,
    Ended,
    Fault,
    JobFlags,
    Order,
    Question,
    Raised,
    RemoteOutcome,
    RemoteOutcomeKind,
    Reply,
    check_length,
    encode,
    pack_fault,
)
from taskbull.worker.run import JobPort, Run, Spawning
from taskbull.worker.running_job import RunningJob, clock_ahead_ms, port_of, run_of
from taskbull.worker.threads import Stoppable

# Requests from jobs. Only the worker has the connection to Redis and the job's lock.


async def perform(ask: Ask, job: RunningJob) -> Reply:
    """Perform a job's request. Errors are returned in the reply."""
    port = port_of(job)
    try:
        return Reply(ask.number, await _perform(ask, port, run_of(job)))
    except (WaitForChildren, PermanentError) as error:
        return Reply(ask.number, fault=Fault(type(error).__name__, str(error)))
    except TaskbullError as error:
        return Reply(ask.number, fault=pack_fault(error, of_redis=port.caused(error)))
    except Exception as error:  # noqa: BLE001 - the job gets every error
        return Reply(ask.number, fault=Fault(TaskbullError.__name__, reason_of(error)))


async def _perform(ask: Ask, port: JobPort, run: Run) -> Any:
    argument = ask.argument
    match ask.question:
        case Question.PROGRESS:
            await port.aprogress(argument)
            run.raw_progress = argument
        case Question.LOG:
            await port.alog(argument.decode())
        case Question.UPDATE_DATA:
            await port.aupdate_data(argument)
        case Question.CHILD_RESULTS:
            return await port.achild_results(argument.decode())
        case Question.CHILD_RESULTS_SO_FAR:
            return await port.achild_results_so_far(argument.decode())
        case Question.CHILD_FAILURES:
            failures = await port.achild_failures()
            return [[queue, job_id, reason] for (queue, job_id), reason in failures.items()]
        case Question.DROP_CHILDREN:
            return await port.adrop_children()
    return None


_ROOM = 65_536
"""Bytes reserved in an order for everything except the job's data."""

End: TypeAlias = list[Ended] | TaskbullError
"""The end of a call: a message for each job, or an error if there is no process to run it."""


class ProcessSlot(ABC):
    """A process that runs at most one call at a time.

    The attributes are written under the roster's lock.
    """

    def __init__(self) -> None:
        self.call: PoolCall | None = None
        """The call that the process runs."""
        self.dismissed = False
        """True if the process gets no more calls."""
        self.halted = False
        """True if the process was dismissed because its call was halted."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a message without waiting. Thread-safe."""

    @abstractmethod
    def tell(self, standing: JobFlags) -> None:
        """Notify the process that a job was cancelled or lost its lock. Thread-safe."""

    @abstractmethod
    def halt(self, call: PoolCall, reason: str) -> None:
        """Ask the process to stop the call, and kill the process after the call's grace."""


class PoolCall:
    """One function call in a pool process, for one job or for the jobs of a batch.

    `seat` is written under the roster's lock, and `ends` by the process's thread. `inbox` and
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
        """The context of the running jobs, which adds the job's fields to the process's logs."""
        self.grace = grace
        self.clock = clock
        """The clock to stop while the call waits for a process."""
        self.seat: ProcessSlot | None = None
        """The process that has the call, or `None` while the call waits for one."""
        self.ends: list[Ended] = []
        """The ends of its jobs, in order."""
        self.is_halted = False
        """True if the call was asked to stop."""
        self.was_returned = False
        """True if a process died before it started the call, and the call was put back."""
        self.inbox: deque[Ask | End] = deque()
        self.waiter: Waiter | None = None

    def listen(self) -> None:
        """Notify the process from now on when a job is cancelled or loses its lock."""
        for place, job in enumerate(self.jobs):
            run_of(job).notify = partial(self._tell, place)

    def late_order(self) -> bytes:
        """Return the order of a call that had to wait, preceded by the status of its jobs.

        Both use the same line, because the function may check its status as soon as it runs.
        """
        return b"".join((*map(encode, self.standings()), self.order))

    def standings(self) -> Iterator[JobFlags]:
        """Yield the status of each job that was cancelled or has lost its lock."""
        for place, job in enumerate(self.jobs):
            run = run_of(job)
            if run.cancelled is not None or run.lost is not None:
                yield self._standing(place)

    def _standing(self, place: int) -> JobFlags:
        run = run_of(self.jobs[place])
        return JobFlags(self.number, place, run.cancelled, run.lost is not None)

    def _tell(self, place: int) -> None:
        # The run is updated before this check, and a call gets its seat before its order is built.
        # So either this message or the order carries the new status.
        if self.seat is not None:
            self.seat.tell(self._standing(place))

    def deliver(self, message: Ask | End) -> None:
        """Add a message and wake the waiting task. Call it in the event loop."""
        self.inbox.append(message)
        if self.waiter is not None:
            wake(self.waiter)

    def wait(self) -> None:
        """Stop the clock, because the call waits for a process again. Call it in the event loop."""
        if self.clock is not None:
            self.clock.stop()

    def begin(self) -> None:
        """Resume the clock, because a process has the call. Call it in the event loop."""
        if self.clock is not None:
            self.clock.go_on()


def check_size(job: RunningJob) -> None:
    """Raise `BadFrame` if a job is too large to send to a process.

    Check this before the job joins a batch, so that it cannot fail the other jobs.
    """
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


# Outcomes of jobs whose function raised: encoded in the process, decoded in the worker.


PUT_OFF = RemoteOutcome(RemoteOutcomeKind.PUT_OFF)
TERMINATED = RemoteOutcome(RemoteOutcomeKind.TERMINATED)


def remote_outcome_of(outcome: Written) -> RemoteOutcome:
    """Convert an outcome to a `RemoteOutcome`, without the error, which stays in the process."""
    match outcome:
        case Fail(failure, verdict):
            return RemoteOutcome(RemoteOutcomeKind.FAIL, failure.category, verdict)
        case RetryAfter(failure, delay, remembered):
            return RemoteOutcome(RemoteOutcomeKind.RETRY, failure.category, "", delay, remembered)
        case SnoozeFor(delay):
            return RemoteOutcome(RemoteOutcomeKind.SNOOZE, delay=delay)
        case LimitQueue(delay):
            return RemoteOutcome(RemoteOutcomeKind.LIMIT, delay=delay)
        case AwaitChildren():
            return RemoteOutcome(RemoteOutcomeKind.AWAIT_CHILDREN)
        case _:
            raise TypeError(f"an error does not end in {outcome!r}")


def error_of(raised: Raised) -> Exception:
    """Return the error to raise in the worker for an error in the process.

    A steering error such as `Retry` is recreated, with the `RaisedInProcess` as its cause.
    """
    error = RaisedInProcess(raised.kind, raised.reason, raised.stack, raised.fate)
    word = _word(raised)
    if word is None:
        return error
    word.__cause__ = error
    error.word = word
    return word


def told_by(error: BaseException) -> RaisedInProcess | None:
    """Return the error from the process, or `None` if a middleware has replaced it."""
    if isinstance(error, RaisedInProcess):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, RaisedInProcess) and cause.word is error else None


def outcome_of(raised: RaisedInProcess, run: Run) -> Outcome | None:
    """Return the job's outcome, or `None` if it was stopped or Redis did not accept a write."""
    fate: RemoteOutcome = raised.fate
    match fate.kind:
        case RemoteOutcomeKind.FAIL:
            return Fail(_failure(raised, fate), Verdict(fate.verdict))
        case RemoteOutcomeKind.RETRY:
            return RetryAfter(_failure(raised, fate), fate.delay, fate.remembered_delay)
        case RemoteOutcomeKind.SNOOZE:
            return SnoozeFor(fate.delay)
        case RemoteOutcomeKind.LIMIT:
            return LimitQueue(fate.delay)
        case RemoteOutcomeKind.AWAIT_CHILDREN:
            return run.awaiting_children()
        case RemoteOutcomeKind.PUT_OFF | RemoteOutcomeKind.TERMINATED:
            return None


def _failure(raised: RaisedInProcess, fate: RemoteOutcome) -> Failure:
    return Failure(Category(fate.category), str(raised), raised.stack, raised.word or raised)


def _word(raised: Raised) -> Steering | None:
    make = _WORDS.get(raised.kind)
    return None if make is None else make(raised.reason, raised.fate.delay)


def _retry(reason: str, delay: float) -> Steering:
    return Retry(reason, after=delay)


def _permanent(reason: str, _: float) -> Steering:
    return PermanentError(reason)


def _transient(reason: str, _: float) -> Steering:
    return TransientError(reason)


def _snooze(_: str, delay: float) -> Steering:
    return Snooze(delay)


def _rate_limited(_: str, delay: float) -> Steering:
    return RateLimited(delay)


def _wait_for_children(_: str, __: float) -> Steering:
    return WaitForChildren()


_WORDS: dict[str, Callable[[str, float], Steering]] = {
    f"{kind.__module__}.{kind.__qualname__}": make
    for kind, make in (
        (Retry, _retry),
        (Snooze, _snooze),
        (RateLimited, _rate_limited),
        (WaitForChildren, _wait_for_children),
        (PermanentError, _permanent),
        (TransientError, _transient),
    )
}


# Results of a finished call.


Result: TypeAlias = bytes | Exception | None
"""A job's result as JSON (`None` means null), or the error raised for it."""


class Json(Struct, frozen=True):
    """A result that the process has already encoded as JSON and checked."""

    raw: bytes


def results_of(jobs: Sequence[RunningJob], end: End) -> list[Result]:
    """Return the result of each job; raise the error if the process died."""
    if isinstance(end, TaskbullError):
        raise end
    return [_result(each, run_of(job)) for each, job in zip(end, jobs, strict=True)]


def has_value(end: End | None) -> TypeGuard[list[Ended]]:
    """Return True if a halted function returned a result for at least one job."""
    return isinstance(end, list) and any(isinstance(each, Done) for each in end)


def note_halted(jobs: Sequence[RunningJob], end: End | None) -> None:
    """Record the stack of a function that was halted, if it is known."""
    if isinstance(end, list):
        stack = next((each.stack for each in end if isinstance(each, Raised)), "")
    else:
        stack = "\n".join(getattr(end, "__notes__", ()))
    for job in jobs:
        run_of(job).halted_at = stack


def opened(result: Result, *, read: bool) -> Any:
    """Return a result for the code around the job: decoded if `read`, otherwise as `Json`."""
    if not isinstance(result, bytes):
        return result
    return payload.decode(result) if read else Json(result)


def _result(end: Ended, run: Run) -> Result:
    if any(end.spawned):
        run.spawned = Spawning(*end.spawned)
    if isinstance(end, Done):
        run.cancel_seen = run.cancel_seen or end.cancel_seen
        return end.value
    if end.fate.kind is RemoteOutcomeKind.TERMINATED:
        return ProcessDied(f"the process was told to end, not by its worker: {end.reason}")
    return error_of(end)

"""Requests and results of jobs that run in a pool process.

The process decides the outcome of a job whose function raised, and sends it in `Raised`.
This module converts outcomes and errors for that journey, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

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
    ConnectionLost,
    JobControl,
    LockLost,
    MaybeExecuted,
    PermanentError,
    ProcessDied,
    RaisedInProcess,
    RateLimited,
    Retry,
    ServerRefused,
    ServerUnavailable,
    Snooze,
    TaskbullError,
    TransientError,
    WaitForChildren,
)
from taskbull.worker.pool.messages import Done, Ended, JobRequest, Raised, Reply, check_length
from taskbull.worker.run import Run, Spawning
from taskbull.worker.running_job import RunningJob, port_of, run_of

# Requests from jobs. Only the worker has the connection to Redis and the job's lock.


async def perform(request: JobRequest, job: RunningJob) -> Reply:
    """Perform a job's request. Errors are returned in the reply."""
    port = port_of(job)
    try:
        value = await getattr(port, f"a{request.method}")(*request.arguments)
    except (WaitForChildren, PermanentError) as error:
        return Reply(request.number, error=type(error).__name__, text=str(error))
    except TaskbullError as error:
        return error_reply(request.number, error, of_redis=port.caused(error))
    except Exception as error:  # noqa: BLE001 - the job gets every error
        return Reply(request.number, error=TaskbullError.__name__, text=reason_of(error))
    if request.method == "progress":
        [run_of(job).raw_progress] = request.arguments
    if request.method == "child_failures":  # MessagePack has no tuples as keys.
        value = [[*key, reason] for key, reason in value.items()]
    return Reply(request.number, value)


def error_reply(number: int, error: TaskbullError, *, of_redis: bool = False) -> Reply:
    """Return a reply that raises an error in the process."""
    code = error.code if isinstance(error, ServerRefused) else ""
    return Reply(number, None, type(error).__name__, str(error), code, of_redis)


_IN_REPLIES: Final[dict[str, Callable[[Reply], TaskbullError | JobControl]]] = {
    "WaitForChildren": lambda _: WaitForChildren(),
    "PermanentError": lambda reply: PermanentError(reply.text),
    "ConnectionLost": lambda reply: ConnectionLost(reply.text),
    "MaybeExecuted": lambda reply: MaybeExecuted(reply.text),
    "ServerRefused": lambda reply: ServerRefused(reply.code, reply.text),
    "ServerUnavailable": lambda reply: ServerUnavailable(reply.code, reply.text),
}


def error_in_reply(reply: Reply, queue: str, job_id: str) -> TaskbullError | JobControl:
    """Return the error of a reply. An unknown class becomes a `TaskbullError`."""
    if reply.error == LockLost.__name__:
        return LockLost(queue, job_id)
    make = _IN_REPLIES.get(reply.error)
    return TaskbullError(reply.text) if make is None else make(reply)


_ROOM = 65_536
"""Bytes reserved in a message for everything except the job's data."""


def check_size(job: RunningJob) -> None:
    """Raise `BadFrame` if a job is too large to send to a process.

    Check this before the job joins a batch, so that it cannot fail the other jobs.
    """
    check_length(len(job.job.raw_data) + _ROOM)


# Outcomes of jobs whose function raised: encoded in the process, decoded in the worker.


def outcome_fields(outcome: Written) -> dict[str, Any]:
    """Return the fields of `Raised` that describe an outcome, without the error."""
    match outcome:
        case Fail(failure, verdict):
            return {"outcome": "fail", **_failure_fields(failure), "verdict": verdict}
        case RetryAfter(failure, delay, remembered):
            return {
                "outcome": "retry",
                **_failure_fields(failure),
                "delay": delay,
                "remembered_delay": remembered,
            }
        case SnoozeFor(delay):
            return {"outcome": "snooze", "delay": delay}
        case LimitQueue(delay):
            return {"outcome": "limit", "delay": delay}
        case AwaitChildren():
            return {"outcome": "await_children"}
        case _:
            raise TypeError(f"an error does not end in {outcome!r}")


def _failure_fields(failure: Failure) -> dict[str, Any]:
    return {"category": failure.category, "is_expected": failure.is_expected}


def error_of(raised: Raised) -> Exception:
    """Return the error to raise in the worker for an error in the process.

    A steering error such as `Retry` is recreated, with the `RaisedInProcess` as its cause.
    """
    error = RaisedInProcess(raised.kind, raised.reason, raised.stack, raised)
    make = _STEERING.get(raised.kind)
    if make is None:
        return error
    error.steering = steering = make(raised)
    steering.__cause__ = error
    return steering


_STEERING: Final[dict[str, Callable[[Raised], JobControl]]] = {
    "taskbull.errors.Retry": lambda raised: Retry(raised.reason, after=raised.delay),
    "taskbull.errors.Snooze": lambda raised: Snooze(raised.delay),
    "taskbull.errors.RateLimited": lambda raised: RateLimited(raised.delay),
    "taskbull.errors.WaitForChildren": lambda _: WaitForChildren(),
    "taskbull.errors.PermanentError": lambda raised: PermanentError(raised.reason),
    "taskbull.errors.TransientError": lambda raised: TransientError(raised.reason),
}


def remote_error_of(error: BaseException) -> RaisedInProcess | None:
    """Return the error from the process, or `None` if a middleware has replaced it."""
    if isinstance(error, RaisedInProcess):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, RaisedInProcess) and cause.steering is error else None


def outcome_of(error: RaisedInProcess, run: Run) -> Outcome | None:
    """Return the job's outcome, or `None` if it was stopped or Redis did not accept a write."""
    raised: Raised = error.raised
    match raised.outcome:
        case "fail":
            return Fail(_failure(error, raised), Verdict(raised.verdict))
        case "retry":
            return RetryAfter(_failure(error, raised), raised.delay, raised.remembered_delay)
        case "snooze":
            return SnoozeFor(raised.delay)
        case "limit":
            return LimitQueue(raised.delay)
        case "await_children":
            return run.awaiting_children()
        case "release" | "terminated":
            return None


def _failure(error: RaisedInProcess, raised: Raised) -> Failure:
    return Failure(
        Category(raised.category),
        str(error),
        error.stack,
        error.steering or error,
        raised.is_expected,
    )


# Results of a finished call.


End: TypeAlias = list[Ended] | TaskbullError
"""The end of a call: a message for each job, or an error if there is no process to run it."""

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
    if end.outcome == "terminated":
        return ProcessDied(f"the process was told to end, not by its worker: {end.reason}")
    return error_of(end)

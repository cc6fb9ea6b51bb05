"""Every exception that taskbull raises, and those that a task raises to steer its worker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any


class TaskbullError(Exception):
    """The root of all errors that taskbull raises."""


class ConfigurationError(TaskbullError, ValueError):
    """An option, a setting or an address is not valid; nothing was done."""


class SerializationError(TaskbullError, ValueError):
    """A value cannot be stored as JSON that Python and Node read alike; nothing was written."""


class ConnectionLost(TaskbullError):
    """Redis could not be reached. The command was not executed: it may be sent again."""


class MaybeExecuted(TaskbullError):
    """The command was written, but its reply never came: Redis may have executed it.

    Not a `ConnectionLost`, so that code which retries on that one never does a thing twice.
    """


class ServerRefused(TaskbullError):
    """Redis answered with an error and did not execute the command.

    `code` is the first word of the answer, such as `OOM`, `NOPERM` or `WRONGTYPE`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ServerUnavailable(ServerRefused, ConnectionLost):
    """Redis is there but cannot serve for now (`LOADING`, `BUSY`, `READONLY`, …).

    The command was not executed, so it is a `ConnectionLost`, too: it may be sent again.
    """


class InvalidReply(TaskbullError):
    """Redis sent a reply that does not fit the command: it may have executed it.

    The server is damaged, or something else answers in its place, such as a proxy.
    """


class OutOfTurn(TaskbullError):
    """The call that goes before this one was not executed, and so neither was this."""


class EnqueueError(TaskbullError):
    """Jobs could not be added. `spec` holds them, to be kept and enqueued again.

    Each has a ticket, so that enqueueing it again, also several times, adds it once.
    `may_be_added`: the reply for some of them was lost, so that Redis may have them; for these,
    that holds for ten minutes, after which another `EnqueueError` says so. `added` has the handles
    of the jobs of the same bulk that were added.
    """

    def __init__(
        self,
        message: str,
        spec: Sequence[Any],
        *,
        may_be_added: bool = False,
        added: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.spec = list(spec)
        self.may_be_added = may_be_added
        self.added = list(added)

    def __reduce__(self) -> tuple[Any, ...]:  # handles hold connections, and stay behind
        return _enqueue_error, (str(self), self.spec, self.may_be_added)


class JobNotFound(TaskbullError):
    """There is no such job in the queue: it was never added, or it was removed."""

    def __init__(self, queue: str, job_id: str, hint: str = "") -> None:
        super().__init__(f"Job {job_id} does not exist in queue {queue}{hint and f': {hint}'}")
        self.queue = queue
        self.job_id = job_id


class ScheduleNotFound(TaskbullError):
    """There is no such schedule in the queue: it was never written, or it was removed."""

    def __init__(self, queue: str, schedule_id: str, hint: str = "") -> None:
        super().__init__(
            f"Schedule {schedule_id} does not exist in queue {queue}{hint and f': {hint}'}"
        )
        self.queue = queue
        self.schedule_id = schedule_id


class LockLost(TaskbullError):
    """This worker no longer holds the job's lock; another one may be running it."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(f"This worker no longer holds the lock of job {job_id} in queue {queue}")
        self.queue = queue
        self.job_id = job_id


class WrongState(TaskbullError):
    """The job is not in a state in which this can be done; nothing was changed.

    `code` is BullMQ's number for the reason.
    """

    def __init__(self, queue: str, job_id: str, problem: str, code: int) -> None:
        super().__init__(f"Job {job_id} in queue {queue} {problem}")
        self.queue = queue
        self.job_id = job_id
        self.code = code


class JobsActive(TaskbullError):
    """The queue has running jobs, and is not removed without force."""

    def __init__(self, queue: str, count: int) -> None:
        jobs = "1 running job" if count == 1 else f"{count} running jobs"
        super().__init__(f"Queue {queue} has {jobs}: wait until there are none, or use force")
        self.queue = queue
        self.count = count


class CorruptJob(TaskbullError, ValueError):
    """A field of a job in Redis cannot be read; no attempt that remains would help."""

    def __init__(self, job_id: str, field: str, problem: str) -> None:
        super().__init__(f"Field {field} of job {job_id} cannot be read: {problem}")
        self.job_id = job_id
        self.field = field


class InvalidArguments(TaskbullError, TypeError, ValueError):
    """A call's arguments, or a job's data, do not fit the signature or the types of the task."""


class JobFailed(TaskbullError):
    """The job whose result was asked for has failed for good.

    `reason` is the message of its last error, `stacktrace` holds the stacks of its attempts, oldest
    first, and `attempts` is their number; 0 if the job was removed when it failed.
    """

    def __init__(
        self,
        queue: str,
        job_id: str,
        reason: str,
        stacktrace: Sequence[str] = (),
        attempts: int = 0,
    ) -> None:
        super().__init__(f"Job {job_id} in queue {queue} failed: {reason}")
        self.queue = queue
        self.job_id = job_id
        self.reason = reason
        self.stacktrace = list(stacktrace)
        self.attempts = attempts


class ProcessDied(TaskbullError):
    """The process of the pool in which a job ran has died: only that attempt failed.

    The message names the signal or the exit code; the stored stack has that of the process, if it
    could still be written.
    """


class ProcessUnavailable(TaskbullError):
    """No process of the pool can be started now, so that a job could not run."""


class RaisedInProcess(TaskbullError):
    """What a function raised in a process of the pool, as middleware and listeners see it.

    `kind` is the class of the error, such as `builtins.KeyError`, `stack` its stack as text; the
    message says both in a sentence. The error itself stays in its process. The words by which a
    task steers its worker are raised as themselves.
    """

    def __init__(self, kind: str, reason: str, stack: str, fate: Any = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.stack = stack
        self.fate = fate
        self.word: Exception | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RaisedInProcess, (self.kind, str(self), self.stack)


class Terminated(SystemExit):
    """Raised inside a task of the process pool when it has to end now.

    Because its time is up, because the job was cancelled, or because the worker stops. It has the
    task's `grace` to clean up, in `finally` for one; then its process is killed. It is not an
    `Exception`, so that a task which catches all of those ends nevertheless.
    """


class JobCancelled(JobFailed):
    """The job whose result was asked for was cancelled."""


class JobExpired(JobFailed):
    """The job whose result was asked for did not begin in time."""


class TaskNotRegistered(TaskbullError):
    """A job is for a task that this app does not have."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class BlockingCallWarning(RuntimeWarning):
    """A call that waits for Redis was made in an event loop, which stands still meanwhile."""


class Steering(Exception):
    """The base of what a task raises to tell its worker what to do with the job."""


class PermanentError(Steering):
    """The job failed for good: no attempt that remains would help."""


UnrecoverableError = PermanentError
"""BullMQ's name for `PermanentError`."""


class TransientError(Steering):
    """The job failed for a passing reason: it is retried with backoff while attempts remain."""


class Retry(Steering):
    """Run the job again after exactly `after` seconds; an attempt is spent."""

    def __init__(
        self, message: str = "the task asked for a retry", *, after: float | timedelta = 0
    ) -> None:
        super().__init__(message)
        self.after = _seconds("Retry(after=…)", after)


class Snooze(Steering):
    """Run the job again after `seconds`; no attempt is spent."""

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = _seconds("Snooze(…)", seconds)
        super().__init__(f"the task asked to be run again in {self.seconds:g} s")


class RateLimited(Steering):
    """Put the job back and let the whole queue wait `seconds`; no attempt is spent."""

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = _seconds("RateLimited(…)", seconds)
        super().__init__(f"the task asked its queue to wait {self.seconds:g} s")


class WaitForChildren(Steering):
    """Run the job again when its children have ended; no attempt is spent."""

    def __init__(self) -> None:
        super().__init__("the task waits for its children")


class CancelRequested(Steering, TaskbullError):
    """The running job was cancelled: what `current_job().check()` raises, and ends the job."""

    def __init__(self, message: str = "by the task itself") -> None:
        super().__init__(message)


def _enqueue_error(message: str, spec: list[Any], may_be_added: bool) -> EnqueueError:
    return EnqueueError(message, spec, may_be_added=may_be_added)


_CENTURY = 100 * 365 * 86_400


def _seconds(word: str, value: object) -> float:
    # Checked when raised, where the author of the task sees it, not later in the worker.
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise ConfigurationError(f"{word} takes seconds or a timedelta, not {value!r}")
    if not 0 <= seconds <= _CENTURY:  # NaN fails this too
        raise ConfigurationError(f"{word} takes 0 s or more, up to 100 years, not {value!r}")
    return float(seconds)

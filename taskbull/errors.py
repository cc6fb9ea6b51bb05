"""Exceptions that taskbull raises, and exceptions that a task raises to control its job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final


class TaskbullError(Exception):
    """Base class of all errors that taskbull raises."""


class ConfigurationError(TaskbullError, ValueError):
    """An option, a setting or an address is invalid. Nothing was changed."""


class SerializationError(TaskbullError, ValueError):
    """A value cannot be stored as JSON that Python and Node read alike.

    Nothing was written.
    """


class ConnectionLost(TaskbullError):
    """Redis could not be reached.

    The command was not executed, so it is safe to send it again.
    """


class MaybeExecuted(TaskbullError):
    """A command was sent, but its reply was lost. Redis may have executed it.

    This is not a `ConnectionLost`, so code that retries on `ConnectionLost` never repeats an
    action.
    """


class ServerRefused(TaskbullError):
    """Redis replied with an error and did not execute the command.

    Attributes:
        code: First word of the reply, such as `OOM`, `NOPERM` or `WRONGTYPE`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ServerUnavailable(ServerRefused, ConnectionLost):
    """Redis is running but cannot serve requests now (`LOADING`, `BUSY`, `READONLY`, …).

    The command was not executed, so this is also a `ConnectionLost`: it is safe to send it again.
    """


class InvalidReply(TaskbullError):
    """Redis sent a reply that does not match the command, which may have been executed.

    Either the server is damaged, or something else replies in its place, such as a proxy.
    """


class OutOfTurn(TaskbullError):
    """A call was not executed because the preceding call was not executed."""


class EnqueueError(TaskbullError):
    """Jobs could not be added.

    Every job in `spec` has a ticket, so enqueueing it again adds it only once, even if you repeat
    that.

    Attributes:
        spec: The jobs that were not added. Keep them and pass them to `app.enqueue` later.
        may_be_added: True if the reply for some of the jobs was lost, so Redis may have them. Those
            can be enqueued again for ten minutes. After that, another `EnqueueError` is raised.
        added: Handles of the jobs from the same call that were added.

    Example:
        >>> try:
        ...     app.enqueue(jobs)
        ... except EnqueueError as error:
        ...     app.enqueue(error.spec)
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

    def __reduce__(self) -> tuple[Any, ...]:  # Handles hold connections, so they are not pickled.
        return _enqueue_error, (str(self), self.spec, self.may_be_added)


class JobNotFound(TaskbullError):
    """The job does not exist in the queue.

    It was never added, or it was removed.
    """

    def __init__(self, queue: str, job_id: str, hint: str = "") -> None:
        super().__init__(f"Job '{job_id}' not found in queue '{queue}'{hint and f': {hint}'}")
        self.queue = queue
        self.job_id = job_id


class ScheduleNotFound(TaskbullError):
    """The schedule does not exist in the queue.

    It was never written, or it was removed.
    """

    def __init__(self, queue: str, schedule_id: str, hint: str = "") -> None:
        super().__init__(
            f"Schedule '{schedule_id}' not found in queue '{queue}'{hint and f': {hint}'}"
        )
        self.queue = queue
        self.schedule_id = schedule_id


class WorkerNotFound(TaskbullError):
    """No taskbull worker with this id is running, or it publishes no record."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"No taskbull worker '{worker_id}' is running: `taskbull workers` lists the ids. A "
            "worker with records=False, or in Node, cannot be made quiet"
        )
        self.worker_id = worker_id


class LockLost(TaskbullError):
    """This worker no longer holds the job's lock. Another worker may be running the job."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(
            f"This worker no longer holds the lock of job '{job_id}' in queue '{queue}'"
        )
        self.queue = queue
        self.job_id = job_id


class WrongState(TaskbullError):
    """The job's state does not allow this action. Nothing was changed.

    Attributes:
        code: BullMQ's number for the reason.
    """

    def __init__(self, queue: str, job_id: str, problem: str, code: int, action: str = "") -> None:
        job = f"job '{job_id}' in queue '{queue}'"
        message = f"Cannot {action} {job}: it {problem}" if action else f"J{job[1:]} {problem}"
        super().__init__(message)
        self.queue = queue
        self.job_id = job_id
        self.code = code


class JobsActive(TaskbullError):
    """The queue has running jobs, so it cannot be removed without `force`."""

    def __init__(self, queue: str, count: int) -> None:
        jobs = "1 running job" if count == 1 else f"{count} running jobs"
        super().__init__(f"Queue '{queue}' has {jobs}: wait until they finish, or use force")
        self.queue = queue
        self.count = count


class CorruptJob(TaskbullError, ValueError):
    """A field of a job in Redis cannot be read. Retrying the job does not help."""

    def __init__(self, job_id: str, field: str, problem: str) -> None:
        super().__init__(f"Cannot read field '{field}' of job '{job_id}': {problem}")
        self.job_id = job_id
        self.field = field


class InvalidArguments(TaskbullError, TypeError, ValueError):
    """The arguments of a call, or a job's data, do not match the task's signature or types."""


_TRACEBACK: Final = "Traceback (most recent call last):"
_RETRY: Final = f"{__name__}.Retry"
_CLASS: Final = re.compile(r"((?:\w+\.)*[A-Z]\w*)(?=:|$)")
_GROUP: Final = f"  + Exception Group {_TRACEBACK}"


def _class_in(stack: str) -> str | None:
    """Return the class of the error that a stack trace ends with, if it is one."""
    lines = stack.splitlines()
    starts = [number for number, line in enumerate(lines) if line in {_TRACEBACK, _GROUP}]
    if starts and lines[starts[-1]] == _GROUP:
        lines = _lines_of_group(lines[starts[-1] + 1 :])
    elif starts:
        lines = lines[starts[-1] + 1 :]
    elif not any(line.startswith("    at ") for line in lines):
        found = _CLASS.match(stack)  # An error without a stack, or another text.
        return found[1] if found else None
    names = (line.partition(":")[0] for line in lines if not line.startswith(" "))
    name = next(names, "")
    if name == _RETRY and len(starts) > 1:
        return _class_in("\n".join(stack.splitlines()[: starts[-1]]))
    return name if name and not any(each.isspace() for each in name) else None


def _lines_of_group(lines: list[str]) -> list[str]:
    """Return the lines that begin with a group's class, or with that of its only member."""
    members = {at: line.strip(" +-") for at, line in enumerate(lines) if line.lstrip()[:2] == "+-"}
    members = {at: number for at, number in members.items() if number}  # Not the line at the end.
    has_one = set(members.values()) == {"1"}  # Or the member is such a group.
    texts = [line.lstrip()[2:] for line in lines]  # Each line begins with a vertical bar.
    if has_one:
        texts = texts[max(members) + 1 :]
        if _TRACEBACK in texts:
            texts = texts[len(texts) - texts[::-1].index(_TRACEBACK) :]
    return texts


class JobFailed(TaskbullError):
    """The job has failed permanently, so it has no result.

    Attributes:
        queue: Name of the job's queue.
        job_id: The job's id.
        reason: Message of the last error.
        stacktrace: Tracebacks of the attempts, oldest first.
        attempts: Number of attempts, or 0 if the job was removed when it failed.
    """

    @property
    def error_type(self) -> str | None:
        """Class of the last error, such as `shop.cart.CartError`, or None if it is unknown.

        It is read from the last stack trace, which Python and Node write. A job that did not raise,
        for example because it expired, has none. An exception group with one error has that
        error's class, and a `Retry` raised from another error has the class of that one.
        """
        return _class_in(self.stacktrace[-1]) if self.stacktrace else None

    def __init__(
        self,
        queue: str,
        job_id: str,
        reason: str,
        stacktrace: Sequence[str] = (),
        attempts: int = 0,
    ) -> None:
        super().__init__(f"Job '{job_id}' in queue '{queue}' failed: {reason}")
        self.queue = queue
        self.job_id = job_id
        self.reason = reason
        self.stacktrace = list(stacktrace)
        self.attempts = attempts


class ProcessDied(TaskbullError):
    """The pool process that ran a job has died. Only that attempt failed.

    The message names the signal or the exit code. The stored traceback includes the process's own,
    if it could still be written.
    """


class ProcessUnavailable(TaskbullError):
    """No pool process can be started now, so the job could not run."""


class RaisedInProcess(TaskbullError):
    """An error that a function raised in a pool process, as middleware and listeners see it.

    The original error stays in its process. Exceptions derived from `JobControl` are raised
    unchanged.

    Attributes:
        kind: Class of the original error, such as `builtins.KeyError`.
        stack: Its traceback as text.
    """

    def __init__(self, kind: str, reason: str, stack: str, raised: Any = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.stack = stack
        self.raised = raised
        self.steering: Exception | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RaisedInProcess, (self.kind, str(self), self.stack)


class Terminated(SystemExit):
    """Raised inside a task in the process pool when the task must stop now.

    The reason is a timeout, a cancelled job or a stopping worker. The task has `grace` seconds to
    clean up, for example in `finally`. After that, its process is killed. This is not an
    `Exception`, so `except Exception` in a task does not catch it.
    """


class JobCancelled(JobFailed):
    """The job was cancelled, so it has no result."""


class JobExpired(JobFailed):
    """The job did not start before it expired, so it has no result."""


class TaskNotRegistered(TaskbullError):
    """A job belongs to a task that this app does not have."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class BlockingCallWarning(RuntimeWarning):
    """A blocking Redis call was made in an event loop, which cannot run until it returns."""


class NotRecorded(TaskbullError):
    """A call needs Redis, but the app records its jobs or runs them inline."""


class UnannotatedWarning(UserWarning):
    """A task gets an argument as another type, because its parameter has no annotation."""


class JobControl(Exception):
    """Base class of exceptions that a task raises to control its job."""


class PermanentError(JobControl):
    """Fail the job permanently, without further attempts.

    Example:
        >>> raise PermanentError("the account was closed")
    """


UnrecoverableError = PermanentError
"""BullMQ's name for `PermanentError`."""


class TransientError(JobControl):
    """Fail the attempt for a temporary reason. Retried with backoff if attempts remain."""


ASKED_FOR_RETRY: Final = "the task asked for a retry"


class Retry(JobControl):
    """Run the job again after a fixed delay. This uses up an attempt.

    Args:
        message: Reason, stored as the error of this attempt. Without it, the reason names the error
            that is being handled, if there is one.
        after: Delay in seconds, or a `timedelta`.

    Raises:
        ConfigurationError: If the delay is negative or longer than 100 years.

    Example:
        >>> raise Retry("the server is busy", after=30)
    """

    def __init__(self, message: str = ASKED_FOR_RETRY, *, after: float | timedelta = 0) -> None:
        super().__init__(message)
        self.after = _seconds("Retry(after=…)", after)


class Snooze(JobControl):
    """Run the job again after a delay. This does not use up an attempt.

    Args:
        seconds: Delay in seconds, or a `timedelta`.

    Raises:
        ConfigurationError: If the delay is negative or longer than 100 years.

    Example:
        >>> raise Snooze(60)
    """

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = _seconds("Snooze(…)", seconds)
        super().__init__(f"the task asked to be run again in {self.seconds:g} s")


class RateLimited(JobControl):
    """Put the job back and rate-limit its whole queue. This does not use up an attempt.

    Args:
        seconds: Time until the queue starts jobs again, in seconds or as a `timedelta`.

    Raises:
        ConfigurationError: If the duration is negative or longer than 100 years.

    Example:
        >>> raise RateLimited(float(response.headers["Retry-After"]))
    """

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = _seconds("RateLimited(…)", seconds)
        super().__init__(f"the task asked its queue to wait {self.seconds:g} s")


class WaitForChildren(JobControl):
    """Run the job again when its children have finished. This does not use up an attempt.

    The task is then called again from its beginning.
    """

    def __init__(self) -> None:
        super().__init__("the task waits for its children")


class StepMismatch(PermanentError, TaskbullError):
    """A job that ran again called different steps, so its stored results do not fit.

    The job fails permanently. `retry(id, reset_steps=True)` lets it start from the beginning.

    Attributes:
        stored: The step that an earlier run called, in words.
        called: The step that this run called instead, in words.
    """

    def __init__(self, stored: str, called: str) -> None:
        super().__init__(
            f"An earlier run of this job called {stored}, and this run called {called} instead. "
            "Retry the job with reset_steps=True to start from the beginning"
        )
        self.stored = stored
        self.called = called

    def __reduce__(self) -> tuple[Any, ...]:
        return StepMismatch, (self.stored, self.called)


class SignalTimeout(TaskbullError, TimeoutError):
    """No signal arrived before the timeout of `await_signal` or `wait_signal`."""


class CancelRequested(JobControl, TaskbullError):
    """Cancel the running job. `current_job().check()` raises this after a cancel request.

    A task may also raise it to cancel its own job.
    """

    def __init__(self, message: str = "by the task itself") -> None:
        super().__init__(message)


def _enqueue_error(message: str, spec: list[Any], may_be_added: bool) -> EnqueueError:
    return EnqueueError(message, spec, may_be_added=may_be_added)


_CENTURY = 100 * 365 * 86_400


def _seconds(word: str, value: object) -> float:
    # Validate in the task, where its author sees the error, not later in the worker.
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise ConfigurationError(f"{word} must be seconds or a timedelta, not {value!r}")
    if not 0 <= seconds <= _CENTURY:  # NaN fails this as well.
        raise ConfigurationError(f"{word} must be from 0 s to 100 years, not {value!r}")
    return float(seconds)

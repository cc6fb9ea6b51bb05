"""Every exception that taskbull raises, and those that a task raises to steer its worker."""

from __future__ import annotations


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


class ServerUnavailable(ServerRefused):
    """Redis is there but cannot serve for now (`LOADING`, `BUSY`, `CLUSTERDOWN`, …)."""


class JobNotFound(TaskbullError):
    """There is no such job in the queue."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(f"Job {job_id} does not exist in queue {queue}")
        self.queue = queue
        self.job_id = job_id


class LockLost(TaskbullError):
    """This worker no longer holds the job's lock; another one may be running it."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(f"The lock of job {job_id} in queue {queue} is no longer ours")
        self.queue = queue
        self.job_id = job_id


class Steering(Exception):  # noqa: N818 - raised by tasks as a word to the worker, not as an error
    """The base of what a task raises to tell its worker what to do with the job."""


class PermanentError(Steering):
    """The job failed for good: no attempt that remains would help."""


UnrecoverableError = PermanentError
"""BullMQ's name for `PermanentError`."""


class TransientError(Steering):
    """The job failed for a passing reason: it is retried with backoff while attempts remain."""


class Retry(Steering):
    """Run the job again after exactly `after` seconds; an attempt is spent."""

    def __init__(self, message: str = "the task asked for a retry", *, after: float = 0) -> None:
        super().__init__(message)
        self.after = after


class Snooze(Steering):
    """Run the job again after `seconds`; no attempt is spent."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the task asked to be run again in {seconds} s")
        self.seconds = seconds


class RateLimited(Steering):
    """Put the job back and let the whole queue wait `seconds`; no attempt is spent."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the task asked its queue to wait {seconds} s")
        self.seconds = seconds

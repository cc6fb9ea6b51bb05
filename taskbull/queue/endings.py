"""How a job has ended: asking for it, and reading it from the queue's event stream.

Three facts make a wait sure. The place in the stream is taken *before* the job is looked at, so an
ending falls either before the look or behind the place. A job that was removed when it ended is not
to be looked at any more, but its event stands in the stream for a while. And whoever waits looks
again now and then, because a stream is trimmed, and some ways of removing a job say nothing.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from taskbull.core.cancelling import is_cancelled
from taskbull.core.expiry import is_expired
from taskbull.core.job import Ending, Job
from taskbull.core.keys import QueueKeys
from taskbull.errors import JobCancelled, JobExpired, JobFailed, JobNotFound
from taskbull.scripts.call import Call, Steps, again
from taskbull.scripts.events import Ends, find_ending
from taskbull.scripts.inspection import get_ending, get_job

Told: TypeAlias = Ending | JobNotFound
"""What can be told about a job that runs no more."""

LOOK_AGAIN = 30.0
"""Seconds between two looks at a job whose events may have been missed."""

_GONE: Final = (
    "it was never added, or it has ended and was removed since. How many ended jobs stay, and for "
    "how long, is said by keep_completed and keep_failed (of an app: the last 10,000 completed "
    "ones, for a day)"
)


def look(queue: QueueKeys, job_id: str) -> Call[Told | None]:
    """Find out how a job has ended, or that it is not there; None: not yet ended."""
    call = get_ending(queue, job_id)

    def read(reply: Any) -> Told | None:
        try:
            return call.parse(reply)
        except JobNotFound as error:
            return error

    return Call(call.script, call.keys, call.args, read)


def told_by(queue: QueueKeys, ends: Ends) -> list[tuple[str, Told]]:
    """Return what the ends that were read tell of each job."""
    return [
        (job_id, JobNotFound(queue.queue, job_id) if ending is None else ending)
        for job_id, ending in ends.endings
    ]


def gone(queue: QueueKeys, job_id: str) -> JobNotFound:
    """Return the error of a job whose end nobody can tell any more."""
    return JobNotFound(queue.queue, job_id, _GONE)


def settle(queue: QueueKeys, job_id: str, told: Told) -> Steps[Ending]:
    """Return the ending, also of a job that was removed when it ended; raise `JobNotFound`."""
    if isinstance(told, Ending):
        return told
    ending: Ending | None = yield from again(find_ending(queue, job_id))
    if ending is None:
        raise gone(queue, job_id)
    return ending


def failure(queue: QueueKeys, job_id: str, reason: str) -> Steps[JobFailed]:
    """Return the error of a job that failed, with what is still known of it."""
    kind = failure_kind(reason)
    job: Job | None = yield from again(get_job(queue, job_id))
    if job is None:
        return kind(queue.queue, job_id, reason)
    return kind(queue.queue, job_id, reason, job.stacktrace, job.attempts_made)


def failure_kind(reason: str) -> type[JobFailed]:
    """Return the class of the error of a job that failed for this reason."""
    if is_cancelled(reason):
        return JobCancelled
    return JobExpired if is_expired(reason) else JobFailed


def not_in_time(queue: QueueKeys, job_id: str, timeout: float | None) -> TimeoutError:
    """Return the error of a wait that took too long."""
    limit = "" if timeout is None else f" within {timeout:g} s"
    return TimeoutError(f"Job {job_id} in queue {queue.queue} has not ended{limit}")

"""How a job has ended: asking for it, and reading it from the queue's event stream.

Three facts make a wait sure. The place in the stream is taken *before* the job is looked at, so an
ending falls either before the look or behind the place. A job that was removed when it ended is not
to be looked at any more, but its event stands in the stream for a while. And whoever waits looks
again now and then, because a stream is trimmed, and some ways of removing a job say nothing.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.errors import JobFailed, JobNotFound
from taskbull.queue.event_stream import AT_ONCE
from taskbull.scripts.call import Call, Command, Steps, Word, again
from taskbull.scripts.inspection import Ending, get_ending, get_job
from taskbull.scripts.replies import text

T = TypeVar("T")

Told: TypeAlias = Ending | JobNotFound
"""What can be told about a job that runs no more."""

LOOK_AGAIN = 30.0
"""Seconds between two looks at a job whose events may have been missed."""

_PAGES = 12
"""How much of the stream is searched for a job that is gone: all of BullMQ's 10,000 events."""

_GONE: Final = (
    "it was never added, or it has ended and was removed since. How many ended jobs stay, and for "
    "how long, is said by keep_completed and keep_failed (of an app: the last 10,000 completed "
    "ones, for a day)"
)

_COMPLETED: Final = b"completed"
_FAILED: Final = b"failed"
_REMOVED: Final = b"removed"
_TELLING: Final = frozenset({_COMPLETED, _FAILED, _REMOVED})


def look(queue: QueueKeys, job_id: str) -> Call[Told | None]:
    """Find out how a job has ended, or that it is not there; None: not yet ended."""
    call = get_ending(queue, job_id)

    def read(reply: Any) -> Told | None:
        try:
            return call.parse(reply)
        except JobNotFound as error:
            return error

    return Call(call.script, call.keys, call.args, read)


def told_by(queue: QueueKeys, reply: Any, after: str) -> tuple[str, list[tuple[str, Told]]]:
    """Read events: the place behind the last of them, and which jobs have ended, and how."""
    if not reply:
        return after, []
    [[_, entries]] = reply
    told: list[tuple[str, Told]] = []
    for _, flat in entries:
        if flat[1] in _TELLING:  # `event` comes first; most events are of no interest here
            told.append(_told(queue, flat))
    return text(entries[-1][0]), told


def gone(queue: QueueKeys, job_id: str) -> JobNotFound:
    """Make the error of a job whose end nobody can tell any more."""
    return JobNotFound(queue.queue, job_id, _GONE)


def settle(queue: QueueKeys, job_id: str, told: Told) -> Steps[Ending]:
    """Give the ending, also of a job that was removed when it ended; raise `JobNotFound`."""
    if isinstance(told, Ending):
        return told
    newest = "+"
    for _ in range(_PAGES):
        entries: list[tuple[bytes, list[bytes]]] = yield from again(_page(queue, newest))
        for _, flat in entries:
            if flat[1] in {*_TELLING, b"added"} and _fields(flat).get(b"jobId") == job_id.encode():
                found = _told(queue, flat)[1]
                if isinstance(found, Ending):
                    return found
                raise gone(queue, job_id)  # by somebody, or in silence since it was added
        if len(entries) < AT_ONCE:
            break
        newest = f"({text(entries[-1][0])}"
    raise gone(queue, job_id)


def failure(queue: QueueKeys, job_id: str, reason: str) -> Steps[JobFailed]:
    """Make the error of a job that failed, with what is still known of it."""
    job: Job | None = yield from again(get_job(queue, job_id))
    if job is None:
        return JobFailed(queue.queue, job_id, reason)
    return JobFailed(queue.queue, job_id, reason, job.stacktrace, job.attempts_made)


def not_in_time(queue: QueueKeys, job_id: str, timeout: float | None) -> TimeoutError:
    """Make the error of a wait that took too long."""
    limit = "" if timeout is None else f" within {timeout:g} s"
    return TimeoutError(f"Job {job_id} in queue {queue.queue} has not ended{limit}")


def as_it_is(reply: Any) -> Any:
    """Give a reply that is read elsewhere."""
    return reply


def _page(queue: QueueKeys, newest: str) -> Command[list[tuple[bytes, list[bytes]]]]:
    words: tuple[Word, ...] = ("XREVRANGE", queue.events, newest, "-", "COUNT", AT_ONCE)
    return Command(words, queue.events, as_it_is)


def _fields(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _told(queue: QueueKeys, flat: list[bytes]) -> tuple[str, Told]:
    fields = _fields(flat)
    job_id = text(fields.get(b"jobId", b""))
    match flat[1]:
        case b"completed":
            value = fields.get(b"returnvalue") or b"null"
            return job_id, Ending(JobState.COMPLETED, raw_value=value)
        case b"failed":
            reason = text(fields.get(b"failedReason", b""))
            return job_id, Ending(JobState.FAILED, failed_reason=reason)
        case _:
            return job_id, JobNotFound(queue.queue, job_id)

"""Jobs that must begin by some time: those that cannot any more fail instead of being run."""

from __future__ import annotations

from typing import Final

from taskbull.core.durations import instant_from_ms, to_ms
from taskbull.core.job import Job
from taskbull.core.outcome import Category, Fail, Failure, Outcome, RetryAfter, SnoozeFor, Verdict
from taskbull.errors import PermanentError

PREFIX: Final = "expired: "
"""How the reason of an expired job begins, in Redis and here."""


def is_expired(reason: str | None) -> bool:
    """Return whether a job failed for this reason because it did not begin in time."""
    return reason is not None and reason.startswith(PREFIX)


def expired(job: Job, now_ms: int) -> Fail | None:
    """Return the outcome of a job that should have begun before; None: it may begin now."""
    deadline = job.expires_ms
    if deadline is None or now_ms < deadline:
        return None
    reason = f"{PREFIX}not begun by {_told(deadline)}"
    return Fail(
        Failure(Category.PERMANENT, reason, reason, PermanentError(reason)), Verdict.EXPIRED
    )


def in_time(job: Job, outcome: Outcome, now_ms: int) -> Outcome:
    """Return the outcome, or a failure if the job would run again too late."""
    deadline = job.expires_ms
    if deadline is None or not isinstance(outcome, RetryAfter | SnoozeFor):
        return outcome
    if now_ms + to_ms(outcome.delay) < deadline:
        return outcome
    reason = f"{PREFIX}the next attempt would begin after {_told(deadline)}"
    failure = outcome.failure
    if failure is None:
        failure = Failure(Category.PERMANENT, reason, reason, PermanentError(reason))
    else:
        reason = f"{reason}; {failure.reason}"
        failure = Failure(failure.category, reason, failure.stack, failure.error)
    return Fail(failure, Verdict.EXPIRED)


def _told(ms: int) -> str:
    instant = instant_from_ms(ms)
    return f"{ms} ms" if instant is None else instant.isoformat(timespec="milliseconds")

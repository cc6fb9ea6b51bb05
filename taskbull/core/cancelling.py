"""Cancellation of jobs: the result of a cancel request, and the outcome of a cancelled job."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from taskbull.core.failure import leave_out_our_frames, reason_of, scrubbed, stack_of
from taskbull.core.outcome import Category, Fail, Failure, Verdict
from taskbull.core.validation import check_type
from taskbull.errors import CancelRequested

PREFIX: Final = "cancelled: "
"""Prefix of a cancelled job's failure reason, as stored in Redis."""

BY_REQUEST: Final = f"{PREFIX}by request"
"""Failure reason if the cancel request gave none."""

_REASON_LIMIT: Final = 1000


class Cancelled(StrEnum):
    """Result of a cancel request."""

    BEFORE_START = "before_start"
    """The job was not running and has failed now. It may have had attempts before."""
    REQUESTED = "requested"
    """The worker will cancel the running job, unless it finishes first. It is not retried."""
    UNSTOPPABLE = "unstoppable"
    """The job runs in a worker that cannot cancel it, such as Node's. It is not retried."""
    TOO_LATE = "too_late"
    """The job had already finished."""


def cancel_reason(given: object) -> str:
    """Return the failure reason to store for a cancelled job.

    Raises:
        ConfigurationError: `given` is not a string.
    """
    check_type("reason", given, str, "be a string")
    text = scrubbed(str(given)).strip()
    return f"{PREFIX}{text[:_REASON_LIMIT]}" if text else BY_REQUEST


def is_cancelled(reason: str | None) -> bool:
    """Return True if this is the failure reason of a cancelled job."""
    return reason is not None and reason.startswith(PREFIX)


def cancelled(reason: str, error: BaseException | None = None) -> Fail:
    """Return the outcome of a cancelled job. `error` is the exception that its function raised."""
    if error is None:
        error, stack = CancelRequested(reason), reason
    else:
        leave_out_our_frames(error)
        stack = stack_of(error)
    return Fail(Failure(Category.PERMANENT, reason, stack, error), Verdict.CANCELLED)


def cancelled_by_itself(error: CancelRequested) -> Fail:
    """Return the outcome of a job that raised `CancelRequested` without a cancel request."""
    reason = reason_of(error)
    return cancelled(reason if is_cancelled(reason) else f"{PREFIX}{reason}", error)

"""That a job was cancelled: what is answered to whoever cancels it, and what is told of its end."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from taskbull.core.failure import leave_out_our_frames, reason_of, scrubbed, stack_of
from taskbull.core.outcome import Category, Fail, Failure, Verdict
from taskbull.core.validation import check_type
from taskbull.errors import CancelRequested

PREFIX: Final = "cancelled: "
"""How the reason of a cancelled job begins, in Redis and here."""

BY_REQUEST: Final = f"{PREFIX}by request"
"""The reason where nobody gives one."""

_REASON_LIMIT: Final = 1000


class Cancelled(StrEnum):
    """What cancelling a job came to."""

    BEFORE_START = "before_start"
    """It was not running, and has failed now; it may have had attempts before."""
    REQUESTED = "requested"
    """It ends as cancelled, or as what it is if it ends before; it does not begin again."""
    UNSTOPPABLE = "unstoppable"
    """A worker runs it that cannot be told, such as Node's; it does not begin again."""
    TOO_LATE = "too_late"
    """It had ended."""


def cancel_reason(given: object) -> str:
    """Return what is stored as the reason of a cancelled job; refuse what is not text."""
    check_type("reason", given, str, "be a string")
    text = scrubbed(str(given)).strip()
    return f"{PREFIX}{text[:_REASON_LIMIT]}" if text else BY_REQUEST


def is_cancelled(reason: str | None) -> bool:
    """Return whether a job fails for this reason because it was cancelled."""
    return reason is not None and reason.startswith(PREFIX)


def cancelled(reason: str, error: BaseException | None = None) -> Fail:
    """Return the outcome of a job that was cancelled; `error` is what its function raised."""
    if error is None:
        error, stack = CancelRequested(reason), reason
    else:
        leave_out_our_frames(error)
        stack = stack_of(error)
    return Fail(Failure(Category.PERMANENT, reason, stack, error), Verdict.CANCELLED)


def cancelled_by_itself(error: CancelRequested) -> Fail:
    """Return the outcome of a job whose function says that it was cancelled, though nobody did."""
    told = reason_of(error)
    return cancelled(told if is_cancelled(told) else f"{PREFIX}{told}", error)

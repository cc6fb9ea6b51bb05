"""What is to become of a job whose run is over; one place turns each into one change in Redis."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct


class Category(StrEnum):
    """What kind of error ended an attempt."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """Why a job is not tried again."""

    PERMANENT = "permanent"
    """No attempt that remains would help."""
    EXHAUSTED = "transient_exhausted"
    """No attempt remains, or the task's backoff gave up."""
    DOOMED = "doomed"
    """It was never run: it had been condemned before, or cannot be read."""


class Failure(Struct, frozen=True):
    """What went wrong in one attempt. `reason` and `stack` are fit to be stored."""

    category: Category
    reason: str
    stack: str
    error: BaseException


class Complete(Struct, frozen=True):
    """Store the job as completed; `value` is its result as JSON."""

    label: ClassVar[str] = "completed"

    value: bytes = b"null"


class Fail(Struct, frozen=True):
    """Store the job as failed for good."""

    label: ClassVar[str] = "failed"

    failure: Failure
    verdict: Verdict


class RetryAfter(Struct, frozen=True):
    """Spend the attempt, which failed, and run the job again after `delay` seconds."""

    label: ClassVar[str] = "retried"

    failure: Failure
    delay: float
    remembered_delay: float | None = None
    """What decorrelated jitter must be given the next time."""


class SnoozeFor(Struct, frozen=True):
    """Run the job again after `delay` seconds, with no attempt spent."""

    label: ClassVar[str] = "snoozed"

    delay: float


class LimitQueue(Struct, frozen=True):
    """Start no job of the queue for `delay` seconds; this one waits, with no attempt spent."""

    label: ClassVar[str] = "limited"

    delay: float


class GiveBack(Struct, frozen=True):
    """Put the job back at the front of its queue, with no attempt spent."""

    label: ClassVar[str] = "released"


class LetGo(Struct, frozen=True):
    """Write nothing: the lock is gone, and the job is another worker's."""

    label: ClassVar[str] = "lost"


Written = Complete | Fail | RetryAfter | SnoozeFor | LimitQueue | GiveBack
"""The outcomes that change something in Redis."""

Outcome = Written | LetGo

"""The ways in which the run of a job can end; one place turns each into one change in Redis."""

from __future__ import annotations

from enum import StrEnum

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


class Completed(Struct, frozen=True):
    """The job is done; `value` is its result as JSON."""

    value: bytes = b"null"


class Failed(Struct, frozen=True):
    """The job failed for good."""

    failure: Failure
    verdict: Verdict


class Retried(Struct, frozen=True):
    """The attempt failed and is spent; the job runs again after `delay` seconds."""

    failure: Failure
    delay: float
    remembered_delay: float | None = None
    """What decorrelated jitter must be given the next time."""


class Snoozed(Struct, frozen=True):
    """The task asked to run again after `delay` seconds; no attempt is spent."""

    delay: float


class Limited(Struct, frozen=True):
    """The task asked its queue to wait `delay` seconds; the job waits, no attempt is spent."""

    delay: float


class Released(Struct, frozen=True):
    """The worker is stopping: the job goes back to the front of its queue."""


class Lost(Struct, frozen=True):
    """The lock is another worker's now: nothing may be written."""


Written = Completed | Failed | Retried | Snoozed | Limited | Released
"""The outcomes that change something in Redis."""

Outcome = Written | Lost

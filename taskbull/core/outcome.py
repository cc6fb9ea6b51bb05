"""What is to become of a job whose run is over.

`Kind` is the table: whatever is known of an outcome beside its fields stands in its row. How the
script writes it is in `scripts/cycle.py`, and as which event it is told in `core/events.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, StrEnum
from logging import ERROR, INFO, WARNING
from typing import ClassVar, Final, TypeAlias

from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.validation import instant_from_ms, to_ms
from taskbull.errors import PermanentError

# What is to become of a job whose run is over.
#
# `Kind` is the table: whatever is known of an outcome beside its fields stands in its row. How the
# script writes it is in `scripts/cycle.py`, and as which event it is told in `core/events.py`.


Fields: TypeAlias = Mapping[str, object]

_SHORT = 0.1
"""Seconds below which one digit would not say enough."""


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
    CANCELLED = "cancelled"
    """Somebody cancelled it."""
    EXPIRED = "expired"
    """It did not begin in time, or would not if it were tried again."""

    @property
    def words(self) -> str:
        """The verdict as a log line says it."""
        return _WORDS[self]

    @property
    def of_its_own(self) -> bool:
        """Whether it says something about the job's function: whether that works, or not."""
        return self in {Verdict.PERMANENT, Verdict.EXHAUSTED}


_WORDS = {
    Verdict.PERMANENT: "not retried",
    Verdict.EXHAUSTED: "no attempts left",
    Verdict.DOOMED: "not run",
    Verdict.CANCELLED: "cancelled",
    Verdict.EXPIRED: "expired",
}


class Failure(Struct, frozen=True):
    """What went wrong in one attempt. `reason` and `stack` are fit to be stored."""

    category: Category
    reason: str
    stack: str
    error: BaseException


class Loss(Enum):
    """Why a job's lock is gone: the label of the metric, and a sentence; `{}` is the detail."""

    REDIS_AWAY = "redis_away", "Redis could not be reached for {}"
    LOOP_BLOCKED = "loop_blocked", "the event loop was blocked for {}"
    NOT_RENEWED = "expired", "the lock was not renewed for {}"
    EXPIRED = "expired", "the lock expired before its outcome could be written"
    TAKEN = "taken", "the lock was removed, or another worker took the job"
    DISOWNED = "taken", "{}"
    """Redis refused the job's end, because the job is not this worker's: its answer says why."""
    REFUSED = "refused", "{}"
    """Redis refused the job's end, and then its failure, because of what is in Redis."""

    def __init__(self, label: str, sentence: str) -> None:
        self.label = label
        self.sentence = sentence


class Code(IntEnum):
    """The number by which `settle_outcomes.lua` knows what it is to do with a job."""

    COMPLETED = 1
    FAILED = 2
    RETRIED = 3
    SNOOZED = 4
    GIVEN_BACK = 5
    AWAITS_CHILDREN = 6


_AGAIN = "was returned to its queue and will run again %(when)s"


class Kind(Enum):
    """The kinds of outcomes, one row each."""

    # label, code, succeeded, level and text of the log line, error of the span
    COMPLETED = "completed", Code.COMPLETED, True, INFO, "completed in %(duration).3f s"
    FAILED = (
        "failed",
        Code.FAILED,
        False,
        ERROR,
        "failed permanently (%(why)s): %(reason)s",
    )
    RETRIED = (
        "retried",
        Code.RETRIED,
        False,
        WARNING,
        "failed and will be retried %(when)s: %(reason)s",
    )
    SNOOZED = "snoozed", Code.SNOOZED, None, INFO, _AGAIN
    LIMITED = "limited", Code.GIVEN_BACK, None, INFO, _AGAIN
    RELEASED = "released", Code.GIVEN_BACK, None, INFO, _AGAIN
    AWAITS_CHILDREN = "awaits_children", Code.AWAITS_CHILDREN, None, INFO, _AGAIN
    LOST = (
        "lost",
        None,
        None,
        WARNING,
        "lost its lock; its outcome was discarded: %(reason)s",
        "the job's lock was lost",
    )

    def __init__(
        self,
        label: str,
        code: Code | None,
        succeeded: bool | None,
        level: int,
        line: str,
        span_error: str | None = None,
    ) -> None:
        self.label = label
        """What metrics and spans call it."""
        self.code = code
        """What the script calls it; None: nothing is written."""
        self.succeeded = succeeded
        """Whether the attempt succeeded; None: no attempt is spent."""
        self.level = level
        self.line = line
        """How its log line goes on after the job's name; the outcome's `fields` are filled in."""
        self.span_error = span_error
        """What its span says went wrong, if that is not a `failure`."""


class _Unfailing(Struct, frozen=True):
    """An outcome of an attempt in which nothing went wrong."""

    failure: ClassVar[None] = None


class Complete(_Unfailing, frozen=True):
    """Store the job as completed; `value` is its result as JSON."""

    kind: ClassVar = Kind.COMPLETED

    value: bytes = b"null"

    def fields(self) -> Fields:
        """Return what its log line says: nothing of the result."""
        return {}


class Fail(Struct, frozen=True):
    """Store the job as failed for good."""

    kind: ClassVar = Kind.FAILED

    failure: Failure
    verdict: Verdict

    def fields(self) -> Fields:
        """Return what its log line says."""
        return {
            "category": self.failure.category.value,
            "verdict": self.verdict.value,
            "why": self.verdict.words,
            "reason": self.failure.reason,
        }


class RetryAfter(Struct, frozen=True):
    """Spend the attempt, which failed, and run the job again after `delay` seconds."""

    kind: ClassVar = Kind.RETRIED

    failure: Failure
    delay: float
    remembered_delay: float | None = None
    """What decorrelated jitter must be given the next time."""

    def fields(self) -> Fields:
        """Return what its log line says."""
        return {
            "category": self.failure.category.value,
            **_when(self.delay),
            "reason": self.failure.reason,
        }


class SnoozeFor(_Unfailing, frozen=True):
    """Run the job again after `delay` seconds, with no attempt spent."""

    kind: ClassVar = Kind.SNOOZED

    delay: float

    def fields(self) -> Fields:
        """Return what its log line says."""
        return _when(self.delay)


class LimitQueue(_Unfailing, frozen=True):
    """Start no job of the queue for `delay` seconds; this one waits, with no attempt spent."""

    kind: ClassVar = Kind.LIMITED

    delay: float

    def fields(self) -> Fields:
        """Return what its log line says."""
        return _when(self.delay)


class GiveBack(_Unfailing, frozen=True):
    """Put the job back at the front of its queue, with no attempt spent."""

    kind: ClassVar = Kind.RELEASED
    delay: ClassVar = 0.0

    def fields(self) -> Fields:
        """Return what its log line says."""
        return _when(self.delay)


class AwaitChildren(_Unfailing, frozen=True):
    """Let the job wait until its children have ended, with no attempt spent.

    If none is pending it runs again at once; the second time in a row without a new child it fails.
    """

    kind: ClassVar = Kind.AWAITS_CHILDREN
    delay: ClassVar = 0.0

    spawned: int = 0
    """How many children it has spawned, this time and before."""
    new: int = 0
    """How many of them this time."""

    def fields(self) -> Fields:
        """Return what its log line says."""
        return {"delay": self.delay, "when": "when its children have finished"}


class LetGo(_Unfailing, frozen=True):
    """Write nothing: the lock is gone, and the job is another worker's."""

    kind: ClassVar = Kind.LOST

    loss: Loss
    detail: str = ""

    @property
    def reason(self) -> str:
        """Why the lock is gone, as a sentence."""
        return self.loss.sentence.format(self.detail)

    def fields(self) -> Fields:
        """Return what its log line says."""
        return {"reason": self.reason}


Written: TypeAlias = (
    Complete | Fail | RetryAfter | SnoozeFor | LimitQueue | GiveBack | AwaitChildren
)
"""The outcomes that change something in Redis."""

Outcome: TypeAlias = Written | LetGo


def _when(delay: float) -> Fields:
    short = f"{delay:.1f}" if delay >= _SHORT else f"{delay:g}"
    return {"delay": delay, "when": f"in {short} s" if delay else "immediately"}


# Jobs that must begin by some time: those that cannot any more fail instead of being run.


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
    reason = f"{PREFIX}not started by {_told(deadline)}"
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
    reason = f"{PREFIX}the next attempt would start after {_told(deadline)}"
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

"""Outcomes of attempts, and jobs that expire.

The rows of `Kind` define the properties of each kind of outcome. `scripts/cycle.py` defines how
outcomes are stored, and `core/events.py` defines the events that report them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, StrEnum
from logging import ERROR, INFO, WARNING
from typing import ClassVar, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Job
from taskbull.core.validation import instant_from_ms, to_ms
from taskbull.errors import PermanentError

Fields: TypeAlias = Mapping[str, object]

_SHORT = 0.1
"""Delays below this many seconds are shown with more than one decimal."""


class Category(StrEnum):
    """Category of an error. A permanent error is not retried."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """Reason why a failed job is not retried."""

    PERMANENT = "permanent"
    """The error is permanent, so a retry would not help."""
    EXHAUSTED = "transient_exhausted"
    """No attempts are left, or the task's backoff function gave up."""
    DOOMED = "doomed"
    """The job was not run, because it was already marked as failed or is unreadable."""
    CANCELLED = "cancelled"
    """The job was cancelled."""
    EXPIRED = "expired"
    """The job did not start in time, or its next attempt would start too late."""

    @property
    def words(self) -> str:
        """Text for log lines."""
        return _WORDS[self]

    @property
    def of_its_own(self) -> bool:
        """True if the job's function caused the failure."""
        return self in {Verdict.PERMANENT, Verdict.EXHAUSTED}


_WORDS = {
    Verdict.PERMANENT: "not retried",
    Verdict.EXHAUSTED: "no attempts left",
    Verdict.DOOMED: "not run",
    Verdict.CANCELLED: "cancelled",
    Verdict.EXPIRED: "expired",
}


class Failure(Struct, frozen=True):
    """The error of one attempt."""

    category: Category
    reason: str
    """Failure reason in a form that can be stored."""
    stack: str
    """Stack trace in a form that can be stored."""
    error: BaseException
    is_expected: bool = False
    """True if the task declares the error with `throws`."""


class Loss(Enum):
    """Reason why a job lost its lock.

    Each member has the label of the metric and a sentence. `{}` in it is replaced with details.
    """

    REDIS_AWAY = "redis_away", "Redis could not be reached for {}"
    LOOP_BLOCKED = "loop_blocked", "the event loop was blocked for {}"
    NOT_RENEWED = "expired", "the lock was not renewed for {}"
    EXPIRED = "expired", "the lock expired before its outcome could be written"
    TAKEN = "taken", "the lock was removed, or another worker took the job"
    DISOWNED = "taken", "{}"
    """Redis rejected the outcome, because this worker does not own the job."""
    REFUSED = "refused", "{}"
    """Redis rejected the outcome, and then the failure as well, because of the data it holds."""

    def __init__(self, label: str, sentence: str) -> None:
        self.label = label
        self.sentence = sentence


class Code(IntEnum):
    """Number of an outcome in `settle_outcomes.lua`."""

    COMPLETED = 1
    FAILED = 2
    RETRIED = 3
    SNOOZED = 4
    GIVEN_BACK = 5
    AWAITS_CHILDREN = 6


_AGAIN = "was returned to its queue and will run again %(when)s"


class Kind(Enum):
    """Kind of an outcome, with its properties."""

    # label, code, succeeded, level and text of the log line, error of the trace span
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
        """Name in metrics and trace spans."""
        self.code = code
        """Number in the script, or `None` if nothing is stored."""
        self.succeeded = succeeded
        """True if the attempt succeeded, or `None` if no attempt is used."""
        self.level = level
        """Level of the log line."""
        self.line = line
        """Log line after the job's name, with placeholders for the outcome's `fields`."""
        self.span_error = span_error
        """Error message of the trace span, for outcomes without a `failure`."""


class _Unfailing(Struct, frozen=True):
    """Base class of outcomes without an error."""

    failure: ClassVar[None] = None


class Complete(_Unfailing, frozen=True):
    """The job completed. `value` is its result as JSON."""

    kind: ClassVar = Kind.COMPLETED

    value: bytes = b"null"

    def fields(self) -> Fields:
        """Return the fields of the log line, which do not include the result."""
        return {}


class Fail(Struct, frozen=True):
    """The job failed permanently."""

    kind: ClassVar = Kind.FAILED

    failure: Failure
    verdict: Verdict

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return {
            "category": self.failure.category.value,
            "verdict": self.verdict.value,
            "why": self.verdict.words,
            "reason": self.failure.reason,
        }


class RetryAfter(Struct, frozen=True):
    """The attempt failed, and the job is retried after `delay` seconds."""

    kind: ClassVar = Kind.RETRIED

    failure: Failure
    delay: float
    remembered_delay: float | None = None
    """Delay to store for the next attempt, which decorrelated jitter needs."""

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return {
            "category": self.failure.category.value,
            **_when(self.delay),
            "reason": self.failure.reason,
        }


class SnoozeFor(_Unfailing, frozen=True):
    """The job runs again after `delay` seconds, without using an attempt."""

    kind: ClassVar = Kind.SNOOZED

    delay: float

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return _when(self.delay)


class LimitQueue(_Unfailing, frozen=True):
    """The queue starts no jobs for `delay` seconds. This job waits, without using an attempt."""

    kind: ClassVar = Kind.LIMITED

    delay: float

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return _when(self.delay)


class Release(_Unfailing, frozen=True):
    """The job returns to the front of its queue, without using an attempt."""

    kind: ClassVar = Kind.RELEASED
    delay: ClassVar = 0.0

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return _when(self.delay)


class AwaitChildren(_Unfailing, frozen=True):
    """The job waits until its children finish, without using an attempt.

    If no child is pending, the job runs again immediately. If that happens a second time in a row
    without a new child, the job fails.
    """

    kind: ClassVar = Kind.AWAITS_CHILDREN
    delay: ClassVar = 0.0

    spawned: int = 0
    """Number of children that the job has spawned, in this run and earlier ones."""
    new: int = 0
    """Number of children that the job has spawned in this run."""

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return {"delay": self.delay, "when": "when its children have finished"}


class Discard(_Unfailing, frozen=True):
    """Nothing is stored, because the job lost its lock and belongs to another worker."""

    kind: ClassVar = Kind.LOST

    loss: Loss
    detail: str = ""

    @property
    def reason(self) -> str:
        """Reason for the loss of the lock, as a sentence."""
        return self.loss.sentence.format(self.detail)

    def fields(self) -> Fields:
        """Return the fields of the log line."""
        return {"reason": self.reason}


Written: TypeAlias = Complete | Fail | RetryAfter | SnoozeFor | LimitQueue | Release | AwaitChildren
"""Outcomes that are stored in Redis."""

Outcome: TypeAlias = Written | Discard


def _when(delay: float) -> Fields:
    short = f"{delay:.1f}" if delay >= _SHORT else f"{delay:g}"
    return {"delay": delay, "when": f"in {short} s" if delay else "immediately"}


# Jobs with a deadline for their start. They fail instead of starting too late.


PREFIX: Final = "expired: "
"""Prefix of an expired job's failure reason, as stored in Redis."""


def is_expired(reason: str | None) -> bool:
    """Return True if this is the failure reason of an expired job."""
    return reason is not None and reason.startswith(PREFIX)


def expired(job: Job, now_ms: int) -> Fail | None:
    """Return the failure if the job has expired, otherwise `None`."""
    deadline = job.expires_ms
    if deadline is None or now_ms < deadline:
        return None
    reason = f"{PREFIX}not started by {_format_time(deadline)}"
    return Fail(
        Failure(Category.PERMANENT, reason, reason, PermanentError(reason)), Verdict.EXPIRED
    )


def in_time(job: Job, outcome: Outcome, now_ms: int) -> Outcome:
    """Return the outcome, or a failure if the next attempt would start after the deadline."""
    deadline = job.expires_ms
    if deadline is None or not isinstance(outcome, RetryAfter | SnoozeFor):
        return outcome
    if now_ms + to_ms(outcome.delay) < deadline:
        return outcome
    reason = f"{PREFIX}the next attempt would start after {_format_time(deadline)}"
    failure = outcome.failure
    if failure is None:
        failure = Failure(Category.PERMANENT, reason, reason, PermanentError(reason))
    else:
        reason = f"{reason}; {failure.reason}"
        failure = replace(failure, reason=reason)
    return Fail(failure, Verdict.EXPIRED)


def _format_time(ms: int) -> str:
    instant = instant_from_ms(ms)
    return f"{ms} ms" if instant is None else instant.isoformat(timespec="milliseconds")

"""Outcomes of attempts, errors as text, expiry and cancellation."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, IntEnum, StrEnum
from itertools import islice
from logging import ERROR, INFO, WARNING
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Job
from taskbull.core.validation import check_type, instant_from_ms, to_ms
from taskbull.errors import (
    ASKED_FOR_RETRY,
    CancelRequested,
    ConfigurationError,
    ConnectionLost,
    CorruptJob,
    InvalidArguments,
    MaybeExecuted,
    PermanentError,
    Retry,
    SerializationError,
    ServerUnavailable,
    TaskbullError,
    TaskNotRegistered,
    TransientError,
)

# Outcomes of attempts, and jobs that expire.
#
# The rows of `Kind` define the properties of each kind of outcome. `scripts/cycle.py` defines how
# outcomes are stored, and `core/events.py` defines the events that report them.


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
    def is_task_failure(self) -> bool:
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


_AGAIN = "was released and will run again %(when)s"


class Kind(Enum):
    """Kind of an outcome, with its properties."""

    # label, code, succeeded, level and text of the log line, error of the trace span
    COMPLETED = "completed", Code.COMPLETED, True, INFO, "completed in %(duration).3f s"
    FAILED = ("failed", Code.FAILED, False, ERROR, "failed permanently (%(why)s): %(reason)s")
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
        return {"delay": self.delay, "when": "after its children, signals or sleep"}


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


EXPIRED_PREFIX: Final = "expired: "
"""Prefix of an expired job's failure reason, as stored in Redis."""


def is_expired(reason: str | None) -> bool:
    """Return True if this is the failure reason of an expired job."""
    return reason is not None and reason.startswith(EXPIRED_PREFIX)


def expired(job: Job, now_ms: int) -> Fail | None:
    """Return the failure if the job has expired, otherwise `None`."""
    deadline = job.expires_ms
    if deadline is None or now_ms < deadline:
        return None
    # A job that waited, was retried or lost its worker has started before.
    what = "the next run would start after" if job.attempts_started > 1 else "not started by"
    reason = f"{EXPIRED_PREFIX}{what} {_format_time(deadline)}"
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
    reason = f"{EXPIRED_PREFIX}the next attempt would start after {_format_time(deadline)}"
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


# Errors of tasks: the default classifier, and their reason and stack trace as text.
#
# Classes of other packages are recognized by name, so that those packages need not be imported. An
# error may run third-party code in its methods, so reading one must never raise.


# The default classifier.


Classifier = Callable[[BaseException], Category | str | None]
"""Function that returns an error's category, or `None` to use the default classifier."""

_PERMANENT = (
    PermanentError,
    CorruptJob,
    InvalidArguments,
    TaskNotRegistered,  # Raised only after waiting for a worker that knows the task.
    SerializationError,
    ConfigurationError,
    PermissionError,
)
_TRANSIENT = (
    TransientError,
    Retry,
    ConnectionLost,
    MaybeExecuted,
    ServerUnavailable,
    ConnectionError,
    TimeoutError,
    MemoryError,
)

_TRANSIENT_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EADDRNOTAVAIL,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOTCONN,
    }
)

# (package, class) of errors caused by the network or a busy server.
_FOREIGN_TRANSIENT = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("coredis", "RedisError"),
        ("http", "IncompleteRead"),
        ("httpcore", "NetworkError"),
        ("httpcore", "ProtocolError"),
        ("httpcore", "TimeoutException"),
        ("httpx", "TransportError"),
        ("redis", "RedisError"),
        ("requests", "ChunkedEncodingError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("_socket", "gaierror"),
        ("socket", "gaierror"),
        ("urllib", "URLError"),
        ("urllib3", "IncompleteRead"),
        ("urllib3", "MaxRetryError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "TimeoutError"),
        ("valkey", "ValkeyError"),
    }
)
_FOREIGN_PERMANENT = frozenset(
    {
        ("bullmq", "UnrecoverableError"),
        ("redis", "DataError"),
        ("redis", "NoPermissionError"),
        ("valkey", "DataError"),
        ("valkey", "NoPermissionError"),
    }
)

_HTTP_CLIENTS = frozenset({"aiohttp", "httpx", "requests", "urllib", "urllib3"})
_TRANSIENT_STATUSES = frozenset({408, 425, 429})  # The server asks the client to retry.


def classify(error: BaseException) -> Category:
    """Return the category of an error: permanent, transient or unknown.

    An exception group gets the worst category of its members: permanent, then transient.
    """
    return min((_classify_one(leaf) for leaf in leaves(error)), key=_SEVERITY.index)


_SEVERITY = (Category.PERMANENT, Category.TRANSIENT, Category.UNKNOWN)


def _classify_one(error: BaseException) -> Category:
    if isinstance(error, _PERMANENT):
        return Category.PERMANENT
    if isinstance(error, TransientError):
        return Category.TRANSIENT
    status = _http_status(error)
    if status is not None:
        return _classify_status(status)
    return _classify_kind(error)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the errors in a group, or the error itself if it is not a group."""
    # Use type(): `isinstance` would read the error's `__class__`, which may raise.
    if issubclass(type(error), BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(member)
    else:
        yield error


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, the members of its groups, and all their causes and contexts."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        waiting += [leaf for leaf in leaves(one) if leaf is not one]
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return found


def _classify_kind(error: BaseException) -> Category:
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    if kinds & _FOREIGN_PERMANENT:
        return Category.PERMANENT
    if isinstance(error, _TRANSIENT) or kinds & _FOREIGN_TRANSIENT:
        return Category.TRANSIENT
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return Category.TRANSIENT
    return Category.UNKNOWN


def _classify_status(status: int) -> Category:
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return Category.TRANSIENT
    return Category.PERMANENT if status >= 400 else Category.UNKNOWN


def _http_status(error: BaseException) -> int | None:
    """Return the status of an HTTP client's error, or None if it has none."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if not packages & _HTTP_CLIENTS:
        return None
    try:
        found: list[Any] = [
            getattr(getattr(error, "response", None), "status_code", None),  # httpx, requests
            getattr(error, "status", None),  # aiohttp
            getattr(error, "code", None),  # urllib
        ]
    except Exception:  # noqa: BLE001 - third-party code: httpx raises if there is no response
        return None
    return next((status for status in found if isinstance(status, int) and status >= 100), None)


# Removal of taskbull's own frames from stack traces.


_PACKAGE = str(Path(__file__).parent.parent) + os.sep

ERRORS = TaskbullError.__module__
"""Module that defines all exceptions of taskbull."""


def is_ours(filename: str) -> bool:
    """Return True if a file belongs to taskbull."""
    return filename.startswith(_PACKAGE)


_MOST_FRAMES = 50


def frames_of(innermost: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, outermost first."""
    frames: list[FrameType] = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def format_stack(frames: Sequence[FrameType]) -> str:
    """Return a stack as Python prints it, without the frames that call the task's function.

    Args:
        frames: The frames, outermost first. The innermost 50 are shown.
    """
    first = 0
    for frame in frames:
        if not is_ours(name := frame.f_code.co_filename) and not name.startswith("<frozen"):
            break
        first += 1
    shown = frames[max(first, len(frames) - _MOST_FRAMES) :]
    lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in shown)
    return scrubbed("".join(lines.format()).rstrip())


def where_of(stack: str) -> str:
    """Return a stack in the format of `faulthandler`, without taskbull's frames."""
    lines = [line for line in stack.splitlines() if f'File "{_PACKAGE}' not in line]
    return "\n".join(line for line in lines if 'File "<frozen runpy>"' not in line).strip()


def leave_out_our_frames(error: BaseException) -> None:
    """Remove taskbull's frames from the tracebacks of an error and of all errors it refers to.

    The frames between a worker, its middleware and the task do not help the user. Two kinds of
    taskbull frames stay. Frames after the last user frame stay because the user's code called
    taskbull there. If there are only taskbull frames, they stay because the error is a bug in
    taskbull. An exception of `taskbull.errors` has its frames removed even then, because its
    message is enough.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:  # Causes can form a cycle.
            continue
        seen.add(id(one))
        # Do not assign the attribute: a class may reject that, as a frozen dataclass does.
        BaseException.with_traceback(one, _shortened(one))
        with suppress(Exception):  # Third-party code: a class may override these attributes.
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
            if isinstance(one, BaseExceptionGroup):
                waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions


def _shortened(error: BaseException) -> TracebackType | None:
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    ours = [is_ours(one.tb_frame.f_code.co_filename) for one in frames]
    if all(ours):
        return None if type(error).__module__ == ERRORS else error.__traceback__
    last = len(ours) - 1 - ours[::-1].index(False)
    linked: TracebackType | None = None
    for n, one in reversed([*enumerate(frames)]):
        if n > last or not ours[n]:
            linked = TracebackType(linked, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return linked


# The reason and the stack trace of an error, as logged and stored.


REASON_LIMIT = 10_000
STACK_LIMIT = 50_000

_MEMBERS = 3
"""Maximum number of members that the reason of an exception group names."""

_OTHER_LOOP: Final = {
    "must be called from async context": "trio",
    "no running event loop": "asyncio",
    "there is no current event loop": "asyncio",
    "'nonetype' object has no attribute 'create_future'": "asyncio",
    "trio got unexpected": "asyncio",
    "trio.run received unrecognized yield": "asyncio",
    "task got bad yield: <class 'trio": "trio",
}
"""Event loop that a function needs, by the error that it raises in another event loop."""


def reason_of(error: BaseException) -> str:
    """Return the class and message of an error, such as `KeyError: 'customer_id'`. Never raises.

    The class is omitted for taskbull's own exceptions, because their message is a full sentence and
    often BullMQ's own. A user-defined subclass is named like any other class. If there is no
    message, the result is the class name alone.
    """
    return _storable(_describe(error), REASON_LIMIT)


def message_of(error: BaseException) -> str:
    """Return the message of an error without its class. Never raises."""
    return _storable(_message(error), REASON_LIMIT)


def stack_of(error: BaseException, notes: Sequence[str] = ()) -> str:
    """Return the formatted traceback of an error, followed by `notes`. Never raises."""
    try:
        stack = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - third-party code: attributes of the exception
        stack = f"{reason_of(error)}\n"
    return _storable("\n".join([stack.rstrip("\n"), *notes]), STACK_LIMIT)


def hint_for(error: BaseException) -> str | None:
    """Return a hint for an error caused by the wrong event loop, otherwise `None`."""
    if not isinstance(error, RuntimeError | TypeError | AttributeError):
        return None
    message = _message(error).lower()
    for words, backend in _OTHER_LOOP.items():
        if words in message:
            return (
                f"{backend}'s functions work in an async def task on a worker that runs on "
                f"{backend}: start it with --backend {backend}"
            )
    return None


def _describe(error: BaseException) -> str:
    name, message = _name(error), _message(error)
    if type(error).__module__ == ERRORS:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if message == ASKED_FOR_RETRY and cause is not None and not isinstance(cause, Retry):
            return f"{message}: {_describe(cause)}"
        return message or name
    text = f"{name}: {message}" if message else name
    if isinstance(error, BaseExceptionGroup):
        return f"{text}: {_members(cast('BaseExceptionGroup[BaseException]', error))}"
    hint = hint_for(error)
    return text if hint is None else f"{text} ({hint})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - third-party code: the exception's __str__
        return f"its message cannot be read, because str() raised {type(fault).__name__}"


def _members(group: BaseExceptionGroup[BaseException]) -> str:
    text = [_describe(one) for one in islice(leaves(group), _MEMBERS + 1)]
    return "; ".join([*text[:_MEMBERS], "…"] if len(text) > _MEMBERS else text)


def _name(error: BaseException) -> str:
    """Return the qualified class name without enclosing functions: `Order.DoesNotExist`."""
    return type(error).__qualname__.rpartition("<locals>.")[2]


def _storable(text: str, limit: int) -> str:
    if len(text) > limit:
        # Keep both ends: the first shows the origin, the last the error.
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return scrubbed(text)


def scrubbed(text: str) -> str:
    """Return the text with lone surrogates escaped, so that UTF-8 can encode it."""
    return text.encode("utf-8", "backslashreplace").decode()


# Cancellation of jobs: the result of a cancel request, and the outcome of a cancelled job.


CANCELLED_PREFIX: Final = "cancelled: "
"""Prefix of a cancelled job's failure reason, as stored in Redis."""

BY_REQUEST: Final = f"{CANCELLED_PREFIX}by request"
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
    return f"{CANCELLED_PREFIX}{text[:_REASON_LIMIT]}" if text else BY_REQUEST


def is_cancelled(reason: str | None) -> bool:
    """Return True if this is the failure reason of a cancelled job."""
    return reason is not None and reason.startswith(CANCELLED_PREFIX)


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
    return cancelled(reason if is_cancelled(reason) else f"{CANCELLED_PREFIX}{reason}", error)

"""Decide the outcome of a job that raised, and open the circuit breaker of its queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast

from msgspec import Struct
from msgspec.structs import asdict, force_setattr, replace

from taskbull.core.backoff import Backoff
from taskbull.core.job import Job
from taskbull.core.options import ErrorBackoffs, check_error_backoffs
from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Classifier,
    Fail,
    Failure,
    LimitQueue,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
    cancelled,
    cancelled_by_itself,
    classify,
    hint_for,
    is_cancelled,
    leave_out_our_frames,
    leaves,
    reason_of,
    stack_of,
)
from taskbull.core.validation import (
    Duration,
    check_choice,
    check_function,
    check_int,
    check_type,
    from_ms,
    refusal,
    seconds,
    shown,
    to_ms,
)
from taskbull.core.wire.backoff import Curve
from taskbull.core.wire.job import OPTIONS_FIELD
from taskbull.errors import (
    CancelRequested,
    ConfigurationError,
    CorruptJob,
    JobControl,
    PermanentError,
    RateLimited,
    Retry,
    Snooze,
    TransientError,
    WaitForChildren,
)

# Decide the outcome of a job whose handler raised an exception.


B = TypeVar("B")

UnknownErrors = Literal["retry", "fail"]

ErrorTypes: TypeAlias = type[Exception] | Sequence[type[Exception]]
"""One exception class or several. Their subclasses are included."""


class RetryKeywords(TypedDict, total=False):
    """Options of apps, groups and tasks that select errors. `None` leaves the choice open."""

    retry_on: ErrorTypes | None
    fail_on: ErrorTypes | None
    throws: ErrorTypes | None


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Error handling of a task, or of an app for all its tasks.

    A setting that is `None` is not specified.
    """

    attempts: int | None = None
    """Number of attempts for jobs that do not set it."""
    backoff: Backoff | None = None
    """Backoff for jobs that do not set one."""
    error_backoffs: ErrorBackoffs | None = None
    """Backoffs for specific errors, for jobs that do not set any."""
    classify: Classifier | None = None
    """Function that returns the category of an error."""
    unknown_errors: UnknownErrors | None = None
    """Handling of errors in the category "unknown": "retry" or "fail"."""
    retry_on: tuple[type[Exception], ...] | None = None
    """The only errors to retry. All others fail the job. `Retry` is always retried."""
    fail_on: tuple[type[Exception], ...] | None = None
    """Errors that fail the job, even if `retry_on` contains them."""
    throws: tuple[type[Exception], ...] | None = None
    """Expected errors. They are logged at INFO without a stack trace."""

    if TYPE_CHECKING:  # The three last fields also accept one class or any sequence.

        def __init__(
            self,
            *,
            attempts: int | None = None,
            backoff: Backoff | None = None,
            error_backoffs: ErrorBackoffs | None = None,
            classify: Classifier | None = None,
            unknown_errors: UnknownErrors | None = None,
            **errors: Unpack[RetryKeywords],
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.attempts is not None:
            check_int("attempts", self.attempts, least=1)
        if self.backoff is not None:
            check_type("backoff", self.backoff, Backoff, "be a Backoff")
        if self.error_backoffs is not None:
            check_error_backoffs(self.error_backoffs)
        if self.classify is not None:
            rule = "be a sync function that takes the error"
            check_function("classify", self.classify, rule, 1)
        if self.unknown_errors is not None:
            check_choice("unknown_errors", self.unknown_errors, ("retry", "fail"))
        for field in RetryKeywords.__annotations__:
            if (kinds := getattr(self, field)) is not None:
                force_setattr(self, field, _error_types(field, kinds))
        for kind in self.retry_on or ():
            if kind in (self.fail_on or ()):
                raise ConfigurationError(
                    f"retry_on and fail_on both contain {kind.__name__}: remove it from one of them"
                )

    def over(self, other: RetryPolicy) -> RetryPolicy:
        """Return this policy with unspecified settings taken from the other one."""
        own = {name: value for name, value in asdict(self).items() if value is not None}
        own["retry_on"] = _over(self.retry_on, other.retry_on, self.fail_on)
        own["fail_on"] = _over(self.fail_on, other.fail_on, self.retry_on)
        return replace(other, **own)


def _over(
    own: tuple[type[Exception], ...] | None,
    other: tuple[type[Exception], ...] | None,
    contrary: tuple[type[Exception], ...] | None,
) -> tuple[type[Exception], ...] | None:
    """Return the own errors, or else the other's without those that the own policy contradicts."""
    if own is not None or other is None:
        return own
    return tuple(kind for kind in other if kind not in (contrary or ()))


def _error_types(field: str, kinds: object) -> tuple[type[Exception], ...]:
    each: tuple[object, ...] = (kinds,)
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        each = tuple(cast("Sequence[object]", kinds))
    for kind in each:
        is_error = isinstance(kind, type) and issubclass(cast("type[Any]", kind), Exception)
        if not is_error:
            raise refusal(field, "be an exception class, or a tuple of them", kind)
        if issubclass(cast("type[Exception]", kind), ExceptionGroup):
            raise refusal(field, "name the classes of a group's members, not of the group", kind)
    return cast("tuple[type[Exception], ...]", each)


NO_POLICY = RetryPolicy()


def attempts_of(job: Job, policy: RetryPolicy = NO_POLICY) -> int:
    """Return the total number of attempts of a job.

    Node stores 0 if the producer did not set `attempts`, so 0 means that the policy applies.
    """
    return max(1, int(job.options.attempts or policy.attempts or 1))


def decide(
    error: BaseException, job: Job, policy: RetryPolicy = NO_POLICY, *, random: Callable[[], float]
) -> Written:
    """Return the outcome of an attempt that raised `error`. Never raises.

    The job's own options take precedence over the policy. An exception such as `Retry` or `Snooze`
    also takes effect as the only member of an exception group, because task groups wrap it.

    If a classifier raises or returns an invalid value, the default classifier is used. If a backoff
    function does so, the delay is exponential. A note in the stack trace reports either case. If
    the job's contents prevent a decision, the job fails.
    """
    try:
        return _decide(error, job, policy, random)
    except BaseException as fault:  # noqa: BLE001 - no job may crash its worker
        return fail_corrupt_job(job, fault)


def fail_corrupt_job(job: Job, fault: BaseException) -> Fail:
    """Return the failure of a job whose contents prevent any other decision."""
    return failed_for_good(CorruptJob(job.id, OPTIONS_FIELD, shown(fault)))


def failed_for_good(error: Exception) -> Fail:
    """Return the failure of a job that must not be retried."""
    return Fail(
        Failure(Category.PERMANENT, reason_of(error), stack_of(error), error), Verdict.PERMANENT
    )


def _decide(
    error: BaseException, job: Job, policy: RetryPolicy, random: Callable[[], float]
) -> Written:
    leaf = _only_leaf(error)
    if isinstance(leaf, Snooze):
        return SnoozeFor(leaf.seconds)
    if isinstance(leaf, WaitForChildren):
        return AwaitChildren()
    if isinstance(leaf, RateLimited):
        return LimitQueue(leaf.seconds)
    if isinstance(leaf, CancelRequested):
        return cancelled_by_itself(leaf)
    notes: list[str] = []
    category = _categorize(leaf, policy, notes)
    verdict = _verdict(category, job, policy)
    delay = _delay(leaf, job, policy, random, notes) if verdict is None else None
    if (hint := hint_for(leaf)) is not None:
        notes.append(hint)
    leave_out_our_frames(error)
    expected = policy.throws is not None and all(
        isinstance(one, policy.throws) for one in leaves(error)
    )
    failure = Failure(category, reason_of(leaf), stack_of(error, notes), error, expected)
    if delay is None:
        return Fail(failure, verdict or Verdict.EXHAUSTED)
    return RetryAfter(failure, delay.seconds, delay.remembered)


def failure_before_run(job: Job) -> Fail | None:
    """Return the failure of a job that must not run, or `None` if it may run."""
    error: Exception
    if is_cancelled(job.deferred_failure):
        return cancelled(job.deferred_failure or "")
    if job.deferred_failure is not None:
        error = PermanentError(job.deferred_failure)
    elif job.corrupt is not None:
        error = job.corrupt
    else:
        return None
    reason = reason_of(error)
    return Fail(Failure(Category.PERMANENT, reason, reason, error), Verdict.DOOMED)


def _only_leaf(error: BaseException) -> BaseException:
    first, *others = leaves(error)
    if others and all(isinstance(one, WaitForChildren) for one in (first, *others)):
        return first  # Concurrent waits.
    return error if others else first


def _categorize(error: BaseException, policy: RetryPolicy, notes: list[str]) -> Category:
    if isinstance(error, PermanentError | Retry):
        return classify(error)
    # A group of errors fails the job if one of its members does.
    if policy.fail_on is not None and any(isinstance(one, policy.fail_on) for one in leaves(error)):
        return Category.PERMANENT
    if policy.retry_on is not None:
        # A TransientError asks for a retry.
        kinds: tuple[type[Exception], ...] = (TransientError, *policy.retry_on)
        retried = all(isinstance(one, kinds) for one in leaves(error))
        return Category.TRANSIENT if retried else Category.PERMANENT
    if policy.classify is None or isinstance(error, JobControl):
        return classify(error)
    try:
        answer = policy.classify(error)
        return classify(error) if answer is None else Category(answer)
    except BaseException as fault:  # noqa: BLE001 - user code: the classifier
        notes.append(f"The classifier was ignored, because it raised {shown(fault)}")
        return classify(error)


def _verdict(category: Category, job: Job, policy: RetryPolicy) -> Verdict | None:
    if category is Category.PERMANENT:
        return Verdict.PERMANENT
    if category is Category.UNKNOWN and policy.unknown_errors == "fail":
        return Verdict.PERMANENT
    return Verdict.EXHAUSTED if job.attempt >= attempts_of(job, policy) else None


class _Delay(Struct, frozen=True):
    seconds: float
    remembered: float | None = None


def _delay(
    error: BaseException,
    job: Job,
    policy: RetryPolicy,
    random: Callable[[], float],
    notes: list[str],
) -> _Delay | None:
    """Return the delay of the retry, or None if the backoff function gives up."""
    if isinstance(error, Retry):
        return _Delay(error.after)
    backoff = _choose_backoff(error, job, policy)
    if backoff.function is not None:
        try:
            answer = backoff.function(job.attempt, error, job)
            return None if answer is None else _Delay(backoff.capped(seconds("delay", answer)))
        except BaseException as fault:  # noqa: BLE001 - user code: the backoff function
            notes.append(f"The backoff function was ignored, because it raised {shown(fault)}")
    previous = None if job.previous_delay_ms is None else from_ms(job.previous_delay_ms)
    wait = backoff.wait(job.attempt, random=random, previous=previous)
    return _Delay(wait, wait if backoff.curve is Curve.DECORRELATED_JITTER else None)


def _choose_backoff(error: BaseException, job: Job, policy: RetryPolicy) -> Backoff:
    own_by_error = job.options.own_error_backoffs
    if own_by_error is None:
        by_error = _find(error, policy.error_backoffs)
    else:
        stored = _find(error, own_by_error)
        by_error = None if stored is None else Backoff.from_stored(stored)
    chosen = by_error or job.options.own_backoff or policy.backoff or Backoff.none()
    if chosen.curve is not Curve.CUSTOM or chosen.function is not None:
        return chosen
    # The job refers to its task's backoff function, which cannot be stored with the job.
    for own in (_find(error, policy.error_backoffs), policy.backoff):
        if own is not None and own.function is not None:
            return replace(chosen, function=own.function)
    return chosen


def _find(error: BaseException, backoffs: Mapping[Any, B] | None) -> B | None:
    """Return the entry for the error's class, or for its nearest base class that has one."""
    if not backoffs:
        return None
    for kind in _kinds(error):
        for key in (kind, kind.__name__, f"{kind.__module__}.{kind.__qualname__}"):
            if key in backoffs:
                return backoffs[key]
    return None


def _kinds(error: BaseException) -> Iterator[type]:
    for leaf in leaves(error):
        yield from type(leaf).__mro__
    yield from type(error).__mro__  # the group itself, if it is one


# Circuit breaker of a queue in one worker, as a state machine. Time is an argument.


class CircuitBreaker(Struct, frozen=True):
    """Options of a circuit breaker: fetch no jobs for a while after repeated failures.

    When `threshold` attempts in a row have failed, the worker fetches no jobs for `duration`. Then
    it runs `half_open_max_attempts` test jobs. If all succeed, it continues; if one fails, it waits
    again.

    Example:
        CircuitBreaker(threshold=5, duration=30)
    """

    threshold: int
    """Number of failed attempts in a row that open the circuit."""
    duration: float
    """Seconds until an open circuit lets test jobs through."""
    half_open_max_attempts: int = 1
    """Number of test jobs that must succeed to close the circuit."""

    if TYPE_CHECKING:  # `duration` may be a timedelta; it is stored in seconds.

        def __init__(
            self, threshold: int, duration: Duration, half_open_max_attempts: int = 1
        ) -> None: ...

    def __post_init__(self) -> None:
        check_int("threshold", self.threshold, least=1)
        force_setattr(self, "duration", seconds("duration", self.duration, positive=True))
        check_int("half_open_max_attempts", self.half_open_max_attempts, least=1)


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    """All jobs are fetched."""
    OPEN = "open"
    """No jobs are fetched."""
    HALF_OPEN = "half-open"
    """A few test jobs are fetched."""


class Breaker:
    """State machine of one `CircuitBreaker`.

    A method that changes the state returns the new one. Nothing else reports it, so each change is
    reported once.

    Call `started` for every fetched job, and then `ended` once. A job counts only in the period
    when it started. A job that was running when the circuit opened does not show if the cause has
    been fixed since.
    """

    def __init__(self, options: CircuitBreaker) -> None:
        self.options = options
        self.duration = from_ms(to_ms(options.duration))
        """Seconds that the circuit stays open."""
        self.state = BreakerState.CLOSED
        """State after the last call of a method with `now`."""
        self.failures = 0
        """Number of failed attempts in a row."""
        self._successful_tests = 0
        self._opened_at = 0.0
        self._running: set[str] = set()

    @property
    def is_open(self) -> bool:
        """True if no jobs may run."""
        return self.state is BreakerState.OPEN

    @property
    def wakes_at(self) -> float | None:
        """Time to call `check`, or `None` if the state does not depend on time."""
        if self.state is BreakerState.OPEN:
            return self._opened_at + self.duration
        return None

    def check(self, now: float) -> BreakerState | None:
        """Make an open circuit half-open if its duration has passed."""
        if self.wakes_at is None or now < self.wakes_at:
            return None
        return self._enter(BreakerState.HALF_OPEN)

    def allowed(self, wanted: int, asked: int = 0) -> int:
        """Return how many of the `wanted` jobs may be fetched now.

        `asked` is the number of jobs that a call in flight may still return.
        """
        match self.state:
            case BreakerState.CLOSED:
                return wanted
            case BreakerState.OPEN:
                return 0
            case BreakerState.HALF_OPEN:
                tried = len(self._running) + self._successful_tests + asked
                return max(0, min(wanted, self.options.half_open_max_attempts - tried))

    def started(self, job_id: str) -> None:
        """Record that a job was fetched."""
        if self.state is not BreakerState.OPEN:
            self._running.add(job_id)

    def ended(self, job_id: str, outcome: Outcome, now: float) -> BreakerState | None:
        """Record the outcome of a job, and return the new state if it has changed.

        Every failed attempt counts, whether it is retried or not. A job does not count if it was
        released, lost, cancelled or expired, or if it failed without running (a stall). Another
        test job may run instead.
        """
        if job_id not in self._running:
            return None
        self._running.discard(job_id)
        if isinstance(outcome, Fail) and not outcome.verdict.is_task_failure:
            return None
        match outcome.kind.succeeded:
            case True:
                return self._succeeded()
            case False:
                return self._failed(now)
            case None:
                return None

    def _succeeded(self) -> BreakerState | None:
        if self.state is BreakerState.CLOSED:
            self.failures = 0
            return None
        self._successful_tests += 1
        if self._successful_tests < self.options.half_open_max_attempts:
            return None
        self.failures = 0
        return self._enter(BreakerState.CLOSED)

    def _failed(self, now: float) -> BreakerState | None:
        self.failures += 1
        closed = self.state is BreakerState.CLOSED
        if closed and self.failures < self.options.threshold:
            return None
        self._opened_at = now
        return self._enter(BreakerState.OPEN)

    def _enter(self, state: BreakerState) -> BreakerState:
        self.state = state
        self._successful_tests = 0
        self._running.clear()
        return state

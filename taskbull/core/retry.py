"""What happens to a job whose handler raised: one pure decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.backoff import Backoff
from taskbull.core.cancelling import cancelled, cancelled_by_itself, is_cancelled
from taskbull.core.failure import (
    Classifier,
    classify,
    hint_for,
    leave_out_our_frames,
    leaves,
    reason_of,
    stack_of,
)
from taskbull.core.job import Job
from taskbull.core.options import ErrorBackoffs, check_error_backoffs
from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Fail,
    Failure,
    LimitQueue,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.core.validation import (
    check_choice,
    check_int,
    check_type,
    from_ms,
    refusal,
    seconds,
    shown,
)
from taskbull.core.wire.backoff import Curve
from taskbull.core.wire.job import OPTIONS_FIELD
from taskbull.errors import (
    CancelRequested,
    CorruptJob,
    PermanentError,
    RateLimited,
    Retry,
    Snooze,
    Steering,
    WaitForChildren,
)

B = TypeVar("B")

UnknownErrors = Literal["retry", "fail"]


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """What a task, or an app for its tasks, says about errors. None: it says nothing."""

    attempts: int | None = None
    backoff: Backoff | None = None
    error_backoffs: ErrorBackoffs | None = None
    classify: Classifier | None = None
    unknown_errors: UnknownErrors | None = None

    def __post_init__(self) -> None:
        if self.attempts is not None:
            check_int("attempts", self.attempts, least=1)
        if self.backoff is not None:
            check_type("backoff", self.backoff, Backoff, "be a Backoff")
        if self.error_backoffs is not None:
            check_error_backoffs(self.error_backoffs)
        if self.classify is not None and not callable(self.classify):
            raise refusal("classify", "be callable", self.classify)
        if self.unknown_errors is not None:
            check_choice("unknown_errors", self.unknown_errors, ("retry", "fail"))

    def over(self, other: RetryPolicy) -> RetryPolicy:
        """Return this policy with its gaps filled from the other: a task's over its app's."""
        return RetryPolicy(
            attempts=self.attempts or other.attempts,
            backoff=self.backoff or other.backoff,
            error_backoffs=self.error_backoffs
            if self.error_backoffs is not None
            else other.error_backoffs,
            classify=self.classify or other.classify,
            unknown_errors=self.unknown_errors or other.unknown_errors,
        )


NO_POLICY = RetryPolicy()


def attempts_of(job: Job, policy: RetryPolicy = NO_POLICY) -> int:
    """Return how many attempts the job has in total.

    Node writes 0 where the producer said nothing, so 0 leaves it to the policy.
    """
    return max(1, int(job.options.attempts or policy.attempts or 1))


def decide(
    error: BaseException,
    job: Job,
    policy: RetryPolicy = NO_POLICY,
    *,
    random: Callable[[], float],
) -> Written:
    """Return the outcome after `error`. The job's own options take precedence over the policy.

    A word of the task (`Retry`, `Snooze`, …) counts also as the only member of a group, as task
    groups raise it. A classifier that raises or talks nonsense is replaced by the default one, and
    such a backoff function by the exponential curve; the stack says so. It never raises: a job
    about which nothing can be decided has failed.
    """
    try:
        return _decide(error, job, policy, random)
    except BaseException as fault:  # noqa: BLE001 - whatever is in the job, its worker lives on
        return undecidable(job, fault)


def undecidable(job: Job, fault: BaseException) -> Fail:
    """Return the outcome of a job that cannot be decided on, because of its contents."""
    return failed_for_good(CorruptJob(job.id, OPTIONS_FIELD, shown(fault)))


def failed_for_good(error: Exception) -> Fail:
    """Return the outcome of a job that no further attempt would help."""
    return Fail(
        Failure(Category.PERMANENT, reason_of(error), stack_of(error), error), Verdict.PERMANENT
    )


def _decide(
    error: BaseException, job: Job, policy: RetryPolicy, random: Callable[[], float]
) -> Written:
    word = _only_leaf(error)
    if isinstance(word, Snooze):
        return SnoozeFor(word.seconds)
    if isinstance(word, WaitForChildren):
        return AwaitChildren()
    if isinstance(word, RateLimited):
        return LimitQueue(word.seconds)
    if isinstance(word, CancelRequested):
        return cancelled_by_itself(word)
    notes: list[str] = []
    category = _categorize(word, policy, notes)
    verdict = _verdict(category, job, policy)
    delay = _delay(word, job, policy, random, notes) if verdict is None else None
    if (hint := hint_for(word)) is not None:
        notes.append(hint)
    leave_out_our_frames(error)
    failure = Failure(category, reason_of(word), stack_of(error, notes), error)
    if delay is None:
        return Fail(failure, verdict or Verdict.EXHAUSTED)
    return RetryAfter(failure, delay.seconds, delay.remembered)


def doomed(job: Job) -> Fail | None:
    """Return the outcome of a job that must not be run, or None if it may run."""
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
    return error if others else first


def _categorize(error: BaseException, policy: RetryPolicy, notes: list[str]) -> Category:
    if policy.classify is None or isinstance(error, Steering):
        return classify(error)
    try:
        answer = policy.classify(error)
        return classify(error) if answer is None else Category(answer)
    except BaseException as fault:  # noqa: BLE001 - foreign code: the user's classifier
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
    """Return how long the job waits, or None if its backoff function gives up."""
    if isinstance(error, Retry):
        return _Delay(error.after)
    backoff = _choose_backoff(error, job, policy)
    if backoff.function is not None:
        try:
            answer = backoff.function(job.attempt, error, job)
            return None if answer is None else _Delay(backoff.capped(seconds("delay", answer)))
        except BaseException as fault:  # noqa: BLE001 - foreign code: the user's backoff
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
    # The job says that it wants its task's function, which could not travel with it.
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
    yield from type(error).__mro__  # the group itself, where it is one

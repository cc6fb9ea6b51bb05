"""The decision after a handler raised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.backoff import Backoff
from taskbull.core.job import Job
from taskbull.core.outcome import (
    REASON_LIMIT,
    STACK_LIMIT,
    Category,
    Fail,
    LimitQueue,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
    reason_of,
    stack_of,
)
from taskbull.core.retry import RetryPolicy, attempts_of, decide, failure_before_run
from taskbull.core.wire.backoff import StoredBackoff
from taskbull.core.wire.job import decode_job
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import PermanentError, RateLimited, Retry, Snooze, TransientError


class RateLimitError(Exception):
    pass


class ApiRateLimitError(RateLimitError):
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message for you")


def half() -> float:
    return 0.5


def job(attempts: int | None = 5, made: int = 0, **options: Any) -> Job:
    if "error_backoffs" in options:
        options["error_backoffs"] = msgspec.Raw(msgspec.json.encode(options["error_backoffs"]))
    return Job(id="42", attempts_made=made, options=StoredOptions(attempts=attempts, **options))


def delay_after(error: BaseException, job: Job, policy: RetryPolicy | None = None) -> float:
    outcome = decide(error, job, policy or RetryPolicy(), random=half)
    assert isinstance(outcome, RetryAfter)
    return outcome.delay


EXPONENTIAL = StoredBackoff("exponential", 1000)
BY_ERROR = {"RateLimitError": StoredBackoff("fixed", 30_000)}


# VAL-07, BACKOFF-5
def test_an_error_with_an_entry_of_its_own_waits_by_it() -> None:
    failing = job(backoff=EXPONENTIAL, error_backoffs=BY_ERROR)
    assert delay_after(RateLimitError(), failing) == 30


# VAL-08, BACKOFF-5
def test_an_error_without_an_entry_waits_by_the_default() -> None:
    failing = job(made=2, backoff=EXPONENTIAL, error_backoffs=BY_ERROR)
    assert delay_after(ValueError(), failing) == 4


# BACKOFF-5
def test_an_entry_for_a_base_class_serves_its_children() -> None:
    failing = job(error_backoffs=BY_ERROR)
    assert delay_after(ApiRateLimitError(), failing) == 30
    nearest = BY_ERROR | {"ApiRateLimitError": StoredBackoff("fixed", 1000)}
    assert delay_after(ApiRateLimitError(), job(error_backoffs=nearest)) == 1


# BACKOFF-5
def test_entries_may_be_classes_and_qualified_names() -> None:
    by_class = RetryPolicy(error_backoffs={RateLimitError: Backoff.fixed(7)})
    assert delay_after(ApiRateLimitError(), job(), by_class) == 7
    by_name = RetryPolicy(error_backoffs={f"{__name__}.RateLimitError": Backoff.fixed(8)})
    assert delay_after(RateLimitError(), job(), by_name) == 8
    in_group = ExceptionGroup("several", [ValueError(), RateLimitError()])
    assert delay_after(in_group, job(), by_class) == 7


# BACKOFF-5
def test_without_a_default_an_error_without_an_entry_is_retried_immediately() -> None:
    assert delay_after(ValueError(), job(error_backoffs=BY_ERROR)) == 0


# FR-4
def test_the_jobs_own_options_win_then_the_tasks_then_the_apps() -> None:
    task = RetryPolicy(backoff=Backoff.fixed(2))
    app = RetryPolicy(attempts=7, backoff=Backoff.fixed(3), unknown_errors="retry")
    policy = task.over(app)
    assert delay_after(ValueError(), job(backoff=EXPONENTIAL), policy) == 1
    assert delay_after(ValueError(), job(), policy) == 2
    assert delay_after(ValueError(), job(), RetryPolicy().over(app)) == 3
    assert attempts_of(job(attempts=None), policy) == 7
    assert attempts_of(job(attempts=2), policy) == 2


# FR-4: Node writes 0 where its user gave no attempts.
@pytest.mark.parametrize(
    ("stored", "policy", "attempts"),
    [(0, None, 1), (None, None, 1), (1, None, 1), (1, 5, 1), (0, 5, 5), (3, 5, 3), (-2, None, 1)],
)
def test_attempts_are_counted_as_bullmq_does(
    stored: int | None, policy: int | None, attempts: int
) -> None:
    assert attempts_of(job(attempts=stored), RetryPolicy(attempts=policy)) == attempts


# FR-4
def test_a_job_is_retried_while_attempts_remain_and_then_fails() -> None:
    assert isinstance(decide(ValueError("x"), job(3, made=1), random=half), RetryAfter)
    outcome = decide(ValueError("x"), job(3, made=2), random=half)
    assert isinstance(outcome, Fail)
    assert outcome.verdict is Verdict.EXHAUSTED
    assert outcome.failure.category is Category.UNKNOWN
    assert outcome.failure.reason == "ValueError: x"
    assert outcome.failure.stack.startswith("ValueError: x")


def test_a_permanent_error_fails_immediately() -> None:
    outcome = decide(PermanentError("bad address"), job(), random=half)
    assert isinstance(outcome, Fail)
    assert outcome.verdict is Verdict.PERMANENT
    assert outcome.failure.category is Category.PERMANENT


def test_unknown_errors_fail_immediately_where_the_policy_says_so() -> None:
    policy = RetryPolicy(unknown_errors="fail")
    outcome = decide(ValueError("x"), job(), policy, random=half)
    assert isinstance(outcome, Fail)
    assert (outcome.verdict, outcome.failure.category) == (Verdict.PERMANENT, Category.UNKNOWN)
    assert isinstance(decide(TransientError("x"), job(), policy, random=half), RetryAfter)
    assert isinstance(decide(TimeoutError(), job(), policy, random=half), RetryAfter)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Snooze(30), SnoozeFor(30)),
        (RateLimited(30), LimitQueue(30)),
        (ExceptionGroup("task group", [Snooze(5)]), SnoozeFor(5)),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [RateLimited(6)])]), LimitQueue(6)),
    ],
)
def test_a_word_of_the_task_is_followed_and_spends_no_attempt(
    error: BaseException, outcome: Outcome
) -> None:
    assert decide(error, job(1), random=half) == outcome


def test_a_retry_waits_exactly_as_long_as_asked_and_spends_an_attempt() -> None:
    failing = job(3, backoff=EXPONENTIAL)
    assert delay_after(Retry(after=12.5), failing) == 12.5
    assert delay_after(Retry(), failing) == 0
    last = decide(Retry("again", after=1), job(3, made=2), random=half)
    assert isinstance(last, Fail)
    assert last.verdict is Verdict.EXHAUSTED
    assert last.failure.reason == "again"


def test_a_group_of_several_is_one_failure() -> None:
    group = ExceptionGroup("two went wrong", [ValueError("a"), Snooze(5)])
    outcome = decide(group, job(), random=half)
    assert isinstance(outcome, RetryAfter)
    told = "ValueError: a; the task asked to be run again in 5 s"
    assert outcome.failure.reason == f"ExceptionGroup: two went wrong (2 sub-exceptions): {told}"
    assert outcome.failure.error is group


def test_the_only_error_of_a_group_gives_the_reason() -> None:
    outcome = decide(ExceptionGroup("g", [PermanentError("inner")]), job(), random=half)
    assert isinstance(outcome, Fail)
    assert outcome.failure.reason == "inner"
    assert "ExceptionGroup: g" in outcome.failure.stack


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        (Category.PERMANENT, Category.PERMANENT),
        ("transient", Category.TRANSIENT),
        ("permanent", Category.PERMANENT),
        (None, Category.UNKNOWN),
        ("nonsense", Category.UNKNOWN),
        (5, Category.UNKNOWN),
    ],
)
def test_an_own_classifier_is_asked_and_may_leave_it_to_the_default(
    answer: Any, category: Category
) -> None:
    policy = RetryPolicy(classify=lambda error: answer)
    outcome = decide(ValueError("x"), job(), policy, random=half)
    assert isinstance(outcome, Fail | RetryAfter)
    assert outcome.failure.category is category


def test_the_tasks_own_word_is_not_up_to_the_classifier() -> None:
    policy = RetryPolicy(classify=lambda error: Category.TRANSIENT)
    assert isinstance(decide(PermanentError("x"), job(), policy, random=half), Fail)


def test_a_classifier_that_raises_is_ignored_and_the_stack_says_so() -> None:
    def broken(error: BaseException) -> Category:
        raise RuntimeError("oops")

    outcome = decide(TimeoutError("x"), job(), RetryPolicy(classify=broken), random=half)
    assert isinstance(outcome, RetryAfter)
    assert outcome.failure.category is Category.TRANSIENT
    assert (
        "The classifier was ignored, because it raised RuntimeError('oops')"
        in outcome.failure.stack
    )


def test_a_custom_backoff_is_given_the_attempts_the_error_and_the_job() -> None:
    asked: list[tuple[int, BaseException, Job]] = []

    def function(attempts_made: int, error: BaseException, job: Job) -> float:
        asked.append((attempts_made, error, job))
        return 11

    failing, error = job(made=1), ValueError()
    assert delay_after(error, failing, RetryPolicy(backoff=Backoff.custom(function))) == 11
    assert asked == [(2, error, failing)]


# BACKOFF-4
def test_a_cap_holds_for_a_custom_backoff_too() -> None:
    policy = RetryPolicy(backoff=Backoff.custom(lambda n, error, job: 100, max_delay=10))
    assert delay_after(ValueError(), job(), policy) == 10


def test_a_custom_backoff_that_gives_none_gives_up() -> None:
    policy = RetryPolicy(backoff=Backoff.custom(lambda n, error, job: None))
    outcome = decide(ValueError(), job(), policy, random=half)
    assert isinstance(outcome, Fail)
    assert outcome.verdict is Verdict.EXHAUSTED


@pytest.mark.parametrize("answer", [-1, math.nan, math.inf, "5", True, [], RuntimeError])
def test_a_custom_backoff_that_raises_or_talks_nonsense_becomes_exponential(answer: Any) -> None:
    def broken(attempts_made: int, error: BaseException, job: Job) -> Any:
        if answer is RuntimeError:
            raise RuntimeError("oops")
        return answer

    policy = RetryPolicy(backoff=Backoff.custom(broken))
    outcome = decide(ValueError(), job(made=2), policy, random=half)
    assert isinstance(outcome, RetryAfter)
    assert outcome.delay == 4
    assert "The backoff function was ignored" in outcome.failure.stack


def test_a_job_that_asks_for_its_tasks_function_gets_it_where_there_is_one() -> None:
    custom = Backoff.custom(lambda n, error, job: 9, max_delay=5)
    asking = job(made=1, backoff=custom.to_stored())
    assert delay_after(ValueError(), asking, RetryPolicy(backoff=custom)) == 5
    assert delay_after(ValueError(), asking, RetryPolicy(backoff=Backoff.fixed(3))) == 2
    by_error = RetryPolicy(error_backoffs={ValueError: Backoff.custom(lambda n, e, j: 4)})
    assert delay_after(ValueError(), asking, by_error) == 4


# BACKOFF: an unknown type of a foreign producer
def test_a_type_that_nobody_knows_is_exponential_from_its_delay() -> None:
    assert delay_after(ValueError(), job(made=2, backoff=StoredBackoff("theirs", 500))) == 2


# BACKOFF-3
def test_decorrelated_jitter_remembers_its_delay_in_the_job() -> None:
    stored = Backoff.decorrelated_jitter(1).to_stored()
    first = decide(ValueError(), job(backoff=stored), random=half)
    assert isinstance(first, RetryAfter)
    assert (first.delay, first.remembered_delay) == (2, 2)
    later = Job(id="1", previous_delay_ms=2000, options=StoredOptions(attempts=5, backoff=stored))
    second = decide(ValueError(), later, random=half)
    assert isinstance(second, RetryAfter)
    assert (second.delay, second.remembered_delay) == (3.5, 3.5)
    other = decide(ValueError(), job(backoff=EXPONENTIAL), random=half)
    assert isinstance(other, RetryAfter)
    assert other.remembered_delay is None


def test_a_condemned_job_fails_with_the_text_it_was_condemned_with() -> None:
    condemned = decode_job(b"42", {b"defa": b"job stalled more than allowable limit"})
    outcome = failure_before_run(condemned)
    assert outcome is not None
    assert outcome.verdict is Verdict.DOOMED
    assert outcome.failure.reason == "job stalled more than allowable limit"
    assert failure_before_run(job()) is None


def test_a_job_that_cannot_be_read_fails_permanently() -> None:
    outcome = failure_before_run(decode_job(b"42", {b"opts": b"{nope"}))
    assert outcome is not None
    assert outcome.failure.category is Category.PERMANENT
    assert "Cannot read field 'opts' of job '42'" in outcome.failure.reason


def test_corrupt_data_met_by_the_handler_fails_permanently() -> None:
    corrupt = decode_job(b"42", {b"opts": b'{"attempts":9}', b"data": b"{nope"})
    with pytest.raises(ValueError) as caught:
        _ = corrupt.data
    outcome = decide(caught.value, corrupt, random=half)
    assert isinstance(outcome, Fail)
    assert outcome.verdict is Verdict.PERMANENT


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError(),
        ValueError("😀 \0"),
        ValueError("\ud800"),
        UnprintableError(),
    ],
)
def test_the_reason_and_the_stack_are_always_valid_text(error: BaseException) -> None:
    reason_of(error).encode()
    stack_of(error).encode()
    assert isinstance(decide(error, job(), random=half), RetryAfter)


def test_the_stack_is_the_traceback_with_its_causes() -> None:
    def fail() -> None:
        try:
            empty: dict[str, int] = {}
            empty["inner"]
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError) as caught:
        fail()
    stack = stack_of(caught.value)
    assert "KeyError: 'inner'" in stack
    assert stack.endswith("ValueError: outer")
    assert "in fail" in stack


def test_texts_are_bounded_and_keep_both_ends() -> None:
    error = ValueError("a" * 10**6 + "the end")
    assert len(reason_of(error)) < REASON_LIMIT + 100
    assert reason_of(error).startswith("ValueError: aaa")
    assert reason_of(error).endswith("the end")
    assert len(stack_of(error)) < STACK_LIMIT + 100


def test_an_error_that_breaks_its_own_traceback_still_has_a_stack() -> None:
    class BrokenError(ValueError):
        def __getattribute__(self, name: str) -> Any:
            if name == "__cause__":
                raise RuntimeError("no cause")
            return super().__getattribute__(name)

    assert stack_of(BrokenError("x"), ["a note"]) == "BrokenError: x\na note"
    assert isinstance(decide(BrokenError("x"), job(), random=half), RetryAfter)


numbers = st.none() | st.integers(-5, 10)


@given(
    st.sampled_from([ValueError("x"), TimeoutError(), PermanentError("p"), Retry(after=3)]),
    numbers,
    st.integers(0, 10),
    st.none() | st.integers(1, 5),
)
def test_a_decision_never_exceeds_the_attempts(
    error: Exception, attempts: int | None, made: int, policy_attempts: int | None
) -> None:
    policy = RetryPolicy(attempts=policy_attempts)
    failing = job(attempts, made=made)
    outcome = decide(error, failing, policy, random=half)
    if isinstance(outcome, RetryAfter):
        assert failing.attempt < attempts_of(failing, policy)
    else:
        assert isinstance(outcome, Fail)


def test_random_is_the_callers() -> None:
    asked: list[int] = []

    def random() -> float:
        asked.append(1)
        return 0.0

    source: Callable[[], float] = random
    policy = RetryPolicy(backoff=Backoff.fixed(10, jitter=0.5))
    outcome = decide(ValueError(), job(), policy, random=source)
    assert isinstance(outcome, RetryAfter)
    assert (outcome.delay, asked) == (5, [1])


def test_too_many_backoffs_of_a_job_are_not_read() -> None:  # S13
    many = {f"E{number}": StoredBackoff("fixed", 1000) for number in range(50_000)}
    assert delay_after(ValueError(), job(error_backoffs={**many, **BY_ERROR})) == 0
    some = {f"E{number}": StoredBackoff("fixed", 1000) for number in range(100)}
    assert delay_after(RateLimitError(), job(error_backoffs={**some, **BY_ERROR})) == 30


@pytest.mark.parametrize(
    "junk", [b"[1]", b'{"ValueError": 1}', b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
)
def test_backoffs_of_a_job_that_make_no_sense_are_ignored(junk: bytes) -> None:  # S13
    odd = Job(id="1", options=StoredOptions(attempts=5, error_backoffs=msgspec.Raw(junk)))
    policy = RetryPolicy(error_backoffs={ValueError: Backoff.fixed(7)})
    assert delay_after(ValueError(), odd, policy) == 7

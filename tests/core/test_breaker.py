"""The circuit breaker as a state machine."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskbull.core.outcome import (
    Category,
    Complete,
    Discard,
    Fail,
    Failure,
    LimitQueue,
    Loss,
    Outcome,
    Release,
    RetryAfter,
    SnoozeFor,
    Verdict,
)
from taskbull.core.retry import Breaker, BreakerState, CircuitBreaker

FAILURE = Failure(Category.UNKNOWN, "x", "x", ValueError("x"))
DONE = Complete()
RETRIED = RetryAfter(FAILURE, 1)
EXHAUSTED = Fail(FAILURE, Verdict.EXHAUSTED)
DOOMED = Fail(FAILURE, Verdict.DOOMED)


def run(breaker: Breaker, job_id: str, outcome: Outcome, now: float = 0) -> BreakerState | None:
    breaker.started(job_id)
    return breaker.ended(job_id, outcome, now)


def opened(half_open_max_attempts: int = 1) -> Breaker:
    breaker = Breaker(CircuitBreaker(2, 30, half_open_max_attempts))
    run(breaker, "a", RETRIED)
    assert run(breaker, "b", EXHAUSTED) is BreakerState.OPEN
    return breaker


def half_opened(half_open_max_attempts: int = 1) -> Breaker:
    breaker = opened(half_open_max_attempts)
    assert breaker.check(30) is BreakerState.HALF_OPEN
    return breaker


# CB-2, CB-3 (VAL-11 without a worker)
def test_it_opens_once_after_so_many_failures_in_a_row_and_takes_nothing() -> None:
    breaker = Breaker(CircuitBreaker(threshold=3, duration=30))
    assert breaker.state == "closed"
    assert breaker.allowed(10) == 10
    assert breaker.wakes_at is None
    assert run(breaker, "1", RETRIED) is None
    assert run(breaker, "2", EXHAUSTED) is None
    assert run(breaker, "3", RETRIED, now=5) is BreakerState.OPEN
    assert breaker.failures == 3
    assert breaker.state == "open"
    assert breaker.allowed(10) == 0
    assert breaker.wakes_at == 35


# CB-2 (VAL-15 without a worker)
def test_a_success_resets_the_count() -> None:
    breaker = Breaker(CircuitBreaker(3, 30))
    outcomes: list[Outcome] = [RETRIED, RETRIED, DONE, RETRIED, RETRIED]
    for outcome in outcomes:
        assert run(breaker, "x", outcome) is None
    assert breaker.state is BreakerState.CLOSED


# CB-2, CB-3 (VAL-12 without a worker)
def test_it_is_half_open_once_its_duration_is_over() -> None:
    breaker = opened()
    assert breaker.check(29.999) is None
    assert breaker.state == "open"
    assert breaker.check(30) is BreakerState.HALF_OPEN
    assert breaker.check(31) is None
    assert breaker.state == "half-open"
    assert breaker.wakes_at is None


# CB-2
def test_half_open_it_takes_no_more_than_the_jobs_to_be_tried() -> None:
    breaker = half_opened(2)
    assert breaker.allowed(10) == 2
    assert breaker.allowed(1) == 1
    assert breaker.allowed(10, asked=1) == 1
    assert breaker.allowed(10, asked=5) == 0
    breaker.started("t1")
    assert breaker.allowed(10) == 1
    breaker.started("t2")
    assert breaker.allowed(10) == 0
    assert breaker.ended("t1", DONE, 31) is None
    assert breaker.allowed(10) == 0


# CB-2, CB-3 (VAL-13 without a worker)
def test_it_closes_when_all_that_were_tried_succeed() -> None:
    breaker = half_opened(2)
    assert run(breaker, "t1", DONE, 31) is None
    assert run(breaker, "t2", DONE, 32) is BreakerState.CLOSED
    assert breaker.state == "closed"
    assert breaker.allowed(10) == 10
    assert run(breaker, "x", RETRIED) is None  # The count started again.


# CB-2 (VAL-14 without a worker)
def test_one_bad_test_opens_it_again_with_a_fresh_timer() -> None:
    breaker = half_opened(2)
    breaker.started("t1")
    breaker.started("t2")
    assert breaker.ended("t1", RETRIED, 40) is BreakerState.OPEN
    assert breaker.failures == 3
    assert breaker.wakes_at == 70
    assert breaker.ended("t2", DONE, 41) is None
    assert breaker.state == "open"


# CB-2
@pytest.mark.parametrize("late", [DONE, RETRIED])
def test_a_job_that_ran_before_it_opened_says_nothing_later(late: Outcome) -> None:
    breaker = Breaker(CircuitBreaker(1, 30))
    for job_id in ["slow", "slower", "slowest"]:
        breaker.started(job_id)
    run(breaker, "x", EXHAUSTED)
    assert breaker.ended("slow", late, 1) is None
    assert breaker.state == "open"
    breaker.check(30)
    assert breaker.ended("slower", late, 31) is None
    assert breaker.state == "half-open"
    assert run(breaker, "t", DONE, 32) is BreakerState.CLOSED
    assert breaker.ended("slowest", late, 33) is None
    assert breaker.state == "closed"


def test_a_job_that_arrives_after_it_opened_runs_without_counting() -> None:
    breaker = opened()
    assert run(breaker, "was under way", RETRIED, 1) is None
    assert breaker.wakes_at == 30


# CB-4 (VAL-18 without a worker)
@pytest.mark.parametrize(
    "outcome", [DOOMED, Discard(Loss.TAKEN), Release(), SnoozeFor(1), LimitQueue(1)]
)
def test_what_is_no_result_of_the_task_does_not_count(outcome: Outcome) -> None:
    breaker = Breaker(CircuitBreaker(2, 30))
    run(breaker, "a", RETRIED)
    assert run(breaker, "b", outcome) is None
    assert run(breaker, "c", RETRIED) is BreakerState.OPEN  # neither counted nor reset
    breaker.check(30)
    assert run(breaker, "t", outcome, 31) is None
    assert breaker.state == "half-open"
    assert breaker.allowed(5) == 1  # another may be tried instead


class BreakerMachine(RuleBasedStateMachine):
    """A worker with a breaker, compared with what the requirements say about its history."""

    def __init__(self) -> None:
        super().__init__()
        self.options = CircuitBreaker(threshold=3, duration=10, half_open_max_attempts=2)
        self.breaker = Breaker(self.options)
        self.now = 0.0
        self.running: list[str] = []
        self.taken = 0
        self.taken_half_open = 0
        self.transitions: list[BreakerState] = []

    def note(self, transition: BreakerState | None) -> None:
        if transition is not None:
            self.transitions.append(transition)
            self.taken_half_open = 0

    @rule(seconds=st.floats(0, 12))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.breaker.check(self.now))

    @rule(wanted=st.integers(0, 5))
    def take(self, wanted: int) -> None:
        for _ in range(self.breaker.allowed(wanted)):
            self.taken += 1
            self.running.append(f"job-{self.taken}")
            self.breaker.started(self.running[-1])
            if self.breaker.state is BreakerState.HALF_OPEN:
                self.taken_half_open += 1

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0), outcome=st.sampled_from([DONE, RETRIED, EXHAUSTED]))
    def end(self, index: int, outcome: Outcome) -> None:
        job_id = self.running.pop(index % len(self.running))
        self.note(self.breaker.ended(job_id, outcome, self.now))

    @invariant()
    def the_state_is_that_of_the_last_transition(self) -> None:
        last = self.transitions[-1] if self.transitions else BreakerState.CLOSED
        assert self.breaker.state is last

    @invariant()
    def transitions_follow_each_other_as_they_must(self) -> None:
        may_follow = {
            BreakerState.CLOSED: {BreakerState.OPEN},
            BreakerState.OPEN: {BreakerState.HALF_OPEN},
            BreakerState.HALF_OPEN: {BreakerState.OPEN, BreakerState.CLOSED},
        }
        states = [BreakerState.CLOSED, *self.transitions]
        for one, other in zip(states, self.transitions, strict=False):
            assert other in may_follow[one]

    @invariant()
    def no_more_than_allowed_are_tried(self) -> None:
        assert self.taken_half_open <= self.options.half_open_max_attempts

    @invariant()
    def an_open_circuit_takes_nothing_and_knows_when_to_wake(self) -> None:
        is_open = self.breaker.state is BreakerState.OPEN
        assert (self.breaker.allowed(5) == 0) or not is_open
        assert (self.breaker.wakes_at is not None) == is_open


BreakerMachine.TestCase.settings = settings(stateful_step_count=40)
TestBreakerMachine = BreakerMachine.TestCase

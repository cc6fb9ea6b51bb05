"""A circuit breaker in a worker: its events, and its timer."""

from __future__ import annotations

from taskbull.core import events
from taskbull.core.outcome import Category, Complete, Fail, Failure, Outcome, Release, Verdict
from taskbull.core.retry import BreakerState, CircuitBreaker
from taskbull.worker.demand import Circuit
from taskbull.worker.run import Alarm, Clock, Listeners, Reporter

FAILED = Fail(Failure(Category.UNKNOWN, "no", "no", ValueError("no")), Verdict.PERMANENT)


class SetClock(Clock):
    """A clock that tests set by hand."""

    time = 100.0

    def now(self) -> float:
        return self.time


class SetAlarm(Alarm):
    """An alarm that records the times it was set to."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def set(self, at: float) -> None:
        self.times.append(at)


class Case:
    """A circuit that opens after two failures, for 30 seconds."""

    def __init__(self) -> None:
        listeners, self.heard = Listeners(), list[events.Event]()
        listeners.on(events.Event, self.heard.append)
        self.clock, self.alarm = SetClock(), SetAlarm()
        options = CircuitBreaker(threshold=2, duration=30)
        self.circuit = Circuit(options, Reporter(listeners, "me", "q"), self.clock, self.alarm)

    def run(self, *outcomes: Outcome) -> Case:
        for number, outcome in enumerate(outcomes):
            self.circuit.breaker.started(str(number))
            self.circuit.count(str(number), outcome)
        return self

    def kinds(self) -> list[type[events.Event]]:
        return [type(event) for event in self.heard]


def test_a_closed_circuit_allows_all_and_tells_nothing() -> None:
    case = Case().run(FAILED, Complete(), FAILED, Release())
    assert (case.circuit.breaker.state, case.circuit.breaker.is_open) == (
        BreakerState.CLOSED,
        False,
    )
    assert case.circuit.breaker.allowed(10, 3) == 10
    assert (case.heard, case.alarm.times) == ([], [])


def test_an_open_one_allows_nothing_and_sets_the_alarm_for_its_end() -> None:
    case = Case().run(FAILED, FAILED)
    assert (case.circuit.breaker.is_open, case.circuit.breaker.allowed(10, 0)) == (True, 0)
    assert case.kinds() == [events.CircuitOpened]
    assert case.alarm.times == [130.0]


def test_an_alarm_that_rang_for_somebody_else_is_set_again() -> None:
    case = Case().run(FAILED, FAILED)
    case.clock.time = 110.0
    case.circuit.check()
    assert case.alarm.times == [130.0, 130.0]
    assert case.kinds() == [events.CircuitOpened]


def test_after_its_time_one_job_is_tried_and_decides() -> None:
    for outcome, state, last in (
        (Complete(), BreakerState.CLOSED, events.CircuitClosed),
        (FAILED, BreakerState.OPEN, events.CircuitOpened),
        (Release(), BreakerState.HALF_OPEN, events.CircuitHalfOpened),  # it says nothing
    ):
        case = Case().run(FAILED, FAILED)
        case.clock.time = 130.0
        case.circuit.check()
        assert case.kinds() == [events.CircuitOpened, events.CircuitHalfOpened]
        assert (case.circuit.breaker.allowed(10, 0), case.circuit.breaker.allowed(10, 1)) == (1, 0)
        case.run(outcome)
        assert (case.circuit.breaker.state, case.kinds()[-1]) == (state, last)


def test_events_have_the_failures_the_duration_and_the_last_test_job() -> None:
    case = Case().run(FAILED, FAILED)
    case.clock.time = 130.0
    case.circuit.check()
    case.run(Complete())
    opened, half_opened, closed = case.heard
    assert isinstance(opened, events.CircuitOpened)
    assert (opened.failures, opened.threshold) == (2, 2)
    assert isinstance(half_opened, events.CircuitHalfOpened)
    assert half_opened.duration == 30
    assert isinstance(closed, events.CircuitClosed)
    assert closed.test_job_id == "0"

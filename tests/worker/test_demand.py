"""How many jobs a worker fetches, and when, as tables."""

from __future__ import annotations

import pytest

from taskbull.core.retry import Breaker, BreakerState, CircuitBreaker
from taskbull.worker.demand import BATCH, CALLS, Demand


def demand(
    concurrency: int = 10,
    *,
    occupied: int = 0,
    asked: int = 0,
    in_flight: int = 0,
    wants_jobs: bool = True,
) -> Demand:
    made = Demand(concurrency)
    made.occupied, made.asked, made.in_flight, made.wants_jobs = (
        occupied,
        asked,
        in_flight,
        wants_jobs,
    )
    return made


@pytest.mark.parametrize(
    ("state", "room"),
    [
        (demand(), 10),
        (demand(occupied=4), 6),
        (demand(occupied=4, asked=5), 1),
        (demand(occupied=10), 0),
    ],
)
def test_no_more_jobs_are_asked_for_than_there_are_free_slots(state: Demand, room: int) -> None:
    assert state.room() == room


def test_nothing_is_asked_for_while_the_queue_is_limited_or_the_worker_stops() -> None:
    limited, stopping = demand(), demand()
    limited.limited_until = 5.0
    stopping.stopping = True
    assert (limited.room(), stopping.room()) == (0, 0)


def test_a_circuit_breaker_has_the_last_word() -> None:
    breaker = Breaker(CircuitBreaker(threshold=1, duration=1, half_open_max_attempts=3))
    breaker.state = BreakerState.HALF_OPEN
    state = Demand(10, breaker)
    state.asked = 1
    assert state.room() == 2


@pytest.mark.parametrize(
    ("state", "outcomes", "unbatched", "want"),
    [
        # No call is in flight, so anything due is sent.
        (demand(occupied=10), 1, 0, 0),
        (demand(occupied=9), 1, 0, 1),
        (demand(occupied=9, wants_jobs=False), 1, 0, 1),
        (demand(wants_jobs=False), 0, 0, None),
        (demand(wants_jobs=True), 0, 0, 10),
        (demand(occupied=10, wants_jobs=True), 0, 0, None),
        (demand(100), 0, 0, BATCH),
        # One is in flight. Another one is sent for half of the slots.
        (demand(occupied=10, in_flight=1), 4, 0, None),
        (demand(occupied=5, in_flight=1), 5, 0, 5),
        (demand(occupied=6, in_flight=1), 0, 0, None),
        (demand(occupied=5, in_flight=1), 0, 0, 5),
        (demand(occupied=5, in_flight=1, wants_jobs=False), 0, 0, None),
        (demand(1, in_flight=1), 1, 0, 1),
        # The number of calls in flight is limited.
        (demand(in_flight=CALLS), 50, 0, None),
        # After a refusal, outcomes are sent one by one, without fetching.
        (demand(), 3, 3, 0),
        (demand(in_flight=1), 50, 1, None),
    ],
)
def test_when_a_call_is_due_and_what_it_asks_for(
    state: Demand, outcomes: int, unbatched: int, want: int | None
) -> None:
    assert state.due(outcomes, unbatched) == want


@pytest.mark.parametrize(
    ("taken", "woken", "wants_jobs"),
    [
        (5, False, True),  # It got all requested jobs, so there may be more.
        (4, False, False),
        (0, False, False),
        (0, True, True),  # Jobs were reported after this call was sent.
    ],
)
def test_whether_there_may_be_more_jobs(taken: int, woken: bool, wants_jobs: bool) -> None:
    state = demand()
    wakes = state.wakes
    if woken:
        state.wake()
    state.answered(5, taken, wakes)
    assert state.wants_jobs is wants_jobs


@pytest.mark.parametrize(("concurrency", "enough"), [(1, 1), (2, 1), (10, 5), (100, 25)])
def test_how_many_jobs_are_worth_a_call(concurrency: int, enough: int) -> None:
    assert Demand(concurrency).enough == enough

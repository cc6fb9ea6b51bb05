"""Delays between attempts, in memory and in BullMQ's form."""

from __future__ import annotations

import math
import random as randomness
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.backoff import LONGEST_DELAY, Backoff
from taskbull.core.wire.backoff import Curve, StoredBackoff
from taskbull.errors import ConfigurationError

WRONG: Any = "1"

fractions = st.floats(0, 1, exclude_max=True)
delays = st.floats(0.001, 10_000)
caps = st.none() | st.floats(0.001, 10_000)
jitters = st.floats(0, 1)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    delay = round(draw(delays), 3)
    cap = draw(caps)
    max_delay = None if cap is None else max(0.001, round(cap, 3))
    curve = draw(st.sampled_from([c for c in Curve if c is not Curve.NONE]))
    jitter = 0.0 if curve is Curve.DECORRELATED_JITTER else draw(jitters)
    exponent = draw(st.floats(0.1, 5)) if curve is Curve.POLYNOMIAL else 2.0
    return Backoff(curve, delay, max_delay, jitter, exponent)


def always(fraction: float) -> Callable[[], float]:
    return lambda: fraction


def waits(backoff: Backoff, attempts: int) -> list[int]:
    """Give the delays in milliseconds after each of the failed attempts."""
    return [round(backoff.wait(n, random=always(0.5)) * 1000) for n in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        # VAL-01, BACKOFF-1
        (Backoff.linear(1), [1000, 2000, 3000]),
        # VAL-02, BACKOFF-2
        (Backoff.polynomial(0.5), [500, 2000, 4500]),
        # VAL-03, BACKOFF-2
        (Backoff.polynomial(0.1, 3), [100, 800]),
        # VAL-05, BACKOFF-4
        (Backoff.exponential(1, max_delay=10), [1000, 2000, 4000, 8000, 10_000]),
        # VAL-06, BACKOFF-4
        (Backoff.linear(5, max_delay=15), [5000, 10_000, 15_000, 15_000]),
        # VAL-09
        (Backoff.fixed(2), [2000, 2000, 2000]),
        # VAL-10
        (Backoff.exponential(1), [1000, 2000, 4000]),
        (Backoff.none(), [0, 0, 0]),
        (Backoff.fixed(timedelta(minutes=1)), [60_000]),
        # BACKOFF-4: 0 is no cap.
        (Backoff.linear(5, max_delay=0), [5000, 10_000, 15_000, 20_000]),
        (Backoff.fixed(2, max_delay=1), [1000, 1000]),
    ],
)
def test_a_curve_gives_its_delays(backoff: Backoff, expected: list[int]) -> None:
    assert waits(backoff, len(expected)) == expected


# VAL-04, BACKOFF-3
def test_decorrelated_jitter_stays_in_its_bounds_and_is_not_monotonic() -> None:
    backoff = Backoff.decorrelated_jitter(1, max_delay=30)
    random = randomness.Random(7).random
    previous: float | None = None
    seen: list[float] = []
    for attempt in range(1, 10):
        previous = backoff.wait(attempt, random=random, previous=previous)
        seen.append(previous)
    assert all(1 <= delay <= 30 for delay in seen)
    assert seen != sorted(seen)


# BACKOFF-3
@given(delays, caps, st.floats(0, 10_000), fractions)
def test_decorrelated_jitter_is_between_its_delay_and_three_times_the_last(
    delay: float, cap: float | None, previous: float, fraction: float
) -> None:
    delay = round(delay, 3)
    backoff = Backoff.decorrelated_jitter(delay, max_delay=cap)
    wait = backoff.wait(1, random=always(fraction), previous=previous)
    longest = max(delay, previous) * 3 + 0.002
    if cap is None or cap >= delay:
        assert delay - 1e-9 <= wait
    assert wait <= min(longest, (cap or math.inf) + 0.001)


# VAL-19
@given(fractions)
def test_jitter_of_a_half_on_linear_at_attempt_two(fraction: float) -> None:
    wait = Backoff.linear(1, jitter=0.5).wait(2, random=always(fraction))
    assert 1 <= wait <= 2


@given(backoffs(), st.integers(1, 10**6), fractions)
def test_no_delay_is_negative_or_above_the_cap(
    backoff: Backoff, attempt: int, fraction: float
) -> None:
    wait = backoff.wait(attempt, random=always(fraction), previous=5)
    assert 0 <= wait <= LONGEST_DELAY
    assert wait <= (backoff.max_delay or LONGEST_DELAY)


@given(st.integers(1, 10**7), jitters, st.integers(1, 20), fractions)
def test_jitter_shortens_as_in_bullmq(
    delay_ms: int, jitter: float, attempt: int, fraction: float
) -> None:
    plain = Backoff.exponential(delay_ms / 1000).wait(attempt, random=always(fraction))
    jittered = Backoff.exponential(delay_ms / 1000, jitter=jitter).wait(
        attempt, random=always(fraction)
    )
    assert plain * (1 - jitter) - 0.001 <= jittered <= plain


def test_the_rounding_is_that_of_bullmq() -> None:
    # exponential: half up, then down with jitter: floor(0.3 * 1000 * 0.2 + 1000 * 0.8)
    assert Backoff.exponential(1, jitter=0.2).wait(1, random=always(0.3)) == 0.86
    assert Backoff.fixed(0.0015).wait(1, random=always(0)) == 0.002


@pytest.mark.parametrize("curve", list(Curve))
def test_the_millionth_attempt_does_not_overflow(curve: Curve) -> None:
    backoff = Backoff(curve, 0 if curve is Curve.NONE else 3600, jitter=0.5, exponent=200)
    wait = backoff.wait(10**6, random=always(0.9), previous=1e9)
    assert 0 <= wait <= LONGEST_DELAY


# FR-7, BACKOFF-2, BACKOFF-4
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Backoff.fixed(0), "backoff delay must be greater than 0, got 0"),
        (lambda: Backoff.linear(-1), "backoff delay must be greater than 0, got -1"),
        (lambda: Backoff.exponential(WRONG), "backoff delay must be seconds"),
        (lambda: Backoff.exponential(math.nan), "backoff delay"),
        (lambda: Backoff.fixed(True), "backoff delay"),
        (lambda: Backoff.fixed(1, max_delay=-1), "backoff max_delay must be 0 or more, got -1"),
        (lambda: Backoff.fixed(1, jitter=1.5), "backoff jitter must be a number from 0 to 1"),
        (lambda: Backoff.fixed(1, jitter=-0.1), "backoff jitter"),
        (lambda: Backoff.fixed(1, jitter=WRONG), "backoff jitter"),
        (lambda: Backoff.fixed(1, jitter=True), "backoff jitter"),
        (lambda: Backoff.polynomial(1, 0), "backoff exponent must be a number greater than 0"),
        (lambda: Backoff.polynomial(1, -2), "backoff exponent"),
        (lambda: Backoff.polynomial(1, math.inf), "backoff exponent"),
        (lambda: Backoff.custom(WRONG), "backoff function must be a sync function"),
        (lambda: Backoff.custom(len), "backoff function must be"),  # type: ignore[arg-type]
        (lambda: Backoff.from_bullmq({"type": "wild", "delay": 1}), "backoff type .*'wild'"),
        (lambda: Backoff.from_bullmq({"type": "custom", "delay": 1}), "backoff type"),
        (lambda: Backoff.from_bullmq({"delay": 1}), "backoff type must be one of 'fixed'"),
        (lambda: Backoff.from_bullmq({"type": "fixed", "delay": 0}), "backoff delay"),
        (lambda: Backoff.from_bullmq({"type": "fixed"}), "backoff delay"),
        (lambda: Backoff.from_bullmq({"type": "fixed", "delay": "1"}), "BullMQ backoff"),
        (lambda: Backoff.from_bullmq(WRONG), "BullMQ backoff"),
        (lambda: Backoff.from_bullmq(-5), "backoff delay"),
    ],
)
def test_an_invalid_backoff_is_refused(make: Callable[[], Backoff], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_bullmqs_own_form_is_taken() -> None:
    assert Backoff.from_bullmq({"type": "exponential", "delay": 1000}) == Backoff.exponential(1)
    assert Backoff.from_bullmq(5000) == Backoff.fixed(5)
    cubic = {"type": "polynomial", "delay": 100, "exponent": 3, "maxDelay": 5000, "jitter": 0.1}
    assert Backoff.from_bullmq(cubic) == Backoff.polynomial(0.1, 3, max_delay=5, jitter=0.1)
    assert Backoff.from_bullmq({"type": "linear", "delay": 1000}) == Backoff.linear(1)
    decorrelated = {"type": "decorrelatedJitter", "delay": 1000, "maxDelay": 30000, "jitter": 1}
    assert Backoff.from_bullmq(decorrelated) == Backoff.decorrelated_jitter(1, max_delay=30)


# A Node worker leaves a job whose backoff has an unknown type stuck in `active`.
@given(backoffs())
def test_what_is_stored_is_valid_for_bullmq_and_complete_for_us(backoff: Backoff) -> None:
    stored = backoff.to_stored()
    assert stored.type in {"fixed", "exponential"}
    assert isinstance(stored.delay_ms, int)
    assert stored.jitter is None or 0 <= stored.jitter <= 1
    assert Backoff.from_stored(stored) == backoff


def test_the_default_backoff_stands_in_bullmqs_own_fields() -> None:
    stored = Backoff.exponential(1, max_delay=3600, jitter=0.2).to_stored()
    assert stored == StoredBackoff("exponential", 1000, 0.2, 3_600_000)


def test_no_backoff_is_a_delay_of_zero_for_node() -> None:
    stored = Backoff.none().to_stored()
    assert (stored.type, stored.delay_ms) == ("fixed", 0)
    assert Backoff.from_stored(stored) == Backoff.none()


def test_a_custom_function_stays_at_home() -> None:
    backoff = Backoff.custom(lambda attempts, error, job: 5, max_delay=60)
    assert backoff.to_stored() == StoredBackoff("exponential", 1000, None, 60_000, None, "custom")


@pytest.mark.parametrize(
    ("stored", "backoff"),
    [
        (5000, Backoff.fixed(5)),
        (0, Backoff.none()),
        (-1, Backoff.none()),
        (5e-324, Backoff.none()),
        (StoredBackoff("fixed"), Backoff.none()),
        (StoredBackoff("exponential", 0), Backoff.none()),
        (StoredBackoff("exponential", 1500.5), Backoff.exponential(1.5005)),
        (StoredBackoff("fixed", 1000, 7, -1, -1), Backoff.fixed(1)),
        (StoredBackoff("exponential", 1000, curve="linear"), Backoff.linear(1)),
        (StoredBackoff("exponential", 1000, curve="from the future"), Backoff.exponential(1)),
        (StoredBackoff("theirs", 2000), Backoff(Curve.CUSTOM, 2)),
        (StoredBackoff("theirs"), Backoff(Curve.CUSTOM, 1)),
        (StoredBackoff(), Backoff(Curve.CUSTOM, 1)),
    ],
)
def test_a_foreign_backoff_has_a_meaning_whatever_it_is(
    stored: StoredBackoff | float, backoff: Backoff
) -> None:
    assert Backoff.from_stored(stored) == backoff


numbers = st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.none() | st.text() | st.sampled_from([str(curve) for curve in Curve])


@given(st.builds(StoredBackoff, texts, numbers, numbers, numbers, numbers, texts), fractions)
def test_no_foreign_backoff_raises(stored: StoredBackoff, fraction: float) -> None:
    wait = Backoff.from_stored(stored).wait(3, random=always(fraction), previous=1)
    assert 0 <= wait <= LONGEST_DELAY

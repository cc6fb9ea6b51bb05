"""Seconds, timedeltas and instants; milliseconds on the wire."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.validation import (
    LONGEST,
    check_instant,
    from_ms,
    instant_from_ms,
    instant_to_ms,
    seconds,
    to_ms,
)
from taskbull.errors import ConfigurationError, RateLimited, Retry, Snooze


@pytest.mark.parametrize(
    ("given_value", "wanted"),
    [(3, 3.0), (0.5, 0.5), (0, 0.0), (-0.0, 0.0), (timedelta(minutes=1), 60.0)],
)
def test_a_duration_is_seconds_or_a_timedelta(given_value: object, wanted: float) -> None:
    assert seconds("delay", given_value) == wanted


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -0.001, math.nan, math.inf, -math.inf, True, "5", None, [], LONGEST + 1),
        timedelta(seconds=-1),
        pytest.param(10**400, id="an int that no float holds"),
    ],
)
def test_what_is_no_duration_is_refused_by_name_and_value(value: object) -> None:
    with pytest.raises(ConfigurationError, match="delay must"):
        seconds("delay", value)


def test_zero_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(ConfigurationError, match="timeout must be greater than 0, got 0"):
        seconds("timeout", 0, positive=True)


def test_a_positive_duration_is_never_zero_on_the_wire() -> None:
    assert to_ms(0.0000001) == 1
    assert to_ms(0) == 0
    assert to_ms(1.5) == 1500


@given(st.integers(0, to_ms(LONGEST)))
def test_milliseconds_survive_the_way_through_seconds(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms


@given(st.datetimes(timezones=st.timezones(), max_value=datetime(9998, 1, 1)))  # noqa: DTZ001
def test_instants_survive_the_way_through_milliseconds(instant: datetime) -> None:
    check_instant("eta", instant)
    again = instant_from_ms(instant_to_ms(instant))
    assert again is not None
    assert timedelta(0) <= instant - again < timedelta(milliseconds=1)


def test_a_naive_datetime_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigurationError, match=r"eta must be a timezone-aware datetime.*time zone"
    ):
        check_instant("eta", datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ConfigurationError, match="eta must be a timezone-aware datetime"):
        check_instant("eta", 5)


def test_an_instant_in_another_zone_is_the_same_on_the_wire() -> None:
    instant = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert instant_to_ms(instant.astimezone(timezone(timedelta(hours=5)))) == instant_to_ms(instant)


def test_milliseconds_that_no_datetime_holds_are_none() -> None:
    assert instant_from_ms(10**18) is None
    assert instant_from_ms(math.inf) is None


def test_the_words_of_a_task_take_timedeltas() -> None:
    assert Retry(after=timedelta(minutes=1)).after == 60
    assert Snooze(30).seconds == 30
    assert "30 s" in str(RateLimited(timedelta(seconds=30)))


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e12, True, "5", None])
def test_the_words_of_a_task_check_their_argument(value: float) -> None:
    with pytest.raises(ConfigurationError, match="Snooze"):
        Snooze(value)
    with pytest.raises(ConfigurationError, match="RateLimited"):
        RateLimited(value)
    with pytest.raises(ConfigurationError, match="Retry"):
        Retry(after=value)

"""The run after a job scheduler's current run."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.wire.options import StoredOptions
from taskbull.core.wire.schedule import NextRun, next_run
from taskbull.errors import ConfigurationError

NOW = 1_800_000_000_123  # 2027-01-15 08:00:00.123 UTC
MINUTE = 60_000
AT_09 = NOW - 123 + 60 * MINUTE


def following(previous_ms: int | None = None, **repeat: Any) -> NextRun | None:
    return next_run(StoredOptions(repeat=repeat, previous_ms=previous_ms), NOW)


def hourly(previous_ms: int | None = None, **repeat: Any) -> NextRun | None:
    return following(previous_ms, pattern="0 * * * *", tz="UTC", **repeat)


def test_a_cron_line_says_when_its_next_run_is() -> None:
    assert hourly(count=1) == NextRun(2, AT_09)


def test_the_next_run_is_after_this_one_however_early_that_was_taken() -> None:
    assert hourly(AT_09) == NextRun(1, AT_09 + 60 * MINUTE)


def test_runs_that_were_missed_are_not_made_up_for() -> None:
    assert hourly(AT_09 - 600 * MINUTE) == NextRun(1, AT_09)


def test_the_line_is_read_in_the_time_zone_of_the_scheduler() -> None:
    noon = following(pattern="0 12 * * *", tz="Asia/Tokyo")
    assert noon == NextRun(1, AT_09 + 18 * 60 * MINUTE)


def test_when_the_next_slot_is_only_the_scheduler_knows() -> None:
    assert following(every=1000, count=41) == NextRun(42)


@pytest.mark.parametrize("written", [7, 7.0, "7"])
def test_numbers_may_be_written_in_any_way(written: object) -> None:
    assert following(every=1000, count=written) == NextRun(8)


@pytest.mark.parametrize("rule", [{"every": 1000}, {"pattern": "0 * * * *", "tz": "UTC"}])
def test_the_last_of_a_limited_number_of_runs_has_no_next(rule: dict[str, Any]) -> None:
    assert following(**rule, count=4, limit=5) is not None
    assert following(**rule, count=5, limit=5) is None


def test_after_its_end_a_scheduler_adds_nothing() -> None:
    assert following(every=1000, endDate=NOW) is not None
    assert following(every=1000, endDate=NOW - 1) is None


def test_a_cron_line_has_no_run_after_its_end() -> None:
    assert hourly(endDate=AT_09) is not None
    assert hourly(endDate=AT_09 - 1) is None


@pytest.mark.parametrize(
    ("end", "goes_on"),
    [
        ("2027-01-15T08:00:00.123Z", True),
        ("2027-01-15T08:00:00.122Z", False),
        ("2027-01-15T09:00:00.123+01:00", True),
        ("2027-01-16", True),
    ],
)
def test_an_end_may_be_a_date(end: str, goes_on: bool) -> None:
    assert (following(every=1000, endDate=end) is not None) == goes_on


def test_a_job_of_no_scheduler_has_no_next() -> None:
    assert next_run(StoredOptions(), NOW) is None
    assert following() is None
    assert following(every=0) is None


@pytest.mark.parametrize(
    "rule",
    [
        {"pattern": "not a line"},
        {"pattern": "0 0 30 2 *"},
        {"pattern": "* * * * *", "tz": "Nowhere/None"},
        {"pattern": 5},
        {"every": 1000, "count": float("inf")},
        {"every": 1000, "limit": "some"},
        {"every": 1000, "endDate": "soon"},
    ],
)
def test_a_rule_that_makes_no_sense_is_reported(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        following(**rule)

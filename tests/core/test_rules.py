"""Schedule rules: when they run, their descriptions, and which are invalid."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from taskbull.core.schedule import Cron, Every, Rule, describe_interval
from taskbull.errors import ConfigurationError

BERLIN = "Europe/Berlin"
NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize(
    ("rule", "runs"),
    [
        (Cron("0 3 * * *"), ["2027-01-16 03:00", "2027-01-17 03:00", "2027-01-18 03:00"]),
        (Cron("@daily"), ["2027-01-16 00:00", "2027-01-17 00:00", "2027-01-18 00:00"]),
        (Cron("0 3 * * *", end=at("2027-01-17 03:00")), ["2027-01-16 03:00", "2027-01-17 03:00"]),
        (Cron("0 3 * * *", start=at("2027-01-17 03:00")), ["2027-01-18 03:00"]),
        (Cron("0 3 * * *", limit=1), ["2027-01-16 03:00"]),
        (Every(3600), ["2027-01-15 13:00", "2027-01-15 14:00", "2027-01-15 15:00"]),
        (Every(3600, offset=300), ["2027-01-15 12:05", "2027-01-15 13:05"]),
        (Every(3600, start=at("2027-01-15 11:30")), ["2027-01-15 12:30", "2027-01-15 13:30"]),
        (Every(3600, start=at("2027-01-20 11:30")), ["2027-01-20 11:30", "2027-01-20 12:30"]),
        (Every(3600, end=at("2027-01-15 13:30")), ["2027-01-15 13:00"]),
        (Every(3600, limit=2), ["2027-01-15 13:00", "2027-01-15 14:00"]),
    ],
    ids=repr,
)
def test_a_rule_knows_its_runs(rule: Rule, runs: list[str]) -> None:
    bounded = rule.limit is not None or rule.end is not None
    found = rule.upcoming(5 if bounded else len(runs), after=NOON)
    assert found == [at(run) for run in runs]
    assert rule.next(after=NOON) == found[0]


def test_a_cron_rule_tells_the_time_of_its_zone() -> None:
    run = Cron("0 3 * * *", BERLIN).next(after=NOON)
    assert run is not None
    assert run.isoformat() == "2027-01-16T03:00:00+01:00"


def test_a_daily_rule_runs_once_a_day_when_the_clocks_change() -> None:
    rule = Cron("30 2 * * *", BERLIN)
    spring = rule.upcoming(3, after=at("2027-03-27 12:00"))
    assert [run.isoformat() for run in spring] == [
        "2027-03-28T03:30:00+02:00",
        "2027-03-29T02:30:00+02:00",
        "2027-03-30T02:30:00+02:00",
    ]
    autumn = rule.upcoming(2, after=at("2027-10-30 12:00"))
    assert [run.isoformat() for run in autumn] == [
        "2027-10-31T02:30:00+02:00",
        "2027-11-01T02:30:00+01:00",
    ]


def test_a_rule_that_is_over_has_no_next_run() -> None:
    assert Cron("0 3 * * *", end=at("2027-01-01")).next(after=NOON) is None
    assert Every(60, end=at("2027-01-01")).next(after=NOON) is None


def test_without_an_instant_a_rule_starts_from_now() -> None:
    run = Every(60).next()
    assert run is not None
    assert timedelta(0) < run - datetime.now(UTC) <= timedelta(seconds=60)


def test_a_name_is_expanded() -> None:
    assert Cron("@hourly").pattern == "0 * * * *"
    assert Cron(" 5  4 * *  * ").pattern == "5 4 * * *"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("* * * * *", "every minute"),
        ("* * * * * *", "every second"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("0 * * * *", "every hour"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("30 */2 * * *", "every 2 hours, at minute 30"),
        ("0 3 * * *", "every day at 03:00"),
        ("30 0 0 * * *", "every day at 00:00:30"),
        ("10,50 8,9 * * *", "every day at 08:10, 08:50, 09:10 and 09:50"),
        ("0 4 * * 1-5", "Monday to Friday at 04:00"),
        ("0 4 * * mon,WED", "on Monday and Wednesday at 04:00"),
        ("*/10 * * * mon-fri", "every 10 minutes, Monday to Friday"),
        ("0 0 1 jan,JUN *", "on day 1 of the month at 00:00 in January and June"),
        ("0 0 1,15 * ?", "on days 1,15 of the month at 00:00"),
        ("0 0 */2 * *", "every 2 days of the month at 00:00"),
        ("0 0 L * *", "on the last day of the month at 00:00"),
        ("0 0 15,L * *", "on day 15 of the month and the last day of the month at 00:00"),
        ("0 0 * * 5L", "on the last Friday of the month at 00:00"),
        ("0 0 * * 1#2", "on the second Monday of the month at 00:00"),
        ("0 0 13 * 5", "on day 13 of the month and on Friday at 00:00"),
        ("1-5,7 3-5 * * *", "at hour 3-5, minute 1-5,7"),
        ("0 0 * */3 *", "every day at 00:00 in months */3"),
    ],
)
def test_a_cron_rule_in_words(pattern: str, words: str) -> None:
    assert Cron(pattern, BERLIN).describe() == f"{words}, {BERLIN}"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Every(30), "every 30 seconds"),
        (Every(timedelta(hours=1)), "every hour"),
        (Every(5400), "every 1 hour 30 minutes"),
        (Every(0.5), "every 500 milliseconds"),
        (Every(3600, offset=300), "every hour, 5 minutes past"),
        (Every(3600, offset=60), "every hour, 1 minute past"),  # K7
        (Every(60, offset=1), "every minute, 1 second past"),
        (Every(86400, offset=3600), "every day, 1 hour past"),
        (Every(60, limit=3), "every minute, 3 times"),
        (Every(60, limit=1), "every minute, once"),
        (Every(60, start=at("2027-02-01")), "every minute, from 2027-02-01 00:00 UTC"),
        (
            Cron("0 3 * * *", end=at("2027-02-01")),
            "every day at 03:00, UTC, until 2027-02-01 00:00 UTC",
        ),
    ],
)
def test_other_rules_in_words(rule: Rule, words: str) -> None:
    assert rule.describe() == words


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cron("x"), "must have 5 fields, or 6 with the seconds first, got 'x'"),
        (lambda: Cron("* * * *"), "must have 5 fields"),
        (lambda: Cron(""), "cron pattern must not be empty"),
        (lambda: Cron("61 * * * *"), "minute '61' must be in 0-59"),
        (lambda: Cron("5-1 * * * *"), "minute '5-1' ends before it starts"),
        (lambda: Cron("0 0 * * 5-61"), "weekday '5-61' must be in 0-7"),
        (lambda: Cron("0 0 30 2 *"), "'0 0 30 2 *' never runs"),
        (lambda: Cron("0 3 * * *", "Europe/Berln"), "unknown time zone 'Europe/Berln'"),
        (lambda: Cron("0 3 * * *", start=datetime(2027, 1, 1)), "got the naive"),  # noqa: DTZ001
        (lambda: Cron("0 3 * * *", start=NOON, end=NOON), "must be after start"),
        (
            lambda: Cron("0 3 * * *", start=NOON, end=NOON + timedelta(hours=1)),
            "does not run between start and end",
        ),
        (lambda: Cron("0 3 * * *", limit=0), "limit must be an integer"),
        (lambda: Cron("0 3 * * *", start=NOON, immediately=True), "cannot be used together"),
        (lambda: Every(0), "interval must be greater than 0"),
        (lambda: Every(0.0001), "interval must be at least a millisecond"),
        (lambda: Every(10, offset=10), "offset must be less than the interval (10 s)"),
        (lambda: Every(10, start=at("1969-12-31")), "start must be after 1970"),
        (lambda: Every(10, end=at("2040-01-01")), "before September 2039"),
        (lambda: Every(10).upcoming(-1), "n must be an integer"),
        (lambda: Every(10).upcoming(2**64), "n must be an integer"),
        (lambda: Every(10).next(datetime(2027, 1, 1)), "after must be a timezone-aware"),  # noqa: DTZ001
    ],
)
def test_what_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert says in str(refused.value)


def test_no_interval_in_words() -> None:
    assert describe_interval(0) == "0 seconds"

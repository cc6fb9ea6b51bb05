"""Cron lines: which are valid, and when they run next."""

from __future__ import annotations

import time
from calendar import monthrange
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core import schedule as cron
from taskbull.core.schedule import CronLine, parse_cron
from taskbull.errors import ConfigurationError

PRAGUE = "Europe/Prague"
FRIDAY = "2027-01-15T08:00:00.123"


def ms(text: str, zone: str = "UTC") -> int:
    """Give an instant by what a clock shows; the first of two such."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def runs(pattern: str, after: str, zone: str = "UTC", count: int = 3) -> list[str]:
    """Give when a line comes after an instant, the first few times, with the offset of the zone."""
    now: int | None = ms(after, zone)
    found: list[str] = []
    for _ in range(count):
        assert now is not None
        now = parse_cron(pattern, zone).next_after(now)
        assert now is not None
        shown = datetime.fromtimestamp(now / 1000, ZoneInfo(zone))
        found.append(shown.strftime("%Y-%m-%d %H:%M:%S%z").removesuffix("+0000"))
    return found


@pytest.mark.parametrize(
    ("pattern", "first", "second"),
    [
        ("* * * * *", "2027-01-15 08:01:00", "2027-01-15 08:02:00"),
        ("* * * * * *", "2027-01-15 08:00:01", "2027-01-15 08:00:02"),
        ("5 4", "2027-05-06 00:00:00", "2027-05-06 00:01:00"),
        ("*/7 * * * *", "2027-01-15 08:07:00", "2027-01-15 08:14:00"),
        ("5/20 * * * *", "2027-01-15 08:05:00", "2027-01-15 08:25:00"),
        ("5-30/20 * * * *", "2027-01-15 08:05:00", "2027-01-15 08:25:00"),
        ("*/100 * * * *", "2027-01-15 09:00:00", "2027-01-15 10:00:00"),
        ("50,10 07,8 * * *", "2027-01-15 08:10:00", "2027-01-15 08:50:00"),
        ("  5\t*  * * * ", "2027-01-15 08:05:00", "2027-01-15 09:05:00"),
        ("0 9 * * Mon-fri", "2027-01-15 09:00:00", "2027-01-18 09:00:00"),
        ("0 0 * * 0", "2027-01-17 00:00:00", "2027-01-24 00:00:00"),
        ("0 0 * * 7", "2027-01-17 00:00:00", "2027-01-24 00:00:00"),
        ("0 0 * * 6-7", "2027-01-16 00:00:00", "2027-01-17 00:00:00"),
        ("0 0 1 jan,JUN *", "2027-06-01 00:00:00", "2028-01-01 00:00:00"),
        ("0 0 ? * 1", "2027-01-18 00:00:00", "2027-01-25 00:00:00"),
        ("0 0 L * *", "2027-01-31 00:00:00", "2027-02-28 00:00:00"),
        ("0 0 L,15 * *", "2027-01-31 00:00:00", "2027-02-15 00:00:00"),
        ("0 0 * * 5L", "2027-01-29 00:00:00", "2027-02-26 00:00:00"),
        ("0 0 * * monL,friL", "2027-01-25 00:00:00", "2027-01-29 00:00:00"),
        ("0 0 * * 1#2", "2027-02-08 00:00:00", "2027-03-08 00:00:00"),
        ("0 0 * * sun#5", "2027-01-31 00:00:00", "2027-05-30 00:00:00"),
        ("0 0 31 * *", "2027-01-31 00:00:00", "2027-03-31 00:00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00", "2032-02-29 00:00:00"),
        ("0 0 * feb 1#5", "2044-02-29 00:00:00", "2072-02-29 00:00:00"),
        ("@hourly", "2027-01-15 09:00:00", "2027-01-15 10:00:00"),
        ("@daily", "2027-01-16 00:00:00", "2027-01-17 00:00:00"),
        ("@weekly", "2027-01-17 00:00:00", "2027-01-24 00:00:00"),
        ("@monthly", "2027-02-01 00:00:00", "2027-03-01 00:00:00"),
        ("@yearly", "2028-01-01 00:00:00", "2029-01-01 00:00:00"),
    ],
)
def test_a_line_comes_when_its_fields_say(pattern: str, first: str, second: str) -> None:
    assert runs(pattern, FRIDAY, count=2) == [first, second]


@pytest.mark.parametrize(
    ("pattern", "days"),
    [
        ("0 0 20 * 5", [20, 22, 29]),
        ("0 0 */10 * 5", [21, 22, 29]),
        ("0 0 20 * *", [20, 20, 20]),
        ("0 0 20 * 0-6", [16, 17, 18]),
        ("0 0 L * 6L", [30, 31, 27]),
    ],
)
def test_a_day_and_a_weekday_are_alternatives(pattern: str, days: list[int]) -> None:
    assert [int(run[8:10]) for run in runs(pattern, FRIDAY)] == days


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "* * * * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 32 * *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "0 0 * * 6-1",
        "50-10 * * * *",
        "*/0 * * * *",
        "5/ * * * *",
        "/5 * * * *",
        "*/5/2 * * * *",
        "1,,2 * * * *",
        "1- * * * *",
        "-1 * * * *",
        "1.5 * * * *",
        "+5 * * * *",
        "٣ * * * *",
        "a * * * *",
        "jan * * * *",
        "** * * * *",
        "L * * * *",
        "0 0 l * *",
        "0 0 LW * *",
        "0 0 L-3 * *",
        "0 0 * * L",
        "0 0 * * 1#0",
        "0 0 * * 1#6",
        "0 0 * * 1-5#2",
        "0 0 * * 1,3#2",
        "0 0 * * #2",
        "0 0 * * monday",
        "0 0 * * unm",
        "0 0 1 January *",
        "H * * * *",
        "@reboot",
        "@Hourly",
        f"{'9' * 5000} * * * *",
        f"{'1,' * 1000}1 * * * *",
    ],
)
def test_what_is_no_line_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="cron pattern"):
        parse_cron(pattern)


@pytest.mark.parametrize("pattern", ["0 0 30 2 *", "0 0 31 4,6 *"])
def test_a_line_may_never_come(pattern: str) -> None:
    assert parse_cron(pattern, "UTC").next_after(ms(FRIDAY)) is None


@pytest.mark.parametrize("now", [1e300, 253_402_300_799_000, -1e300])
def test_where_the_calendar_ends_no_line_comes(now: float) -> None:
    assert parse_cron("* * * * *", "UTC").next_after(now) is None


@pytest.mark.parametrize(
    "zone", ["", "Nowhere/None", "+02:00", "Europe", "../UTC", "UTC+99", "a\0b"]
)
def test_a_time_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_cron("* * * * *", zone)


def test_the_names_of_time_zones_are_read_once() -> None:  # S25
    cron._zone_names.cache_clear()  # pyright: ignore[reportPrivateUsage]
    for number in range(20):
        with pytest.raises(ConfigurationError):
            parse_cron("* * * * *", f"No/Where{number}")
    assert cron._zone_names.cache_info().misses == 1  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("zone", "noon"),
    [
        ("UTC", "12:00"),
        ("europe/prague", "11:00"),
        ("US/Eastern", "17:00"),
        ("Asia/Kolkata", "06:30"),
        ("UTC+2", "10:00"),
        ("utc-03:30", "15:30"),
    ],
)
def test_a_line_is_read_in_its_time_zone(zone: str, noon: str) -> None:
    found = parse_cron("0 12 * * *", zone).next_after(ms("2027-01-15T00:00"))
    assert found is not None
    assert datetime.fromtimestamp(found / 1000, UTC).strftime("%H:%M") == noon


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the process live in New York."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("zone", [None, "local", "system"])
@pytest.mark.parametrize("pattern", ["30 1 * * *", "30 2 * * *", "*/30 * * * *", "0 0 * * *"])
@pytest.mark.parametrize("change", ["2027-03-14", "2027-11-07"])
def test_without_a_time_zone_it_is_that_of_the_process(
    in_new_york: None, change: str, pattern: str, zone: str | None
) -> None:
    now = ms(f"{change}T00:10", "America/New_York")
    here, there = parse_cron(pattern, zone), parse_cron(pattern, "America/New_York")
    for hours in range(8):
        after = now + hours * 1_800_000
        assert here.next_after(after) == there.next_after(after)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("30 2 * * *", ["2027-03-28 03:30:00+0200", "2027-03-29 02:30:00+0200"]),
        ("*/30 2 * * *", ["2027-03-28 03:00:00+0200", "2027-03-29 02:00:00+0200"]),
        ("30 2,3 * * *", ["2027-03-28 03:30:00+0200", "2027-03-29 02:30:00+0200"]),
        ("40 * * * *", ["2027-03-28 01:40:00+0100", "2027-03-28 03:40:00+0200"]),
    ],
)
def test_a_run_in_the_hour_that_is_left_out_comes_right_after_it(
    pattern: str, expected: list[str]
) -> None:
    assert runs(pattern, "2027-03-28T01:10", PRAGUE, 2) == expected


def test_in_the_hour_after_there_is_nothing_to_make_up_for() -> None:
    assert runs("30 2 * * *", "2027-03-28T03:00", PRAGUE, 1) == ["2027-03-29 02:30:00+0200"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("30 2 * * *", ["2027-10-31 02:30:00+0200", "2027-11-01 02:30:00+0100"]),
        ("40 1-4 * * *", ["2027-10-31 02:40:00+0200", "2027-10-31 03:40:00+0100"]),
        ("40 * * * *", ["2027-10-31 02:40:00+0200", "2027-10-31 02:40:00+0100"]),
        ("20,40 0-23 * * *", ["2027-10-31 02:40:00+0200", "2027-10-31 02:20:00+0100"]),
    ],
)
def test_in_the_hour_that_comes_twice_only_a_line_for_every_hour_runs_twice(
    pattern: str, expected: list[str]
) -> None:
    assert runs(pattern, "2027-10-31T02:25", PRAGUE, 2) == expected


def test_from_winter_on_the_first_of_two_such_hours_is_meant() -> None:
    assert runs("30 2 31 10 *", "2027-01-15T00:00", PRAGUE, 1) == ["2027-10-31 02:30:00+0200"]


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        ("0 2 * * *", "2027-03-28T01:59:59", "2027-03-28 03:00:00+0200"),
        ("* 2 * * *", "2027-10-31T02:59:59", "2027-11-01 02:00:00+0100"),
    ],
)
def test_the_last_second_before_a_change_is_as_those_before(
    pattern: str, after: str, expected: str
) -> None:
    assert runs(pattern, after, PRAGUE, 1) == [expected]


@pytest.mark.parametrize(
    ("zone", "after", "expected"),
    [
        ("Africa/Cairo", "2027-04-29T20:00", "2027-04-30 01:00:00+0300"),
        ("America/Santiago", "2027-09-04T20:00", "2027-09-05 01:00:00-0300"),
    ],
)
def test_no_day_is_lost_where_midnight_is_left_out(zone: str, after: str, expected: str) -> None:
    assert runs("0 0 * * *", after, zone, 1) == [expected]


# Lines of small sets of values, written as lists, and compared with what a walk second by second
# finds. The seconds have few values only so that the text stays short.

minutes = st.frozensets(st.integers(0, 59), min_size=1, max_size=4)
hours = st.frozensets(st.integers(0, 23), min_size=1, max_size=6) | st.just(frozenset(range(24)))
changes = st.sampled_from(
    [
        (PRAGUE, "2027-03-28T01:00"),
        (PRAGUE, "2027-10-31T01:00"),
        ("America/New_York", "2027-03-14T07:00"),
        ("America/New_York", "2027-11-07T06:00"),
        ("Africa/Cairo", "2027-04-29T22:00"),
        ("Africa/Cairo", "2027-10-28T21:00"),
        ("Australia/Lord_Howe", "2027-10-02T15:30"),
        ("Australia/Lord_Howe", "2027-04-03T15:00"),
        ("Antarctica/Troll", "2027-03-28T01:00"),
        ("Antarctica/Troll", "2027-10-31T01:00"),
        ("Asia/Kolkata", "2027-01-01T00:00"),
    ]
)


def listed(values: frozenset[int]) -> str:
    return ",".join(map(str, sorted(values)))


def walk(cron: CronLine, zone: str, start: int, steps: int) -> int | None:
    """Follow the clock on the wall, second by second, until a line is due."""
    second = timedelta(seconds=1)

    def wall(instant: int) -> datetime:
        return datetime.fromtimestamp(instant, ZoneInfo(zone)).replace(tzinfo=None)

    def due(shown: datetime) -> bool:
        times = (shown.second, cron.seconds), (shown.minute, cron.minutes), (shown.hour, cron.hours)
        return all(value in values for value, values in times)

    latest, made_up = wall(start - 1), None
    for instant in range(start, start + steps):
        shown = wall(instant)
        left_out = (latest + second * n for n in range(1, (shown - latest) // second))
        for n, missed in enumerate(left_out):
            if due(missed):
                made_up = instant + n
                break
        if instant == made_up or (due(shown) and (shown > latest or len(cron.hours) == 24)):
            return instant
        latest = max(latest, shown)
    return None


@given(minutes=minutes, hours=hours, change=changes, before=st.integers(-7_200, 10_800))
def test_around_a_change_of_the_clocks_a_walk_finds_the_same(
    minutes: frozenset[int], hours: frozenset[int], change: tuple[str, str], before: int
) -> None:
    zone, moment = change
    now = ms(moment) // 1000 - before
    cron = parse_cron(f"7,8 {listed(minutes)} {listed(hours)} * * *", zone)
    found = cron.next_after(now * 1000)
    assert found is not None
    assert found > now * 1000
    steps = 4 * 3600
    expected = walk(cron, zone, now + 1, steps)
    assert (found // 1000 if found <= (now + steps) * 1000 else None) == expected


days = st.frozensets(st.integers(1, 31), min_size=1, max_size=3) | st.none()
months = st.frozensets(st.integers(1, 12), min_size=1, max_size=5) | st.none()
weekday_marks = st.sampled_from(["", "L", "#1", "#2", "#5"])
weekdays = st.tuples(st.integers(0, 6), weekday_marks) | st.none()


def is_meant(
    day: date,
    days: frozenset[int] | None,
    months: frozenset[int] | None,
    weekday: tuple[int, str] | None,
) -> bool:
    by_day = days is not None and day.day in days
    by_weekday = False
    if weekday is not None and day.isoweekday() % 7 == weekday[0]:
        same = [
            n
            for n in range(1, monthrange(day.year, day.month)[1] + 1)
            if day.replace(day=n).isoweekday() == day.isoweekday()
        ]
        meant: Mapping[str, list[int]] = {
            "": same,
            "L": same[-1:],
            "#1": same[:1],
            "#2": same[1:2],
            "#5": same[4:5],
        }
        by_weekday = day.day in meant[weekday[1]]
    anyway = days is None and weekday is None
    return (months is None or day.month in months) and (by_day or by_weekday or anyway)


@given(
    start=st.dates(date(2024, 1, 1), date(2032, 1, 1)), days=days, months=months, weekday=weekdays
)
def test_there_is_no_earlier_day_that_is_meant(
    start: date,
    days: frozenset[int] | None,
    months: frozenset[int] | None,
    weekday: tuple[int, str] | None,
) -> None:
    texts = (
        "*" if days is None else listed(days),
        "*" if months is None else listed(months),
        "*" if weekday is None else "{}{}".format(*weekday),
    )
    found = parse_cron(f"30 12 {' '.join(texts)}", "UTC").next_after(ms(f"{start}T12:30"))
    later = (start + timedelta(days=n) for n in range(1, 1_200))
    expected = next((day for day in later if is_meant(day, days, months, weekday)), None)
    if expected is not None:
        assert found == ms(f"{expected}T12:30")
    else:
        assert found is None or found > ms(f"{start}T12:30") + 1_199 * 86_400_000

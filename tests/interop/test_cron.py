"""taskbull and BullMQ compute the same next run for a cron line."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from taskbull.core.schedule import parse_cron
from taskbull.errors import ConfigurationError
from tests.interop.conftest import MakeActor
from tests.interop.node import Node, Refused, Version
from tests.interop.node_actor import NodeActor
from tests.interop.stage import T0
from tests.selection import FULL

LINES: Final = """\
*
* *
5 4
5 4 3 2
* * * * *
* * * * * *
*/10 * * * * *
*/7 * * * *
5/15 * * * *
5-40/10 * * * *
*/60 * * * *
*/100 * * * *
1,2,3/20 * * * *
10,30 8,9 * * *
1-5,10-15/2,30 * * * *
01 007 * * *
*/20 */20 */6 * * *
59 59 23 31 12 *
0 9 * * 1-5
0 0 * * 0
0 0 * * 7
0 0 * * 0-7
0 0 * * 5-7
0 0 * * 7,1
0 0 * * sun
0 0 * * Mon-FRI
5 4 * * sun,mon
0 0 * * */3
0 0 * * 5L
0 0 * * friL
0 0 * * 7L
0 0 * * 1L,5L
0 0 * * 1L,3
0 0 * * 1#2
0 0 * * MON#2
0 0 * * 7#1
0 0 * * 1#5
0 0 1 jan *
0 0 1 JAN-mar *
0 0 * */5 *
0 0 */5 * *
0 0 29 2 *
0 0 31 * *
0 0 28-31 * *
0 0 L * *
0 0 L 2 *
0 0 1,L * *
0 0 L,15 * *
0 0 ? * 1
0 0 1 * ?
0 0 ? * ?
0 0 13 * 5
0 0 13 * */2
0 0 */2 * 5
0 0 13 * 0-6
0 0 1-7 * 1
0 0 L * 5
0 0 13 * 5L
0 0 13 * 1#2
0 0 29 2 1
0 12 1-7,15-21 * *
0 0 2-30/5 2 *
@hourly
@daily
@weekly
@monthly
@yearly
* * * * * * *
60 * * * *
0 24 * * *
0 0 0 * *
0 0 * 13 *
0 0 * * 8
0 0 * * 7-2
50-10 * * * *
*/0 * * * *
5/ * * * *
1,,2 * * * *
-5 * * * *
a * * * *
L * * * *
0 0 l * *
0 0 LW * *
0 0 L-3 * *
0 0 * * 1#6
0 0 * * 1-5#2
0 0 * * 1,3#2
0 0 * * monday
0 0 31 4,6 *
0 0 31 2 *
@reboot
@Hourly""".splitlines()

BY_THE_NEWER: Final = (
    "@annually",
    "@minutely",
    "@weekdays",
    "? ? * * *",
    "0 0 1-31 * 5",
    "0 0 13 * 0-7",
    "0 0 30 2 1",
    "0 0 * FEB 1#5",
    "0 0 * * L",
)
"""Lines that version 5 refuses or reads differently. taskbull follows version 6."""

BY_THE_OLDER: Final = ("10,20,10 * * * *", "*/5,*/7 * * * *", "*,5 * * * *")
"""Lines with duplicate values, which version 6 refuses. A scheduler of 5 may have them."""

INSTANTS: Final = (T0 - 123, *((T0, 1_835_395_199_999, 1_830_297_540_000) if FULL else ()))

CHANGES: Final = (
    ("Europe/Prague", "2027-03-28"),
    ("Europe/Prague", "2027-10-31"),
    ("America/New_York", "2027-03-14"),
    ("America/New_York", "2027-11-07"),
    ("Australia/Sydney", "2027-10-03"),
    ("Australia/Sydney", "2027-04-04"),
    ("Asia/Kolkata", "2027-05-05"),
)
AROUND_CHANGES: Final = (
    "30 2 * * *",
    "*/30 2 * * *",
    "0 2,3 * * *",
    "*/30 1-3 * * *",
    "0 * * * *",
    "*/20 * * * *",
    "15 */2 * * *",
    "0 0-23 * * *",
    "45 1 * * *",
    "30 2 * * 0",
)

_numbers = itertools.count()


def theirs(actor: NodeActor, pattern: str, now_ms: int, zone: str) -> int | None:
    """Return BullMQ's first run, or None if it refuses the line or finds none."""
    actor.set_clock(now_ms)
    fresh = f"s{next(_numbers)}"  # Version 5 keeps the time of an existing scheduler.
    try:
        job = actor.upsert_scheduler(fresh, {"pattern": pattern, "tz": zone})
    except Refused:
        return None
    return None if job is None else int(job.rpartition(":")[2])


def ours(pattern: str, now_ms: int, zone: str) -> int | None:
    try:
        return parse_cron(pattern, zone).next_after(now_ms)
    except ConfigurationError:
        return None


def differences(actor: NodeActor, pattern: str, zone: str, instants: list[int]) -> list[str]:
    """Return the differences in the next runs at some instants and at those that follow."""
    found: list[str] = []
    for instant in instants:
        now_ms: int | None = instant
        for _ in range(2):
            if now_ms is None:
                break
            their, our = theirs(actor, pattern, now_ms, zone), ours(pattern, now_ms, zone)
            if their != our:
                found.append(f"{pattern!r} after {now_ms} in {zone}: they {their}, we {our}")
            now_ms = their
    return found


@pytest.mark.parametrize("version", [5, 6])
def test_a_line_means_the_same(version: Version, new_actor: MakeActor) -> None:
    actor = new_actor(version)
    lines = (*LINES, *(BY_THE_NEWER if version == 6 else BY_THE_OLDER))
    found = [one for line in lines for one in differences(actor, line, "UTC", list(INSTANTS))]
    assert found == []


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.full
def test_a_line_means_the_same_when_the_clocks_change(
    zone: str, day: str, version: Version, new_actor: MakeActor
) -> None:
    actor = new_actor(version)
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp()
    instants = [round(midnight * 1000) + 123 + n * 50 * 60_000 for n in range(5)]
    found = [one for line in AROUND_CHANGES for one in differences(actor, line, zone, instants)]
    assert found == []


# Patterns of all forms, around the days on which clocks change; for each zone the change to summer
# time, then the one back. Zones where clocks change at midnight have a test of their own.

ZONES: Final = {
    "Europe/Prague": ("2027-03-28T01:00", "2027-10-31T01:00"),
    "America/New_York": ("2027-03-14T07:00", "2027-11-07T06:00"),
    "Australia/Sydney": ("2027-10-02T16:00", "2027-04-03T16:00"),
    "Europe/London": ("2028-03-26T01:00", "2028-10-29T01:00"),
    "Asia/Kolkata": ("2028-02-28T18:30",),
    "UTC": ("2028-02-29T00:00", "2027-12-31T23:59"),
}


def field(least: int, most: int) -> SearchStrategy[str]:
    """Return a field of a pattern: any value, a list, a range or a step."""
    number = st.integers(least, most)
    span = st.tuples(number, number).map(sorted)
    several = st.sets(number, min_size=1, max_size=4).map(sorted)
    step = st.integers(1, most)
    return st.one_of(
        st.just("*"),
        number.map(str),
        several.map(lambda values: ",".join(map(str, values))),
        span.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        step.map(lambda n: f"*/{n}"),
        st.tuples(span, step).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
    )


DAYS: Final = (
    st.tuples(field(1, 28), st.just("*"))
    | st.tuples(st.just("*"), field(0, 6))
    | st.tuples(field(1, 28), field(0, 6))
)
PATTERNS: Final = st.builds(
    lambda seconds, minute, hour, days, month: " ".join(
        [*seconds, minute, hour, days[0], month, days[1]]
    ),
    st.just([]) | st.lists(field(0, 59), min_size=1, max_size=1),
    field(0, 59),
    field(0, 23),
    DAYS,
    st.just("*") | field(1, 12),
)
PLACES: Final = st.sampled_from([(zone, change) for zone, days in ZONES.items() for change in days])
AWAY: Final = st.integers(-2 * 86_400_000, 86_400_000) | st.integers(-1_000, -1)
"""Maximum distance from the clock change, in ms."""

EXAMPLES: Final = 5 * int(os.environ.get("TASKBULL_SEQUENCES", "15" if FULL else "2"))
"""Number of patterns for each version: 1,000 in `nox -s interop`."""


GENERATED: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="TASKBULL_SEQUENCES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("version", [5, 6])
@GENERATED
@given(pattern=PATTERNS, place=PLACES, away=AWAY)
def test_the_next_ten_runs_of_any_pattern_are_the_same(
    node: Node, version: Version, pattern: str, place: tuple[str, str], away: int
) -> None:
    zone, change = place
    if version == 5:
        assume(not names_all_days(pattern))
    else:
        is_back = change == ZONES[zone][-1] and len(ZONES[zone]) == 2
        assume(not (is_back and -1_000 <= away < 0))
    after = ms(change) + away
    assert ours_after(pattern, zone, after, 10) == runs(node, version, pattern, zone, after, 10)


def ms(instant: str) -> int:
    return round(datetime.fromisoformat(instant).replace(tzinfo=UTC).timestamp() * 1000)


def runs(
    node: Node, version: Version, pattern: str, zone: str, after: int, count: int
) -> list[int]:
    """Return the next runs according to a version's cron-parser."""
    found: list[int] = node.call("cronRuns", pattern, zone, after, count, version=version)
    return found


def ours_after(pattern: str, zone: str, after: int, count: int) -> list[int]:
    """Return the next runs according to taskbull."""
    found: list[int] = []
    line = parse_cron(pattern, zone)
    while len(found) < count and (following := line.next_after(after)) is not None:
        found.append(after := following)
    return found


def names_all_days(pattern: str) -> bool:
    """Return True if a line restricts days and weekdays, and one of the two allows all values.

    BullMQ 5 then reads `*/1` and `0-6` as `*`, so it ignores the other field alone.
    """
    days, _, weekdays = pattern.split()[-3:]
    return "*" not in (days, weekdays) and (days == "*/1" or weekdays in {"*/1", "0-6", "0-6/1"})


def wall(instant: int, zone: str) -> str:
    return datetime.fromtimestamp(instant / 1000, ZoneInfo(zone)).strftime("%m-%d %H:%M %z")


THEIR_FAULTS: Final[dict[str, tuple[tuple[Version, ...], str, str, str, str, str]]] = {
    # versions, pattern, zone, asked at (UTC); their next run, ours
    "a week is lost in the second before an hour comes twice": (
        (6,),
        "* 2 * * 6",
        "Australia/Sydney",
        "2028-04-01T15:59:59.999",
        "04-15 02:00 +1000",
        "04-08 02:00 +1000",
    ),
    "an hour is lost days later in the second before it comes twice": (
        (6,),
        "55 1-4 4 * *",
        "America/New_York",
        "2027-11-07T05:59:59.500",
        "12-04 02:55 -0500",
        "12-04 01:55 -0500",
    ),
    "a day is lost whose midnight is missing": (
        (5, 6),
        "1 0 * * *",
        "Africa/Cairo",
        "2027-04-29T07:44",
        "05-01 00:01 +0300",
        "04-30 01:01 +0300",
    ),
    "one run of a day is lost where midnight is missing": (
        (5, 6),
        "2 */13 * * *",
        "America/Santiago",
        "2027-09-05T01:49",
        "09-05 13:02 -0300",
        "09-05 01:02 -0300",
    ),
    "the first of two hours after midnight is left out": (
        (5, 6),
        "33-43 * * * 0",
        "America/Havana",
        "2028-11-04T23:35",
        "11-05 00:33 -0500",
        "11-05 00:33 -0400",
    ),
    "the second of two hours after midnight is taken": (
        (6,),
        "55 0 * * *",
        "America/Havana",
        "2027-11-07T00:53",
        "11-07 00:55 -0500",
        "11-07 00:55 -0400",
    ),
}


@pytest.mark.parametrize("fault", THEIR_FAULTS)
def test_a_fault_of_theirs_is_not_ours(fault: str, node: Node) -> None:
    versions, pattern, zone, asked, told, right = THEIR_FAULTS[fault]
    after = ms(asked)
    for version in versions:
        [their] = runs(node, version, pattern, zone, after, 1)
        assert (version, wall(their, zone)) == (version, told)
    [our] = ours_after(pattern, zone, after, 1)
    assert wall(our, zone) == right


def test_all_days_by_another_name_are_what_bullmq_6_reads(node: Node) -> None:
    for pattern in ("0 0 13 * */1", "0 0 */1 * 5", "0 0 13 * 0-6"):
        ours = ours_after(pattern, "UTC", T0, 5)
        assert ours == runs(node, 6, pattern, "UTC", T0, 5)
    assert ours_after("0 0 13 * */1", "UTC", T0, 5) != runs(node, 5, "0 0 13 * */1", "UTC", T0, 5)


AT_MIDNIGHT: Final = {
    "Africa/Cairo": ("2027-04-29T22:00", "2027-10-28T21:00"),
    "America/Santiago": ("2027-09-05T04:00", "2027-04-04T03:00"),
    "America/Havana": ("2027-03-14T05:00", "2027-11-07T05:00"),
    "Asia/Beirut": ("2027-03-27T22:00", "2027-10-30T21:00"),
}
"""Zones in which clocks change at midnight: to summer time, and back."""
HOUR: Final = 3_600_000


@pytest.mark.parametrize("version", [5, 6])
@GENERATED
@given(
    pattern=PATTERNS,
    place=st.sampled_from([(zone, day) for zone, days in AT_MIDNIGHT.items() for day in days]),
    away=st.integers(-2 * 24 * HOUR, -HOUR) | st.integers(HOUR, 24 * HOUR),
)
def test_where_clocks_change_at_midnight_only_the_hours_around_it_differ(
    node: Node, version: Version, pattern: str, place: tuple[str, str], away: int
) -> None:
    assume(version == 6 or not names_all_days(pattern))
    zone, change = place
    theirs = runs(node, version, pattern, zone, ms(change) + away, 8)
    ours = ours_after(pattern, zone, ms(change) + away, 200)
    around = [ms(day) for day in AT_MIDNIGHT[zone]]
    assume(theirs[-1] <= ours[-1] and theirs[-1] < ms("2028-01-01T00:00"))

    def elsewhere(found: list[int]) -> list[int]:
        return [
            run
            for run in found
            if run <= theirs[-1] and not any(-HOUR <= run - day < HOUR for day in around)
        ]

    assert elsewhere(ours) == elsewhere(theirs)


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("zone", ["", "utc", "europe/prague", "Etc/GMT+2", "UTC+2", "Nowhere/A"])
def test_a_time_zone_means_the_same(zone: str, version: Version, new_actor: MakeActor) -> None:
    assert theirs(new_actor(version), "0 0 * * *", T0, zone) == ours("0 0 * * *", T0, zone)

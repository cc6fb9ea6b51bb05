"""Schedule rules, schedules as stored in Redis, and cron lines."""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.core import payload
from taskbull.core.keys import MAX_DUE_MS, NAME_LIMIT
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_instant,
    check_int,
    check_text,
    instant_from_ms,
    instant_to_ms,
    refusal,
    seconds,
    shown,
    to_ms,
)
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import ConfigurationError

# Parse cron lines as BullMQ does, compute their next run, and describe them in words.
#
# A line has five fields, or six with the seconds first. Fields missing on the left default to `*`,
# the seconds to `0`. Daylight saving time is handled as follows:
#
# - A run in the skipped hour takes place once, right after the gap: 02:30 runs at 03:30 that day.
# - A run in the repeated hour takes place in the first one only, unless the line runs in every
#   hour.


_SECOND: Final = timedelta(seconds=1)
_HORIZON: Final = 40 * 366
"""Number of days to search for a run. A fifth Monday of February takes 28 years, or 40."""

_LONGEST: Final = 1_000
_MACROS: Final = {
    "@secondly": "* * * * * *",
    "@minutely": "* * * * *",
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@weekdays": "0 0 * * 1-5",
    "@weekends": "0 0 * * 0,6",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DEFAULTS: Final = ("0", "*", "*", "*", "*", "*")
_PART: Final = re.compile(r"(?:[*?]|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_OFFSET: Final = re.compile(r"UTC([+-]\d{1,2})(?::(\d\d))?", re.IGNORECASE)


class _Field(Struct, frozen=True):
    """A field of a cron line, with its title and the values that it accepts."""

    title: str
    least: int
    most: int
    names: str = ""
    """Three-letter names of the values, joined."""

    def values(self, text: str) -> frozenset[int]:
        """Return the values that a comma-separated list of parts covers."""
        return frozenset(value for part in text.split(",") for value in self._part(part))

    def _part(self, part: str) -> range:
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is not a valid {self.title}")
        first, last, step = found.groups()
        start = self.least if first is None else self._number(first)
        end = self.most if first is None or step else start
        if last is not None:
            end = self._number(last)
        if not (self.least <= start <= self.most and self.least <= end <= self.most):
            raise ValueError(f"{self.title} {part!r} must be in {self.least}-{self.most}")
        if start > end:
            raise ValueError(f"{self.title} {part!r} ends before it starts")
        if step and int(step) == 0:
            raise ValueError(f"the step of {self.title} {part!r} must not be 0")
        return range(start, end + 1, int(step or 1))

    def _number(self, word: str) -> int:
        if word.isdecimal():
            return int(word)
        place = self.names.find(word.lower())
        if len(word) != 3 or place % 3:  # -1 (not found) is not a multiple of 3 either
            raise ValueError(f"{word!r} is not a valid {self.title}")
        return place // 3 + self.least


_TIMES: Final = (_Field("second", 0, 59), _Field("minute", 0, 59), _Field("hour", 0, 23))
_DAY: Final = _Field("day", 1, 31)
_MONTH: Final = _Field("month", 1, 12, "janfebmaraprmayjunjulaugsepoctnovdec")
_WEEKDAY: Final = _Field("weekday", 0, 7, "sunmontuewedthufrisat")


class CronLine(Struct, frozen=True, kw_only=True):
    """A parsed cron line in a time zone."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    days: frozenset[int] | None
    """Days of the month, or `None` for any. 0 is the last day of the month."""
    weekdays: frozenset[int] | None
    """Weekdays, or `None` for any. 0 is Sunday; 10 to 16 are the last such day of the month."""
    which: int = 0
    """1 to 5 for the first to fifth such weekday of the month only, or 0 for all."""
    zone: tzinfo | None = None
    """Time zone, or `None` for that of the process."""

    def next_after(self, ms: float) -> int | None:
        """Return the time in ms of the first run after `ms`, or `None` if there is none."""
        try:
            found = self._next(int(ms // 1000) + 1)
        except (OverflowError, ValueError, OSError):  # past the end of the calendar
            return None
        return None if found is None else found * 1000

    def _next(self, start: int) -> int | None:
        # Continue the wall clock of the previous second: the clocks may change in this very second.
        found = self._first(start, self._wall(start - 1) + timedelta(seconds=1))
        again = self._clocks_go_back(start - 1) if len(self.hours) == 24 else None
        if again is not None and (found is None or found >= again):
            return self._first(again, self._wall(again))  # The hour repeats, including its runs.
        return found

    def _first(self, start: int, shown: datetime) -> int | None:
        wall = self._next_wall(shown)
        if wall is None:
            return None
        instant = self._instant(wall, fold=0)
        if instant < start:  # The first of the two repeated hours is over.
            return self._instant(wall, fold=1)
        skipped = self._wall(instant) - wall
        if skipped:  # This wall-clock time does not exist on that day.
            back = self._offset_change(instant - int(skipped.total_seconds()), instant)
            return min(instant, self._first(back, self._wall(back)) or instant)
        return instant

    def _next_wall(self, wall: datetime) -> datetime | None:
        today, least = wall.date(), wall.time()
        for day in (today + timedelta(days=n) for n in range(_HORIZON)):
            if self._matches_date(day):
                moment = self._next_time(least if day == today else time.min)
                if moment is not None:
                    return datetime.combine(day, moment)
        return None

    def _next_time(self, least: time) -> time | None:
        hours = (hour for hour in self.hours if hour >= least.hour)
        for hour, minute in product(hours, self.minutes):
            if (hour, minute) >= (least.hour, least.minute):
                for second in self.seconds:
                    moment = time(hour, minute, second)
                    if moment >= least:
                        return moment
        return None

    def _matches_date(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        if self.days is None:
            return self.weekdays is None or self._matches_weekday(day, self.weekdays)
        if day.day in self.days or (0 in self.days and day.day == _last_day(day)):
            return True
        return self.weekdays is not None and self._matches_weekday(day, self.weekdays)

    def _matches_weekday(self, day: date, weekdays: frozenset[int]) -> bool:
        weekday = day.isoweekday() % 7
        if weekday in weekdays:
            return self.which in (0, (day.day + 6) // 7)
        return weekday + 10 in weekdays and day.day + 7 > _last_day(day)

    def _wall(self, instant: int) -> datetime:
        return datetime.fromtimestamp(instant, self.zone).replace(tzinfo=None, fold=0)

    def _instant(self, wall: datetime, *, fold: int) -> int:
        return int(wall.replace(tzinfo=self.zone, fold=fold).timestamp())

    def _clocks_go_back(self, instant: int) -> int | None:
        """Return the instant when the clocks go back and repeat this one, or None."""
        twin = self._instant(self._wall(instant), fold=1)
        return self._offset_change(instant, twin) if twin > instant else None

    def _offset_change(self, before: int, after: int) -> int:
        """Return the first instant between the two that has the UTC offset of `after`."""

        def changed(instant: int) -> bool:
            return self._wall(instant) - _SECOND * instant == late

        late = self._wall(after) - _SECOND * after
        return before + bisect_left(range(before, after), x=True, key=changed)


def expand_macro(pattern: str) -> str:
    """Replace a macro such as `@daily` with its fields. Other lines are returned unchanged."""
    return _MACROS.get(pattern.strip(), pattern)


def pad_line(pattern: str) -> str:
    """Return a line with defaults for omitted fields, which BullMQ allows on the left."""
    words = expand_macro(pattern).split()
    return " ".join((*_DEFAULTS[: -len(words)], *words) if 0 < len(words) < 5 else words)


@lru_cache(maxsize=256)
def parse_cron(pattern: str, zone: str | None = None) -> CronLine:
    """Parse a cron line for a time zone.

    Without a zone, or with "local" or "system", the line uses the time zone of the process.

    Raises:
        ConfigurationError: The line is invalid, or the time zone is unknown.
    """
    words = expand_macro(pattern).split()
    if not 1 <= len(words) <= len(_DEFAULTS) or len(pattern) > _LONGEST:
        raise ConfigurationError(
            f"cron pattern {shown(pattern)} must have 5 or 6 fields and at most {_LONGEST} "
            "characters"
        )
    fields = (*_DEFAULTS[: -len(words)], *words)
    day, month, weekday = fields[3:]
    try:
        seconds, minutes, hours = (
            tuple(sorted(field.values(text))) for field, text in zip(_TIMES, fields, strict=False)
        )
        weekday, which = _split_which(weekday)
        return CronLine(
            seconds=seconds,
            minutes=minutes,
            hours=hours,
            months=_MONTH.values(month),
            days=None if day in ("*", "?") else _read_days(day),
            weekdays=None if weekday in ("*", "?") else _read_weekdays(weekday),
            which=which,
            zone=_read_zone(zone),
        )
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"invalid cron pattern {shown(pattern)}: {error}") from error


def _split_which(text: str) -> tuple[str, int]:
    weekday, mark, which = text.partition("#")
    if not mark:
        return text, 0
    if which not in {"1", "2", "3", "4", "5"} or not weekday.isalnum():
        raise ValueError(f"weekday {text!r} must be one weekday, '#' and a number from 1 to 5")
    return weekday, int(which)


def _read_days(text: str) -> frozenset[int]:
    parts = text.split(",")
    plain = [part for part in parts if part != "L"]
    days = _DAY.values(",".join(plain)) if plain else frozenset[int]()
    return days if plain == parts else days | {0}


def _read_weekdays(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        last = 10 if part[-1:] == "L" and "-" not in part else 0
        found |= {last + day % 7 for day in _WEEKDAY.values(part[:-1] if last else part)}
    return frozenset(found)


def _read_zone(name: str | None) -> tzinfo | None:
    if name is None or name in ("local", "system"):
        return None
    if found := _OFFSET.fullmatch(name):
        hours, minutes = int(found[1]), int(found[2] or 0)
        return timezone(timedelta(hours=hours, minutes=-minutes if hours < 0 else minutes))
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # Zone names ignore case, but file names do not.
        if known := _zone_names().get(name.lower()):
            return ZoneInfo(known)
    raise ConfigurationError(f"unknown time zone {shown(name)}: check its name, or install tzdata")


@cache
def _zone_names() -> dict[str, str]:
    # Cached, because listing the zones takes 20 ms.
    return {known.lower(): known for known in available_timezones()}


def _last_day(day: date) -> int:
    return monthrange(day.year, day.month)[1]


# Descriptions of cron lines.


_MOST_TIMES = 4
"""Maximum number of times of day to list. More are described by their fields."""

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
_ANY = ("*", "?")


def describe_cron(pattern: str) -> str:
    """Describe in words when a line of five or six fields runs: `every day at 03:00`."""
    fields = pattern.split()
    second, minute, hour, day, month, weekday = fields if len(fields) == 6 else ("0", *fields)
    when, is_time_of_day = _time(second, minute, hour)
    days = _days(day, weekday)
    if is_time_of_day:
        words = f"{days or 'every day'} {when}"
    else:
        words = f"{when}, {days}" if days else when
    if month in _ANY:
        return words
    return f"{words} in {'months ' if '/' in month else ''}{_listed(month, _MONTHS)}"


def _time(second: str, minute: str, hour: str) -> tuple[str, bool]:
    """Return the times in words, and True if they are times of day."""
    times = [_numbers(field) for field in (hour, minute, second)]
    if all(times) and len(times[0]) * len(times[1]) * len(times[2]) <= _MOST_TIMES:
        shown = [_clock(*time) for time in sorted(product(*times))]
        return f"at {_joined(shown)}", True
    if hour in _ANY and second == "0":
        if (often := _often(minute, "minute")) is not None:
            return often, False
        return ("every hour" if minute == "0" else f"at minute {minute} of every hour"), False
    if hour in _ANY and minute in _ANY and (often := _often(second, "second")) is not None:
        return often, False
    if second == "0" and (often := _often(hour, "hour")) is not None and minute.isdecimal():
        return (often if int(minute) == 0 else f"{often}, at minute {int(minute)}"), False
    parts = (("hour", hour), ("minute", minute), ("second", second))
    fields = [f"{unit} {field}" for unit, field in parts if field not in _ANY]
    return f"at {', '.join(field for field in fields if field != 'second 0')}", False


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def _often(field: str, unit: str) -> str | None:
    """Return the frequency in words if the field matches at even intervals, otherwise None."""
    if field in _ANY:
        return f"every {unit}"
    if found := re.fullmatch(r"(?:[*?]|0)/(\d+)", field):
        step = int(found[1])
        return f"every {unit}" if step == 1 else f"every {step} {unit}s"
    return None


def _days(day: str, weekday: str) -> str:
    days = [] if day in _ANY else [_days_of_month(day)]
    if weekday not in _ANY:
        days.append(_weekdays(weekday))
    return " and ".join(days)


def _days_of_month(day: str) -> str:
    last = "the last day of the month"
    named = ",".join(part for part in day.split(",") if part != "L")
    if not named:
        return f"on {last}"
    if (often := _often(named, "day")) is not None and named == day:
        return f"{often} of the month"
    plural = "s" if re.search(r"[,/-]", named) else ""
    words = f"on day{plural} {named} of the month"
    return words if named == day else f"{words} and {last}"


def _weekdays(weekday: str) -> str:
    name, _, which = weekday.partition("#")
    if which:
        return f"on the {_ORDINALS[int(which)]} {_listed(name, _WEEKDAYS)} of the month"
    if name.endswith("L"):
        return f"on the last {_listed(name.replace('L', ''), _WEEKDAYS)} of the month"
    words = _listed(name, _WEEKDAYS)
    return words if re.search(r"[-/*]", name) else f"on {words}"


def _listed(field: str, names: tuple[str, ...]) -> str:
    return _joined([_named(part, names) for part in field.split(",")])


def _named(part: str, names: tuple[str, ...]) -> str:
    if "/" in part:
        return part  # A step such as */3 is rare, and its authors know the notation.
    return " to ".join(_name(word, names) for word in part.split("-"))


def _name(word: str, names: tuple[str, ...]) -> str:
    if word.isdecimal():
        return names[int(word)]
    return next((name for name in names if name[:3].lower() == word.lower()), word)


def _numbers(field: str) -> list[int]:
    """Return the numbers that a field lists, or an empty list if it is not a plain list."""
    parts = field.split(",")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else []


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# Schedule rules (`Cron` and `Every`), and schedules as stored in Redis.
#
# BullMQ calls a schedule a job scheduler. Time is an argument, except that `next` and `upcoming`
# default to the current time.


_DEFAULT_TZ: Final = "".join(("U", "T", "C"))
"""The default of `Cron.tz`. A separate object, to distinguish it from an explicit "UTC"."""


class Cron(Struct, frozen=True):
    """Schedule rule that runs when a cron pattern matches, in a time zone.

    The pattern has five fields, or six with the seconds first. It may contain names of months and
    weekdays, or be a macro such as `@daily`. A daily rule runs once a day, even on days when the
    clocks change. A run at `start` itself is skipped.

    Example:
        Cron("30 3 * * mon-fri", tz="Europe/Berlin")

    Raises:
        ConfigurationError: The pattern or the time zone is invalid, the pattern never matches, or
            the options contradict each other.
    """

    pattern: str
    """Cron pattern. Macros are replaced with their fields."""
    tz: str = _DEFAULT_TZ
    """Time zone of the pattern, such as `Europe/Berlin`. Defaults to the app's, then to UTC."""
    start: datetime | None = None
    """Start of the schedule. Runs are later than this time. Must be aware."""
    end: datetime | None = None
    """Latest time of the last run. Must be aware."""
    limit: int | None = None
    """Maximum number of runs since the last change of the schedule."""
    immediately: bool = False
    """Also run immediately whenever the schedule is written. Cannot be combined with `start`."""

    def __post_init__(self) -> None:
        check_text("cron pattern", self.pattern)
        check_text("tz", self.tz)
        # Expand macros, because BullMQ 5 does not know all of them.
        force_setattr(self, "pattern", " ".join(expand_macro(self.pattern).split()))
        if len(self.pattern.split()) not in (5, 6):
            raise refusal(
                "cron pattern", "have 5 fields, or 6 with the seconds first", self.pattern
            )
        _check_bounds(self.start, self.end, self.limit)
        check_bool("immediately", self.immediately)
        if self.immediately and self.start is not None:
            raise ConfigurationError("immediately=True and start=… cannot be used together")
        start_ms = _ms_or(self.start, 0)
        if (first_ms := self.line.next_after(start_ms)) is None:
            raise ConfigurationError(f"the cron pattern {shown(self.pattern)} never runs")
        if self.start is not None and first_ms > _ms_or(self.end, first_ms):
            raise ConfigurationError(
                f"the cron pattern {shown(self.pattern)} does not run between start and end"
            )

    @property
    def line(self) -> CronLine:
        """Parsed pattern."""
        return parse_cron(self.pattern, self.tz)

    def next(self, after: datetime | None = None) -> datetime | None:
        """Return the first run after `after` (default: now), or `None` if there is none."""
        return next(self._runs(after), None)

    def upcoming(self, n: int, after: datetime | None = None) -> list[datetime]:
        """Return the next `n` runs after `after` (default: now), or fewer if the rule ends."""
        return _first(n, self.limit, self._runs(after))

    def describe(self) -> str:
        """Describe the rule in words: `every day at 03:00, Europe/Berlin`."""
        return (
            f"{describe_cron(self.pattern)}, {self.tz}{_bounds(self.start, self.end, self.limit)}"
        )

    def _runs(self, after: datetime | None) -> Iterator[datetime]:
        due_ms = max(_ms(after), _ms_or(self.start, 0))
        while (following := self.line.next_after(due_ms)) is not None:
            due_ms = following
            if due_ms > _ms_or(self.end, MAX_DUE_MS) or (run := instant_from_ms(due_ms)) is None:
                return
            yield run.astimezone(self.line.zone)


class Every(Struct, frozen=True):
    """Schedule rule that runs at a fixed interval.

    The first run is immediate, or at `start` if that is later. With `offset`, it is at the next
    time that the offset allows.

    Example:
        Every(3600, offset=300)  # five minutes past each hour

    Raises:
        ConfigurationError: The interval is shorter than a millisecond, `offset` is not less than
            the interval, or `end` is not after `start`.
    """

    interval: float
    """Seconds between runs."""
    offset: float | None = None
    """Seconds between the multiples of the interval since 1970 (UTC) and the runs."""
    start: datetime | None = None
    """Earliest time of the first run. Must be aware."""
    end: datetime | None = None
    """Latest time of the last run. Must be aware."""
    limit: int | None = None
    """Maximum number of runs since the last change of the schedule."""

    if TYPE_CHECKING:  # Durations may be timedeltas; they are stored in seconds.

        def __init__(
            self,
            interval: Duration,
            offset: Duration | None = None,
            start: datetime | None = None,
            end: datetime | None = None,
            limit: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        interval = seconds("interval", self.interval, positive=True)
        if to_ms(interval) != round(interval * 1000):
            raise refusal("interval", "be at least a millisecond", self.interval)
        force_setattr(self, "interval", interval)
        if self.offset is not None:
            offset = seconds("offset", self.offset)
            if offset >= interval:
                raise refusal("offset", f"be less than the interval ({interval:g} s)", self.offset)
            force_setattr(self, "offset", offset)
        _check_bounds(self.start, self.end, self.limit)

    @property
    def interval_ms(self) -> int:
        """The interval in milliseconds."""
        return to_ms(self.interval)

    @property
    def offset_ms(self) -> int | None:
        """The offset in milliseconds, or `None` if there is none."""
        return None if self.offset is None else to_ms(self.offset)

    def next(self, after: datetime | None = None) -> datetime | None:
        """Return the first run after `after` (default: now), or `None` if there is none.

        Without `start` and `offset`, intervals are counted from `after`.
        """
        return next(self._runs(after), None)

    def upcoming(self, n: int, after: datetime | None = None) -> list[datetime]:
        """Return the next `n` runs after `after` (default: now), or fewer if the rule ends."""
        return _first(n, self.limit, self._runs(after))

    def describe(self) -> str:
        """Describe the rule in words: `every 30 seconds`."""
        words = f"every {describe_interval(self.interval_ms)}"
        if self.offset:
            words += f", {_count(self.offset_ms or 0)} past"
        return words + _bounds(self.start, self.end, self.limit)

    def _runs(self, after: datetime | None) -> Iterator[datetime]:
        after_ms, every_ms = _ms(after), self.interval_ms
        anchor_ms = _ms_or(self.start, after_ms) if self.offset_ms is None else self.offset_ms
        least_ms = max(after_ms + 1, _ms_or(self.start, 0))
        due_ms = anchor_ms + -((anchor_ms - least_ms) // every_ms) * every_ms
        while due_ms <= _ms_or(self.end, MAX_DUE_MS):
            if (run := instant_from_ms(due_ms)) is None:
                return
            yield run
            due_ms += every_ms


Rule: TypeAlias = Cron | Every
"""Rule of a schedule."""


def in_zone(rule: Rule, tz: str) -> Rule:
    """Return the rule in a time zone, unless it is an `Every` or sets a zone itself."""
    return replace(rule, tz=tz) if isinstance(rule, Cron) and rule.tz is _DEFAULT_TZ else rule


def check_rule(rule: object) -> None:
    """Raise `ConfigurationError` unless `rule` is a `Cron` or an `Every`."""
    if not isinstance(rule, Cron | Every):
        raise refusal("rule", "be a Cron(…) or an Every(…)", rule)


def describe_interval(ms: int) -> str:
    """Describe a duration in words: `1 hour 30 minutes`, or `hour` for a single unit."""
    if ms == 0:
        return "0 seconds"
    return _SINGLE.get(ms) or _count(ms)


def _count(ms: int) -> str:
    words: list[str] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count:
            words.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(words)


_UNITS = (
    ("day", 86_400_000),
    ("hour", 3_600_000),
    ("minute", 60_000),
    ("second", 1_000),
    ("millisecond", 1),
)
_SINGLE = {size: unit for unit, size in _UNITS}


def _check_bounds(start: datetime | None, end: datetime | None, limit: int | None) -> None:
    for field, instant in (("start", start), ("end", end)):
        if instant is not None:
            check_instant(field, instant)
            if not 0 < instant_to_ms(instant) <= MAX_DUE_MS:
                raise refusal(field, "be after 1970 and before September 2039", instant)
    if start is not None and end is not None and end <= start:
        raise ConfigurationError(f"end ({end}) must be after start ({start})")
    if limit is not None:
        check_int("limit", limit, least=1)


def _first(n: int, limit: int | None, runs: Iterator[datetime]) -> list[datetime]:
    check_int("n", n, least=0)
    return list(islice(runs, n if limit is None else min(n, limit)))


def _bounds(start: datetime | None, end: datetime | None, limit: int | None) -> str:
    words = "" if start is None else f", from {start:%Y-%m-%d %H:%M %Z}".rstrip()
    words += "" if end is None else f", until {end:%Y-%m-%d %H:%M %Z}".rstrip()
    times = "once" if limit == 1 else f"{limit} times"
    return words if limit is None else f"{words}, {times}"


def _ms(instant: datetime | None) -> int:
    if instant is None:
        return instant_to_ms(datetime.now(UTC))
    check_instant("after", instant)
    return instant_to_ms(instant)


def _ms_or(instant: datetime | None, default: int) -> int:
    return default if instant is None else instant_to_ms(instant)


# Past runs.


_FARTHEST_MS = 10 * 366 * 86_400_000
"""Limit of the search for past runs: ten years, which include a 29th of February."""


def runs_before(rule: Rule, next_ms: int, most: int) -> list[int]:
    """Return the due times in ms of up to `most` runs before `next_ms`, the latest first."""
    start_ms = 0 if rule.start is None else instant_to_ms(rule.start)
    found: list[int] = []
    due_ms = next_ms
    for _ in range(most):
        before = (
            due_ms - rule.interval_ms if isinstance(rule, Every) else _before(rule.line, due_ms)
        )
        if before is None or before < start_ms or before <= 0:
            break
        found.append(before)
        due_ms = before
    return found


def _before(line: CronLine, due_ms: int) -> int | None:
    """Return the run before `due_ms` by bisection, because a line can only search forward."""

    def comes_before(instant_ms: int) -> bool:
        following = line.next_after(instant_ms)
        return following is not None and following < due_ms

    span = 60_000
    while not comes_before(due_ms - span):
        span *= 4
        if span > min(_FARTHEST_MS, due_ms):
            return None
    first, last = due_ms - span, due_ms - 1
    while last - first > 1:
        middle = (first + last) // 2
        if comes_before(middle):
            first = middle
        else:
            last = middle
    return line.next_after(first)


# Stored schedules.


_MOST_COLONS = 3


class Schedule(Struct, frozen=True, kw_only=True):
    """Snapshot of a job scheduler as stored in Redis."""

    id: str
    queue: str
    task: str
    """Task name of its jobs."""
    rule: Rule | None
    """Rule of the schedule, or `None` if the stored rule is invalid."""
    raw_data: bytes = b"{}"
    """Data of its jobs as JSON."""
    raw_options: bytes = b"{}"
    """Options of its jobs as JSON."""
    options: StoredOptions = StoredOptions()
    """Options of its jobs, decoded."""
    next_run: datetime | None
    """Time when the next run is due, or `None` if the schedule has ended."""
    count: int
    """Number of runs so far, including the pending one."""
    ended: bool
    """True if the schedule has reached its limit or its end."""
    last_due: datetime | None = None
    """Due time of the newest run, even if the schedule has ended."""
    declared_by: str | None = None
    """Name of the app that declares the schedule in code, if any."""
    is_pending: bool = True
    """True if the job of the next run exists and has not started."""
    is_old: bool = False
    """True for a repeatable job of BullMQ 3, 4 or early 5, which BullMQ 6 does not run."""

    def __repr__(self) -> str:
        # Omit the data, which may be large or secret.
        return f"<Schedule {self.id} of {self.task} in {self.queue}: {self.describe()}>"

    @property
    def data(self) -> Any:
        """Data of its jobs, decoded."""
        return payload.decode(self.raw_data)

    def describe(self) -> str:
        """Describe the rule in words: `every day at 03:00, Europe/Berlin`."""
        return "a rule that cannot be read" if self.rule is None else self.rule.describe()


def check_schedule_id(schedule_id: object) -> None:
    """Raise `ConfigurationError` unless `schedule_id` is a valid id of a schedule."""
    given = check_text("schedule id", schedule_id, most=NAME_LIMIT)
    if given.count(":") > _MOST_COLONS:
        raise refusal(
            "schedule id",
            f"have at most {_MOST_COLONS} colons (BullMQ 5 treats others as legacy repeatable "
            "jobs)",
            given,
        )

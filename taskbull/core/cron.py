"""Parse cron lines as BullMQ does, compute their next run, and describe them in words.

A line has five fields, or six with the seconds first. Fields missing on the left default to `*`,
the seconds to `0`. Daylight saving time is handled as follows:

- A run in the skipped hour takes place once, right after the gap: 02:30 runs at 03:30 that day.
- A run in the repeated hour takes place in the first one only, unless the line runs in every hour.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Struct

from taskbull.core.validation import shown
from taskbull.errors import ConfigurationError

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
        if not self.least <= start <= end <= self.most:
            raise ValueError(f"{self.title} {part!r} must be in {self.least}-{self.most}")
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
            back = self._change(instant - int(skipped.total_seconds()), instant)
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
        return self._change(instant, twin) if twin > instant else None

    def _change(self, before: int, after: int) -> int:
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

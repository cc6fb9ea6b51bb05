"""Cron lines in words."""

from __future__ import annotations

import re
from itertools import product

_MOST_TIMES = 4
"""How many times of day are listed; more are told by their fields."""

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
_ANY = ("*", "?")


def describe_cron(pattern: str) -> str:
    """Return in words when a line of five or six fields runs: `every day at 03:00`."""
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
    """Return the times in words, and whether they are times of the day."""
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
    """Return how often a field lets the line run, if it does so evenly."""
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
        return part  # such as */3, which few people write, and those know what it means
    return " to ".join(_name(word, names) for word in part.split("-"))


def _name(word: str, names: tuple[str, ...]) -> str:
    if word.isdecimal():
        return names[int(word)]
    return next((name for name in names if name[:3].lower() == word.lower()), word)


def _numbers(field: str) -> list[int]:
    """Return the numbers that a field lists; none if it is not a plain list."""
    parts = field.split(",")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else []


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

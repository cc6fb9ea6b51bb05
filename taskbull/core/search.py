"""Parse search queries for jobs: `name:send_email data.user.id:42 after:03:10 some text`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from msgspec import Struct

from taskbull.core.validation import refusal

LONGEST_TERM: Final = 500

_TERM: Final = re.compile(
    r'(?:(?P<key>name|error|after|before|data(?:\.[^\s:"]+)?):)?(?:"(?P<quoted>[^"]*)"|(?P<bare>\S+))'
)


class DataPath(Struct, frozen=True):
    """A value that a job's data must have at a path."""

    path: tuple[str, ...]
    value: str


class Terms(Struct, frozen=True):
    """The terms of a search query. A job must match all of them."""

    names: tuple[str, ...] = ()
    """Texts to find in the task name."""
    errors: tuple[str, ...] = ()
    """Texts to find in the failure reason."""
    texts: tuple[str, ...] = ()
    """Texts to find in the data."""
    paths: tuple[DataPath, ...] = ()
    """Values to find at paths in the data."""
    after: datetime | None = None
    """Earliest time when the job finished, or is due if it is delayed."""
    before: datetime | None = None
    """Latest time when the job finished, or is due if it is delayed."""

    @property
    def empty(self) -> bool:
        """True if the query has no terms except times."""
        return not (self.names or self.errors or self.texts or self.paths)

    def confirmed(self, data: Any) -> bool:
        """Return True if the data has the value of each path."""
        return all(_matches(data, path.path, path.value) for path in self.paths)


def read_terms(typed: str, now: datetime) -> Terms:
    """Parse a search query. See `read_time` for the format of times.

    Raises:
        ConfigurationError: The query is too long, or a time is invalid.
    """
    if len(typed) > LONGEST_TERM:
        raise refusal("search", f"have at most {LONGEST_TERM} characters", typed)
    names, errors, texts, paths = list[str](), list[str](), list[str](), list[DataPath]()
    times: dict[str, datetime] = {}
    for found in _TERM.finditer(typed):
        key = found["key"] or ""
        value = found["bare"] if found["quoted"] is None else found["quoted"]
        match key:
            case "name":
                names.append(value)
            case "error":
                errors.append(value)
            case "after" | "before":
                times[key] = read_time(key, value, now)
            case "" | "data":
                texts.append(value)
            case _:
                paths.append(DataPath(tuple(key.split(".")[1:]), value))
    return Terms(
        tuple(names),
        tuple(errors),
        tuple(texts),
        tuple(paths),
        times.get("after"),
        times.get("before"),
    )


_AGO: Final = re.compile(r"-(\d{1,6})\s?(s|min|m|h|d)")
_UNITS: Final = {"s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days"}
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")


def read_time(name: str, value: str, now: datetime) -> datetime:
    """Parse a time: ISO 8601, `-15min`, or `03:10` for today, or yesterday if that is later.

    A time without a zone is in the time zone of `now`.

    Raises:
        ConfigurationError: The time is invalid. `name` is the name of the field in the message.
    """
    try:
        if ago := _AGO.fullmatch(value):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if clock := _CLOCK.fullmatch(value):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            local = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return local if local <= now else local - timedelta(days=1)
        instant = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise refusal(name, "be a time such as 03:10, -15min or 2030-01-31T09:00", value) from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=now.tzinfo)


def _matches(data: Any, path: tuple[str, ...], value: str) -> bool:
    for step in path:
        if isinstance(data, dict):
            data = cast("dict[str, Any]", data).get(step, _NOWHERE)
        elif isinstance(data, list) and step.isdigit():
            items = cast("Sequence[Any]", data)
            data = items[int(step)] if int(step) < len(items) else _NOWHERE
        else:
            return False
    if data is _NOWHERE:
        return False
    return value in (data if isinstance(data, str) else None, json.dumps(data))


_NOWHERE: Final = object()

"""A schedule as commands show it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskbull.core import payload
from taskbull.core.rules import Cron, Every, Rule
from taskbull.core.schedule import Schedule
from taskbull.queue.job_view import iso

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def until(instant: datetime | None, now: datetime) -> str | None:
    """Return how long it is until an instant, in its two largest units: `3 h 12 min`."""
    if instant is None:
        return None
    left = round((instant - now).total_seconds())
    words: list[str] = []
    rest = abs(left)
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
    shown = " ".join(word for word in words[:2] if word) or "0 s"
    return shown if left >= 0 else f"{shown} overdue"


def describe_schedule(schedule: Schedule, now: datetime) -> dict[str, Any]:
    """Return a schedule in the form of the JSON output."""
    next_run = schedule.next_run
    return {
        "queue": schedule.queue,
        "id": schedule.id,
        "task": schedule.task,
        "description": schedule.describe(),
        "rule": None if schedule.rule is None else _describe_rule(schedule.rule),
        "next_run": iso(next_run),
        "in": None if next_run is None else round((next_run - now).total_seconds(), 3),
        "count": schedule.count,
        "ended": schedule.ended,
        "pending": schedule.is_pending,
        "declared_by": schedule.declared_by,
        "data": _json(schedule.raw_data),
        "options": _json(schedule.raw_options),
    }


def _describe_rule(rule: Rule) -> dict[str, Any]:
    bounds = {"start": iso(rule.start), "end": iso(rule.end), "limit": rule.limit}
    match rule:
        case Cron():
            return {"pattern": rule.pattern, "tz": rule.tz, **bounds}
        case Every():
            return {"every": rule.interval, "offset": rule.offset, **bounds}


def _json(raw: bytes) -> Any:
    try:
        return payload.decode(raw)
    except ValueError:
        return raw.decode("utf-8", "backslashreplace")

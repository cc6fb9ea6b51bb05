"""Times and numbers as people say them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_STEPS: Final = ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"))


def span(seconds: float) -> str:
    """Return a length of time in its largest unit: `0.2 s`, `41 min`, `3 h`, `12 days`."""
    seconds = max(seconds, 0)
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    for below, unit, name in _STEPS:
        if seconds < below:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def moment(instant: datetime, now: datetime) -> str:
    """Return a time as the clock shows it where `now` is, with its day unless that is today."""
    local = instant.astimezone(now.tzinfo)
    near = abs((instant - now).total_seconds()) < 120
    clock = f"{local:%H:%M:%S}" if near else f"{local:%H:%M}"
    return clock if local.date() == now.date() else f"{local:%Y-%m-%d} {clock}"


def ago(instant: datetime, now: datetime) -> str:
    """Return how long ago that was."""
    return f"{span((now - instant).total_seconds())} ago"


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun: `1 worker`, `12,840 workers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

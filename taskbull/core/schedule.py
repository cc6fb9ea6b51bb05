"""What follows a run of a job scheduler, computed from the options of that run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.checks import shown
from taskbull.core.cron import parse_cron
from taskbull.core.durations import instant_to_ms
from taskbull.core.wire.numbers import Foreign, Number
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import ConfigurationError


class Repeat(
    Foreign,
    frozen=True,
    rename={"zone": "tz", "every_ms": "every", "end": "endDate"},
):
    """The object `repeat` of a job's options, as far as the next run depends on it."""

    pattern: str | None = None
    every_ms: Number | None = None
    zone: str | None = None
    limit: Number | None = None
    count: int | None = None
    end: Number | str | None = None

    @property
    def end_ms(self) -> float | None:
        """When the scheduler ends, if it does."""
        if not isinstance(self.end, str):
            return self.end
        try:
            end = datetime.fromisoformat(self.end)
        except ValueError as error:
            raise ConfigurationError(f"endDate {shown(self.end)} is not a date") from error
        return instant_to_ms(end if end.tzinfo is not None else end.replace(tzinfo=UTC))


class NextRun(Struct, frozen=True):
    """The run that a scheduler adds when this one begins."""

    count: int
    """Its number, counted from 1."""
    due_ms: int | None = None
    """None: the next slot of `every`. Only the scheduler itself knows where its slots begin."""


def next_run(options: StoredOptions, now_ms: int) -> NextRun | None:
    """Return the run after the one with these options; None if there is none.

    A cron line without a time zone is read in that of this process, as in Node.
    """
    if options.repeat is None:
        return None
    repeat = _read(options.repeat)
    count = (repeat.count or 0) + 1
    if repeat.limit is not None and count > repeat.limit:
        return None
    end_ms = repeat.end_ms
    if end_ms is not None and now_ms > end_ms:
        return None
    if not repeat.pattern:
        return NextRun(count) if repeat.every_ms else None
    due_ms = parse_cron(repeat.pattern, repeat.zone).next_after(
        max(now_ms, options.previous_ms or 0)
    )
    if due_ms is None:
        raise ConfigurationError(f"the cron line {shown(repeat.pattern)} never matches")
    return NextRun(count, due_ms) if end_ms is None or due_ms <= end_ms else None


def _read(repeat: dict[str, Any]) -> Repeat:
    try:
        return msgspec.convert(repeat, Repeat, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"the rule {shown(repeat)} cannot be read: {error}") from error

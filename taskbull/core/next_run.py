"""What follows a run of a schedule, computed from the options of that run."""

from __future__ import annotations

from msgspec import Struct

from taskbull.core.checks import shown
from taskbull.core.cron import parse_cron
from taskbull.core.wire.options import StoredOptions
from taskbull.core.wire.repeat import decode_repeat
from taskbull.errors import ConfigurationError


class NextRun(Struct, frozen=True):
    """The run that a scheduler adds when this one begins."""

    count: int
    """Its number, counted from 1."""
    due_ms: int | None = None
    """None: the next slot of `every`. Only the scheduler itself knows where its slots begin."""


def next_run(
    options: StoredOptions, now_ms: int, *, after_ms: int = 0, is_old: bool = False
) -> NextRun | None:
    """Return the run after the one with these options; None if there is none.

    A cron line without a time zone is read in that of this process, as in Node. With `after_ms`,
    the time of a cron run is after that. An old repeatable job runs at multiples of its interval.
    """
    if options.repeat is None:
        return None
    repeat = decode_repeat(options.repeat)
    count = (repeat.count or 0) + 1
    if repeat.limit is not None and count > repeat.limit:
        return None
    end_ms = repeat.end_ms
    if end_ms is not None and now_ms > end_ms:
        return None
    latest = max(now_ms, int(options.previous_ms or 0), after_ms)
    if not repeat.pattern:
        every_ms = int(repeat.every_ms or 0)
        if every_ms < 1:
            return None
        if not is_old:
            return NextRun(count)
        due_ms: int | None = (latest // every_ms + 1) * every_ms
    else:
        due_ms = parse_cron(repeat.pattern, repeat.zone).next_after(latest)
    if due_ms is None:
        raise ConfigurationError(f"the cron line {shown(repeat.pattern)} never matches")
    return NextRun(count, due_ms) if end_ms is None or due_ms <= end_ms else None

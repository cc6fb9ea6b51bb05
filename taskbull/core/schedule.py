"""Schedule rules (`Cron` and `Every`), and schedules as stored in Redis.

BullMQ calls a schedule a job scheduler. Time is an argument, except that `next` and `upcoming`
default to the current time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.core import payload
from taskbull.core.cron import CronLine, describe_cron, expand_macro, parse_cron
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.states import MAX_DUE_MS, MAX_SAFE_INTEGER
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
        check_int("limit", limit, least=1, most=MAX_SAFE_INTEGER)


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

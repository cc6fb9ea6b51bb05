"""How fast a queue moves: from BullMQ's own metrics, or from the jobs that are still kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.core.wire.numbers import Foreign
from taskbull.core.worker_record import WorkerRecord

# How fast a queue moves: from BullMQ's own metrics, or from the jobs that are still kept.


MINUTE_MS: Final = 60_000
RECENT: Final = 5
"""Minutes over which a rate is taken."""

Source: TypeAlias = Literal["metrics", "kept"]
"""Where counts come from: BullMQ's metrics, or the jobs that are kept when they have ended."""


class EndCounts(Struct, frozen=True):
    """BullMQ's metrics of one kind of end."""

    count: int
    previous_ms: int
    previous_count: int
    points: Sequence[int] = ()
    """The minutes before that of `previous_ms`, the newest first."""


class Kept(Struct, frozen=True):
    """How many of the jobs that are kept ended in each minute, the newest first."""

    minute_ms: int
    """When the newest minute began."""
    counts: Sequence[int]
    since_ms: float | None
    """When the oldest job that is kept ended; None: none is."""


class Throughput(Struct, frozen=True):
    """How many jobs ended in each minute; the first is the minute that runs. None: unknown."""

    minutes: list[int | None]
    source: Source | None
    """None: nobody counts, and nothing is kept."""

    def recent(self, elapsed: float, minutes: int = RECENT) -> float | None:
        """Return the jobs per second over the last minutes; the running one has `elapsed` s."""
        known = [count for count in self.minutes[1 : minutes + 1] if count is not None]
        running = self.minutes[0] if self.minutes else None
        seconds = 60.0 * len(known) + (0 if running is None else max(elapsed, 0.0))
        if seconds < 1:
            return None
        return (sum(known) + (running or 0)) / seconds

    def total(self, minutes: int) -> int:
        """Return how many ended in the minute that runs and those before it, as far as known."""
        return sum(filter(None, self.minutes[: minutes + 1]))


def throughput(
    tally: EndCounts | None, kept: Kept | None, now_ms: int, minutes: int = 60
) -> Throughput:
    """Return how many jobs ended in each minute up to now, from the better of two sources.

    Metrics miss the jobs of workers that do not count: so what is kept is taken if it is more.
    """
    counted = None if tally is None else from_metrics(tally, now_ms, minutes)
    found = None if kept is None else from_kept(kept, now_ms, minutes)
    if counted is None:
        unknown = found is None or all(count is None for count in found)
        return Throughput(found or [None] * minutes, None if unknown else "kept")
    if found is not None and _exceeds(found, counted):
        return Throughput(found, "kept")
    return Throughput([*counted], "metrics")


def from_metrics(tally: EndCounts, now_ms: int, minutes: int) -> list[int | None]:
    """Read BullMQ's metrics: the minute that runs first; what is not counted any more is None.

    The minute of `previous_ms` is the last in which a job ended: its count is what has come since,
    and `points` are the minutes before it. In later minutes none has ended.
    """
    # Not less than none: their clock may be ahead of ours.
    behind = max(now_ms // MINUTE_MS - tally.previous_ms // MINUTE_MS, 0)
    since = max(tally.count - tally.previous_count, 0)
    known: list[int | None] = [*[0] * min(behind, minutes), since, *tally.points]
    return [*known[:minutes], *[None] * (minutes - len(known))]


def from_kept(kept: Kept, now_ms: int, minutes: int) -> list[int | None]:
    """Read the jobs that are kept: a minute counts if the oldest of them ended before it began."""
    passed = max(now_ms // MINUTE_MS - kept.minute_ms // MINUTE_MS, 0)
    whole = 0
    if kept.since_ms is not None and kept.since_ms <= kept.minute_ms:
        since_ms = max(kept.since_ms, kept.minute_ms - len(kept.counts) * MINUTE_MS)
        whole = 1 + int((kept.minute_ms - since_ms) // MINUTE_MS)
    # Before them, the minutes that began since the look.
    found: list[int | None] = [*[None] * min(passed, minutes), *kept.counts[:whole]]
    return [*found[:minutes], *[None] * (minutes - len(found))]


def empty_in(waiting: int, out: float | None, into: float | None) -> float | None:
    """Return the seconds until nothing waits; infinite if that is never, None if unknown."""
    if waiting == 0:
        return 0.0
    if out is None:
        return None
    net = out - (into or 0.0)
    return waiting / net if net > 0 else float("inf")


def rate(before: tuple[float, int], after: tuple[float, int]) -> float | None:
    """Return the change per second of a count between two looks; None if it was set back."""
    seconds, change = after[0] - before[0], after[1] - before[1]
    return change / seconds if seconds > 0 and change >= 0 else None


def _exceeds(found: Sequence[int | None], counted: Sequence[int | None]) -> bool:
    """Return whether whole minutes have more of one than of the other; the edges do not count."""
    pairs = [
        (one, other or 0)
        for one, other in zip(found[1:], counted[1:], strict=False)
        if one is not None
    ]
    return sum(one for one, _ in pairs) > sum(other for _, other in pairs) + len(pairs) // 10


# What is known of a queue at one moment, by whoever has to say what is wrong with it.


_NOTHING = Throughput([], None)


class PauseNote(Foreign, frozen=True):
    """Why somebody has paused a queue."""

    by: str = ""
    at_ms: int = 0
    why: str = ""


class QueueFacts(Struct, frozen=True, kw_only=True):
    """A queue at one moment; what nobody knows is None."""

    name: str
    now: datetime
    """Aware; people read times in its zone."""
    counts: Mapping[str, int]
    problem: str | None = None
    """Why the queue cannot be read; None: it can. Counts and the like are then not known."""
    paused: bool = False
    note: PauseNote | None = None
    version: str | None = None
    versions: frozenset[str] = frozenset()
    """All versions that were seen in the queue."""
    waiting_since: datetime | None = None
    next_due: datetime | None = None
    next_scheduled: datetime | None = None
    concurrency: int | None = None
    rate_max: int | None = None
    rate_window: float | None = None
    started: int = 0
    limited_for: float | None = None
    connected: Sequence[str] | None = None
    """The names of the workers that are connected; None: the server does not tell."""
    records: Sequence[WorkerRecord] = ()
    """What those of our workers say that are alive."""
    last_seen: datetime | None = None
    """When one of ours was last seen."""
    completed: Throughput = _NOTHING
    failed: Throughput = _NOTHING
    arrivals: float | None = None
    """Jobs added per second."""
    lockless: int = 0
    """Running jobs that had no lock in two looks: their workers are gone."""
    worst_error: str = ""
    worst_share: float = 0.0
    """The error that most failed jobs have, and how many of them."""

    @property
    def waiting(self) -> int:
        """How many jobs could run if a worker took them."""
        return sum(
            self.counts.get(state, 0)
            for state in (JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED)
        )

    @property
    def foreign(self) -> int:
        """How many workers are connected that say nothing about themselves: Node's, mostly."""
        known = {record.id for record in self.records}
        return len([name for name in self.connected or () if name not in known])

    @property
    def workers(self) -> int:
        """How many workers are known to serve it."""
        return len(self.records) + self.foreign

    @property
    def out(self) -> float | None:
        """Jobs that end per second, lately."""
        elapsed = self.now.timestamp() % 60
        rates = [self.completed.recent(elapsed), self.failed.recent(elapsed)]
        known = [one for one in rates if one is not None]
        return sum(known) if known else None


def read_note(raw: bytes) -> PauseNote | None:
    """Read why a queue was paused; None if nobody said so."""
    try:
        return msgspec.json.decode(raw, type=PauseNote) if raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def encode_note(by: str, at_ms: int, why: str) -> bytes:
    """Return why a queue is paused, as it is stored."""
    return msgspec.json.encode(PauseNote(by[:100], at_ms, why[:500]))


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as JSON has them: instants are ISO 8601."""
    return {
        name: value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value
        for name, value in facts.items()
    }

"""What is known of a queue at one moment, by whoever has to say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.rates import Throughput
from taskbull.core.record import WorkerRecord
from taskbull.core.states import JobState
from taskbull.core.wire.numbers import Foreign

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

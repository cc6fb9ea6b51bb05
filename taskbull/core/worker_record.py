"""When the attempts of a job began and ended, read from what its queue's events tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.numbers import Foreign

# When the attempts of a job began and ended, read from what its queue's events tell.


AttemptEnd: TypeAlias = Literal["running", "completed", "failed", "stalled", "again"]
"""How an attempt ended; `again`: the job goes on, because it failed or was put off."""

_ENDS: Final[dict[str, AttemptEnd]] = {
    "completed": "completed",
    "failed": "failed",
    "stalled": "stalled",
    "delayed": "again",
    "waiting": "again",
    "waiting-children": "again",
}


class PastEvent(Struct, frozen=True):
    """Something that happened to a job."""

    at_ms: int
    name: str
    previous: str = ""
    """The state from which it came."""


class JobHistory(Struct, frozen=True):
    """What the newest events of a queue tell about a job, the oldest first."""

    events: list[PastEvent]
    looked_at: int
    """How many events of the queue were looked at."""
    whole: bool
    """Whether there are no older ones."""


class AttemptTimes(Struct, frozen=True):
    """One attempt, as far as the events tell of it."""

    number: int
    """Counted from 1, by how often the job was started."""
    began: datetime | None
    ended: datetime | None = None
    end: AttemptEnd = "running"


def attempts_of(events: Iterable[PastEvent], started: int) -> list[AttemptTimes]:
    """Return the attempts that events tell of, given the oldest first; `started` is how many began.

    The stream forgets the oldest first, so that attempts are numbered from the last.
    """
    found: list[AttemptTimes] = []
    for event in events:
        if event.name == "active":
            found.append(AttemptTimes(0, instant_from_ms(event.at_ms)))
        elif found and event.name in _ENDS:
            last = found[-1]
            if last.end == "running":
                ended = instant_from_ms(event.at_ms)
                found[-1] = replace(last, ended=ended, end=_ENDS[event.name])
            elif event.name == "stalled" and last.end == "again":  # it was put back just before
                found[-1] = replace(last, end="stalled")
    first = started - len(found) + 1
    numbered = [replace(each, number=first + place) for place, each in enumerate(found)]
    return [each for each in numbered if each.number > 0]


# What workers write down for whoever looks: who they are, and how they fare.


LONGEST: Final = 2048
"""Bytes of a record."""

_MOST_TASKS: Final = 200


class BreakerRecord(Foreign, frozen=True):
    """A circuit breaker, as others see it."""

    state: str
    until_ms: int | None = None
    """When an open one lets the next job through."""
    failures: int = 0
    """How many failures in a row it has seen."""


class WorkerRecord(Foreign, frozen=True, kw_only=True, omit_defaults=True):
    """A worker of ours, as it describes itself."""

    id: str
    host: str = ""
    pid: int = 0
    version: str = ""
    """Of taskbull."""
    python: str = ""
    backend: str = ""
    """asyncio or trio."""
    started_ms: int = 0
    at_ms: int = 0
    """When it wrote this."""
    concurrency: int = 0
    running: int = 0
    tasks: list[str] | None = None
    """The names of the tasks that it has; None: it takes any."""
    tasks_left_out: int = 0
    """How many are not in `tasks`, because they would be too many."""
    circuit: BreakerRecord | None = None
    limiter: tuple[int, float] | None = None
    """How many jobs may start in how many seconds, if this worker says so."""
    lock_duration: float = 30.0
    """Seconds for which it locks a job."""
    lag_ms: float = 0.0
    """The lag of its event loop that 99 % of the looks stayed below."""
    memory: int = 0
    """Bytes of memory that the process has."""
    stopping: bool = False

    @property
    def knows_all(self) -> bool:
        """Whether it takes jobs whatever their name, or may do so for all that is known."""
        return self.tasks is None or self.tasks_left_out > 0


class Seen(Struct, frozen=True):
    """A worker of ours, and when it was last seen."""

    id: str
    at_ms: int
    record: WorkerRecord | None
    """None: it is gone."""


def encode_record(record: WorkerRecord) -> bytes:
    """Return a record as JSON of bounded size: names of tasks are left out where they are many."""
    tasks, whole = record.tasks, msgspec.json.encode(record)
    if tasks is None or (len(tasks) <= _MOST_TASKS and len(whole) <= LONGEST):
        return whole
    fitting = _fitting(tasks[:_MOST_TASKS], LONGEST - len(msgspec.json.encode(_bare(record))))
    left_out = len(tasks) - len(fitting)
    return msgspec.json.encode(replace(record, tasks=fitting, tasks_left_out=left_out))


def decode_record(raw: bytes) -> WorkerRecord | None:
    """Read a record; None if it is none."""
    try:
        return msgspec.json.decode(raw, type=WorkerRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _bare(record: WorkerRecord) -> WorkerRecord:
    return replace(record, tasks=[], tasks_left_out=999_999)


def _fitting(tasks: Sequence[str], room: int) -> list[str]:
    fitting: list[str] = []
    for task in tasks:
        room -= len(msgspec.json.encode(task)) + 1
        if room < 0:
            break
        fitting.append(task)
    return fitting

"""What workers write down for whoever looks: who they are, and how they fare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.wire.numbers import Foreign

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

"""Attempt times reconstructed from queue events, and the status records of workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.validation import Foreign, instant_from_ms

# Attempt times from queue events.


AttemptEnd: TypeAlias = Literal["running", "completed", "failed", "stalled", "again"]
"""Result of an attempt. "again" means that the job will run again: a retry or a release."""

_ENDS: Final[dict[str, AttemptEnd]] = {
    "completed": "completed",
    "failed": "failed",
    "stalled": "stalled",
    "delayed": "again",
    "waiting": "again",
    "waiting-children": "again",
}


class PastEvent(Struct, frozen=True):
    """An event of a job, read from the event stream."""

    at_ms: int
    name: str
    previous: str = ""
    """Previous state of the job."""


class JobHistory(Struct, frozen=True):
    """The events of a job among the newest events of its queue."""

    events: list[PastEvent]
    """Events of the job, oldest first."""
    examined: int
    """Number of queue events that were read."""
    whole: bool
    """True if the stream has no older events."""


class AttemptTimes(Struct, frozen=True):
    """Start, end and result of an attempt, as far as events are available."""

    number: int
    """Number of the attempt, counting every start of the job from 1."""
    began: datetime | None
    ended: datetime | None = None
    end: AttemptEnd = "running"


def attempts_of(events: Iterable[PastEvent], started: int) -> list[AttemptTimes]:
    """Return the attempts that a job's events describe.

    The stream drops its oldest events first, so attempts are numbered backward from the last one.

    Args:
        events: Events of the job, oldest first.
        started: Number of times that the job was started.
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
            elif event.name == "stalled" and last.end == "again":  # "waiting" precedes "stalled".
                found[-1] = replace(last, end="stalled")
    first = started - len(found) + 1
    numbered = [replace(each, number=first + place) for place, each in enumerate(found)]
    return [each for each in numbered if each.number > 0]


# Status records of workers.


LONGEST: Final = 2048
"""Maximum size of a record in bytes."""

_MOST_TASKS: Final = 200


RECORD_LIFE: Final = 60.0
"""Maximum age of a worker's record in seconds. An idle worker writes it every 25 s."""

BUSY_RECORD_LIFE: Final = 12.0
"""Maximum age of the record of a worker that runs jobs, in seconds. It is written every 5 s."""


class BreakerRecord(Foreign, frozen=True):
    """State of a worker's circuit breaker."""

    state: str
    until_ms: int | None = None
    """Time when an open circuit breaker lets the next job through."""
    failures: int = 0
    """Number of failures in a row."""


class WorkerRecord(Foreign, frozen=True, kw_only=True, omit_defaults=True):
    """Status record that a taskbull worker publishes about itself."""

    id: str
    host: str = ""
    pid: int = 0
    version: str = ""
    """taskbull version."""
    python: str = ""
    """Python version."""
    backend: str = ""
    """Event loop: asyncio or trio."""
    started_ms: int = 0
    """Time when the worker started."""
    at_ms: int = 0
    """Time when the record was written."""
    concurrency: int = 0
    running: int = 0
    """Number of running jobs, including those that lost their lock."""
    lost: int = 0
    """Number of running jobs that lost their lock. They use slots, but have no effect."""
    tasks: list[str] | None = None
    """Names of the worker's tasks, or `None` if it runs any task."""
    tasks_left_out: int = 0
    """Number of tasks missing from `tasks` to limit the record's size."""
    circuit: BreakerRecord | None = None
    limiter: tuple[int, float] | None = None
    """Rate limit of this worker: number of jobs and seconds."""
    lock_duration: float = 30.0
    """Lock duration in seconds."""
    lag_ms: float = 0.0
    """99th percentile of the event loop lag."""
    memory: int = 0
    """Memory of the process in bytes."""
    stopping: bool = False
    """True while the worker is shutting down."""
    quiet: bool = False
    """True while the worker fetches no jobs on request. See `Server.quiet_worker`."""
    skew: float = 0.0
    """Seconds that the clock of its machine is ahead of Redis's; 0 below a second."""

    @property
    def knows_all(self) -> bool:
        """True if the worker runs any task, or if its list of tasks is incomplete."""
        return self.tasks is None or self.tasks_left_out > 0

    def is_late(self, now_ms: int) -> bool:
        """Return whether the worker missed two records."""
        return (now_ms - self.at_ms) / 1000 >= (BUSY_RECORD_LIFE if self.running else RECORD_LIFE)


class Seen(Struct, frozen=True):
    """A taskbull worker and the time when it was last seen."""

    id: str
    at_ms: int
    record: WorkerRecord | None
    """Current record, or `None` if the worker is gone."""


def encode_record(record: WorkerRecord) -> bytes:
    """Encode a record as JSON of bounded size, leaving out task names if necessary."""
    tasks, whole = record.tasks, msgspec.json.encode(record)
    if tasks is None or (len(tasks) <= _MOST_TASKS and len(whole) <= LONGEST):
        return whole
    fitting = _fitting(tasks[:_MOST_TASKS], LONGEST - len(msgspec.json.encode(_bare(record))))
    left_out = len(tasks) - len(fitting)
    return msgspec.json.encode(replace(record, tasks=fitting, tasks_left_out=left_out))


def decode_record(raw: bytes) -> WorkerRecord | None:
    """Decode a record. Return `None` if it is invalid."""
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


# Deaths of workers, as lines in the logs of the jobs that they were running.


_DEATH: Final = re.compile(
    r"(\S{1,40}) Worker (\S{1,200}) died with (.{1,200}) while running this job"
)


class WorkerDeath(Struct, frozen=True):
    """The death of a worker process while it ran a job."""

    at: str
    """Time in UTC, in ISO format."""
    worker: str
    cause: str
    """Signal or exit code."""

    def __str__(self) -> str:
        return f"{self.worker} with {self.cause} at {self.at}"


def is_made_id(worker_id: str) -> bool:
    """Return True if an id has the form that taskbull gives its workers: host, process, random."""
    return re.fullmatch(r".+-\d+-[0-9a-f]{6}", worker_id) is not None


def death_line(worker_id: str, cause: str, at: datetime, others: int) -> str:
    """Return the line to add to the log of a job that a dead worker was running.

    Args:
        worker_id: Id of the dead worker.
        cause: Signal or exit code.
        at: Time of the death, in UTC.
        others: Number of other jobs that it was running.
    """
    hint = " (perhaps out of memory)" if cause == "SIGKILL" else ""
    line = (
        f"{at:%Y-%m-%dT%H:%M:%SZ} Worker {worker_id} died with {cause}{hint} while running this job"
    )
    return f"{line} and {others} more" if others > 0 else line


def find_deaths(lines: Iterable[str]) -> list[WorkerDeath]:
    """Return the deaths of workers that a job's log mentions, oldest first."""
    return [WorkerDeath(*found.groups()) for line in lines if (found := _DEATH.match(line))]

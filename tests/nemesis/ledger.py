"""Records of every process's intents, replies, runs and events, stored outside of Redis.

Each process appends JSON lines to its own file, one write per record, so a SIGKILL loses no earlier
record. Times are wall-clock times, like those in Redis streams.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

JobKey: TypeAlias = tuple[str, str]
"""A queue name and a job id."""

Said: TypeAlias = Literal["added", "stands", "refused", "maybe"]
"""Result of adding a job: added, deduplicated, not added, or unknown."""


class Record(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something that happened in a process."""

    at: float
    who: str


class Intent(Record, frozen=True, kw_only=True):
    """A job is about to be added."""

    intent: str
    kind: str
    queue: str
    delay: float = 0.0
    parent: str = ""
    """The intent of its parent job."""


class Answer(Record, frozen=True, kw_only=True):
    """The result of an intent, as reported to the producer."""

    intent: str
    said: Said
    job: str = ""
    error: str = ""


class Run(Record, frozen=True, kw_only=True):
    """A worker starts a job. `number` counts how often it was fetched."""

    queue: str
    job: str
    kind: str
    intent: str
    number: int


class Told(Record, frozen=True, kw_only=True):
    """A worker emitted an event about a job."""

    event: str
    queue: str
    job: str
    number: int
    value: str = ""


class Heard(Record, frozen=True, kw_only=True):
    """A follower of the event stream received an event."""

    queue: str
    id: str
    name: str
    job: str


class Called(Record, frozen=True, kw_only=True):
    """A single call with a deadline returned or raised."""

    what: str
    deadline: float
    took: float
    error: str = ""


class StepNote(Record, frozen=True, kw_only=True):
    """A step was executed, or returned its stored value to the task."""

    intent: str
    number: int
    """Number of the run."""
    place: int
    value: str
    returned: bool = False


class Signalled(Record, frozen=True, kw_only=True):
    """A signal to a waiting job, recorded as "maybe" before it is sent."""

    intent: str
    value: int
    said: Said


class Streamed(Record, frozen=True, kw_only=True):
    """A reader of a job's stream got these items after the last restart."""

    intent: str
    items: list[str]


END_OF_SCHEDULE = "the end of the schedule"
"""Name in a `Called` when the run first removes the schedule of our workers."""


class Vitals(Record, frozen=True, kw_only=True):
    """State of a worker process."""

    threads: int
    sockets: int
    memory: int
    late: float
    """Seconds from adding the probe job to its start."""


class Fault(Record, frozen=True, kw_only=True):
    """A deliberate fault that started at `began` and is repaired, or a stall of the machine."""

    name: str
    target: str
    began: float


AnyRecord: TypeAlias = (
    Intent | Answer | Run | Told | Heard | Called | Vitals | Fault | StepNote | Signalled | Streamed
)


class Ledger:
    """The file of one process."""

    def __init__(self, folder: Path, who: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / f"{who}.jsonl", flags, 0o600)
        self.who = who

    def note(self, kind: type[Record], /, **fields: Any) -> None:
        """Write a record with the current time. Thread-safe."""
        record = kind(at=time.time(), who=self.who, **fields)
        os.write(self._file, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Book(Struct):
    """All ledgers of a run, in chronological order."""

    intents: dict[str, Intent] = field(default_factory=dict)
    answers: defaultdict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    runs: defaultdict[JobKey, list[Run]] = field(default_factory=lambda: defaultdict(list))
    told: defaultdict[JobKey, list[Told]] = field(default_factory=lambda: defaultdict(list))
    heard: defaultdict[tuple[str, str], list[Heard]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By follower and queue."""
    calls: list[Called] = field(default_factory=list)
    vitals: defaultdict[str, list[Vitals]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Fault] = field(default_factory=list)
    continued: defaultdict[str, list[StepNote | Signalled | Streamed]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Steps, signals and readers of streams, by intent."""

    @property
    def killed(self) -> set[str]:
        """Processes that were ended by SIGKILL and could not record their last actions."""
        return {fault.target for fault in self.faults if fault.name == "kill"}

    def add(self, record: AnyRecord) -> None:
        match record:
            case Intent():
                self.intents.setdefault(record.intent, record)
            case Answer():
                self.answers[record.intent].append(record)
            case Run():
                self.runs[record.queue, record.job].append(record)
            case Told():
                self.told[record.queue, record.job].append(record)
            case Heard():
                self.heard[record.who, record.queue].append(record)
            case Called():
                self.calls.append(record)
            case Vitals():
                self.vitals[record.who].append(record)
            case Fault():
                self.faults.append(record)
            case StepNote() | Signalled() | Streamed():
                self.continued[record.intent].append(record)


def read(folder: Path) -> Book:
    """Read the ledgers of all processes."""
    book = Book()
    files = sorted(folder.glob("*.jsonl"))
    for record in sorted((one for file in files for one in _records(file)), key=lambda r: r.at):
        book.add(record)
    return book


def _records(file: Path) -> Iterator[AnyRecord]:
    decoder = msgspec.json.Decoder(AnyRecord)
    lines = file.read_bytes().split(b"\n")
    for line in lines[:-1]:  # The last line is empty or incomplete.
        yield decoder.decode(line)

"""What every process intended, was answered, ran and was told: kept outside of Redis.

Each process appends to a file of its own, one JSON line per record, each in one write: a SIGKILL
loses nothing that was noted before it. Times are the wall's, as those of Redis' streams are.
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
"""A queue's name and the id of a job in it."""

Said: TypeAlias = Literal["added", "stands", "refused", "maybe"]
"""Of a job that was to be added: it was; another stands for it; it was not; nobody knows."""


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
    """The intent of the job that waits for it."""


class Answer(Record, frozen=True, kw_only=True):
    """What became of an intent, as the producer was told."""

    intent: str
    said: Said
    job: str = ""
    error: str = ""


class Run(Record, frozen=True, kw_only=True):
    """A worker begins to run a job; `number` counts how often it was taken."""

    queue: str
    job: str
    kind: str
    intent: str
    number: int


class Told(Record, frozen=True, kw_only=True):
    """A worker's listeners heard of a job."""

    event: str
    queue: str
    job: str
    number: int
    value: str = ""


class Heard(Record, frozen=True, kw_only=True):
    """A follower of the event stream was given an event."""

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
    """A step is executed, or has returned its stored value to the task."""

    intent: str
    number: int
    """Number of the run."""
    place: int
    value: str
    returned: bool = False


class Signalled(Record, frozen=True, kw_only=True):
    """A signal to a waiting job. It is noted as "maybe" before it is sent."""

    intent: str
    value: int
    said: Said


class Streamed(Record, frozen=True, kw_only=True):
    """A reader of a job's stream got these items after the last restart."""

    intent: str
    items: list[str]


END_OF_SCHEDULE = "the end of the schedule"
"""What a `Called` names when the run first removes the schedule of our workers."""


class Vitals(Record, frozen=True, kw_only=True):
    """How a worker process is."""

    threads: int
    sockets: int
    memory: int
    late: float
    """Seconds from the adding of the job that asked to its start."""


class Fault(Record, frozen=True, kw_only=True):
    """Something was broken on purpose since `began`, and is whole again; or the machine stood."""

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
        """Write down a record that happens now; from any thread."""
        record = kind(at=time.time(), who=self.who, **fields)
        os.write(self._file, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Book(Struct):
    """All ledgers of a run, in order of time."""

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
        """The processes that were ended by SIGKILL, and so could not tell what they did last."""
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
    for line in lines[:-1]:  # the last one is empty, or torn
        yield decoder.decode(line)

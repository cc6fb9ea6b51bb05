"""Steps and waits of a job: their numbers, their stored form, and the check of a rerun.

A job's steps are fields of one hash, which only taskbull reads and writes:

    job                      the time when the job was added, as in its hash
    step:<name>#<n>          a finished step: a `StepRecord` as JSON
    signal:<name>#<n>        a wait for a signal, and sleep:#<n> a sleep: a `WaitRecord` as JSON
    done:<field of a wait>   the end of that wait: a `WaitEnd` as JSON
    sent:<name>#<n>          a signal: the id of the call that sent it, a colon, and its value
    count:<name>             number of signals that were sent
    taken:<name>             number of signals that waits have taken
    pending:<name>           ids of the child jobs of the current waits, packed
    child:<field of a wait>  id of its child job, if another job has the usual one

Code that calls steps in sequence calls them in the same order in each run, so each call has a
*place*: its number among all calls. Tasks and threads that a job starts may call steps in any
order. Their calls have no place, and are identified by their arguments instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from taskbull.core import payload
from taskbull.core.validation import (
    Foreign,
    check_text,
    from_ms,
    instant_from_ms,
    iso,
    read_number,
    read_text,
    refusal,
)
from taskbull.errors import StepMismatch

WAIT_JOB: Final = "taskbull.wait"
"""Name of the child job of a wait. It is delayed until the wait's end."""

SIGNAL_JOB: Final = "taskbull.signal"
"""Name of a job that sends a signal to another job of its queue, for producers in Node."""

StepKind: TypeAlias = Literal["step", "signal", "sleep"]

_NAME_LIMIT: Final = 200


class StepRecord(Foreign, frozen=True, omit_defaults=True):
    """A finished step as stored."""

    at: int
    """Time when it started, in ms since 1970."""
    took: int
    """Run time in ms."""
    value: Raw
    args: str = ""
    """Digest of its arguments."""
    place: int = 0


class WaitRecord(Foreign, frozen=True, omit_defaults=True):
    """A wait as stored when it begins."""

    at: int
    """Time when it began, in ms since 1970."""
    until: int | None = None
    """Time when it ends without a signal, in ms since 1970, or None if it has no limit."""
    place: int = 0


class WaitEnd(Foreign, frozen=True):
    """The end of a wait as stored: the number of a signal, a value, or neither after its time."""

    at: int
    sent: int = 0
    """Number of the signal that ended it, among those of its name."""
    value: Raw | UnsetType = UNSET
    """The value of a signal that was stored in the wait's child job."""


_read_step = msgspec.json.Decoder(StepRecord).decode
read_wait = msgspec.json.Decoder(WaitRecord).decode
read_wait_end = msgspec.json.Decoder(WaitEnd).decode
encode_record = msgspec.json.encode


def signal_value(sent: bytes) -> bytes:
    """Return the value of a stored signal, as JSON."""
    return sent.partition(b":")[2]


def check_signal_name(name: object) -> str:
    """Return a valid name of a signal, or raise `ConfigurationError`."""
    text = check_text("signal name", name, most=_NAME_LIMIT)
    if ":" in text:
        raise refusal("signal name", "not contain ':' (it is part of a job id)", name)
    return text


def wait_job_id(job_id: str, kind: StepKind, name: str, number: int) -> str:
    """Return the id of a wait's child job, such as `42-signal-approval-1`."""
    return "-".join(filter(None, (job_id, kind, name, str(number))))


class StepCall(Struct, frozen=True):
    """A call of a step or a wait in the current run."""

    kind: StepKind
    name: str
    number: int
    """Number of the call among those of its name."""
    place: int = 0
    """Number of the call among all calls, or 0 for a call by a concurrent task or thread."""
    args: str = ""
    """Digest of the arguments."""

    @property
    def field(self) -> str:
        """Field of the call in the job's hash."""
        branch = f"@{self.args}" if self.kind == "step" and not self.place else ""
        return f"{self.kind}:{self.name}{branch}#{self.number}"

    def __str__(self) -> str:
        return _label(self.kind, self.name, self.number)


class StepLog:
    """The steps of one run of a job: the calls so far, and those of earlier runs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._places = 0
        self.stored: Mapping[str, bytes] | None = None
        """The job's hash, once it is loaded. A job's first run has nothing to load."""
        self._by_place: dict[int, str] = {}

    def next_call(self, kind: StepKind, name: str, args: str, *, in_order: bool) -> StepCall:
        """Return the next call of this name. `in_order` means that each run makes it in turn."""
        key = (kind, name, "" if in_order or kind != "step" else args)
        self._counts[key] = number = self._counts.get(key, 0) + 1
        if in_order:
            self._places += 1
        return StepCall(kind, name, number, self._places if in_order else 0, args)

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Keep what earlier runs have stored."""
        self.stored = stored
        for field, raw in stored.items():
            if (record := _record(field, raw)) is not None and record.place:
                self._by_place[record.place] = field

    def find(self, call: StepCall) -> StepRecord | None:
        """Return the stored result of a step, or None if the step has not finished.

        Raises:
            StepMismatch: If earlier runs called another step at this place, or with other
                arguments.
        """
        raw = self._checked(call)
        if raw is None:
            return None
        record = _read_step(raw)
        if record.args != call.args:
            raise StepMismatch(f"{call} with other arguments", f"{call}")
        return record

    def find_wait(self, call: StepCall) -> tuple[WaitRecord | None, WaitEnd | None]:
        """Return a wait's stored beginning and end.

        Raises:
            StepMismatch: If earlier runs called another step at this place.
        """
        raw = self._checked(call)
        ended = (self.stored or {}).get(f"done:{call.field}")
        return (
            None if raw is None else read_wait(raw),
            None if ended is None else read_wait_end(ended),
        )

    def value_of(self, call: StepCall, end: WaitEnd) -> bytes | None:
        """Return the value that ended a wait, as JSON, or None if its time was up."""
        if end.value is not UNSET:
            return bytes(end.value)
        if end.sent:
            return signal_value((self.stored or {})[f"sent:{call.name}#{end.sent}"])
        return None

    def _checked(self, call: StepCall) -> bytes | None:
        stored = self.stored
        if not stored:
            return None
        raw = stored.get(call.field)
        known = self._by_place.get(call.place) if call.place else None
        if known is not None and known != call.field:
            raise StepMismatch(_label_of(known), str(call))
        record = None if raw is None else _record(call.field, raw)
        if record is not None and call.place and record.place != call.place:
            raise StepMismatch(f"{call} as call {record.place}", f"{call} as call {call.place}")
        return raw


# Reading the steps of a job for people.


class JobStep(Struct, frozen=True):
    """A step or a wait of a job."""

    kind: StepKind
    """`step`, `signal` for a wait for a signal, or `sleep`."""
    name: str
    number: int
    """Number of the call among those of its name."""
    started: datetime | None
    duration: float | None
    """Run time in seconds, or None for a wait that has not ended."""
    result: Any = None
    """The stored result, or the value of the signal, as JSON value."""
    until: datetime | None = None
    """Time when a wait ends without a signal, or None without a limit."""
    timed_out: bool = False
    """True for a wait that ended without a signal."""

    @property
    def is_waiting(self) -> bool:
        """True for a wait that has not ended."""
        return self.duration is None

    @property
    def label(self) -> str:
        """The step in words, such as `signal 'approval' (call 2)`."""
        return _label(self.kind, self.name, self.number)

    @property
    def status(self) -> str:
        """`done`, `waiting` or `timed out`."""
        if self.is_waiting:
            return "waiting"
        return "timed out" if self.timed_out else "done"

    def describe(self) -> dict[str, Any]:
        """Return the step as JSON-compatible values. Times are ISO 8601."""
        return {
            "kind": self.kind,
            "name": self.name,
            "number": self.number,
            "status": self.status,
            "started_at": iso(self.started),
            "duration": self.duration,
            "until": iso(self.until),
            "result": self.result,
        }


class StepPreview(Struct, frozen=True):
    """The steps and waits of a job without their results."""

    steps: list[JobStep]
    is_cut: bool
    """True if there are more, which are too many or too large to read."""


def steps_of(stored: Mapping[str, bytes]) -> list[JobStep]:
    """Return the steps and waits of a job in the order of their start."""
    found: list[tuple[int, int, JobStep]] = []
    for field, raw in stored.items():
        record = _record(field, raw)
        if record is None:
            continue
        kind, name, number = _parts(field)
        started = instant_from_ms(record.at)
        if isinstance(record, StepRecord):
            one = JobStep(
                kind, name, number, started, from_ms(record.took), _value(bytes(record.value))
            )
        else:
            one = _wait(stored, field, record)
        found.append((record.at, record.place, one))
    found.sort(key=lambda each: each[1])
    latest = 0
    ordered: list[tuple[int, int, JobStep]] = []
    for at, place, one in found:
        # Workers with different clocks may have run the calls of a sequence.
        latest = max(latest, at) if place else latest
        ordered.append((latest if place else at, place, one))
    ordered.sort(key=lambda each: each[:2])
    return [one for _, _, one in ordered]


def _wait(stored: Mapping[str, bytes], field: str, record: WaitRecord) -> JobStep:
    kind, name, number = _parts(field)
    started = instant_from_ms(record.at)
    until = None if record.until is None else instant_from_ms(record.until)
    end = _end(stored.get(f"done:{field}"))
    if end is None:
        return JobStep(kind, name, number, started, None, until=until)
    value = None
    if end.value is not UNSET:
        value = _value(bytes(end.value))
    elif end.sent:
        value = _value(signal_value(stored.get(f"sent:{name}#{end.sent}", b":null")))
    timed_out = kind == "signal" and end.value is UNSET and not end.sent
    duration = from_ms(max(0, end.at - record.at))
    return JobStep(kind, name, number, started, duration, value, until, timed_out)


def _end(raw: bytes | None) -> WaitEnd | None:
    try:
        return None if raw is None else read_wait_end(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):  # Not written by taskbull.
        return None


def _value(raw: bytes) -> Any:
    try:
        return payload.decode(raw)
    except ValueError:  # Not written by taskbull.
        return read_text(raw)


def _record(field: str, raw: bytes) -> StepRecord | WaitRecord | None:
    if "#" not in field:
        return None
    try:
        if field.startswith("step:"):
            return _read_step(raw)
        if field.startswith(("signal:", "sleep:")):
            return read_wait(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):  # Not written by taskbull.
        pass
    return None


def _parts(field: str) -> tuple[StepKind, str, int]:
    start, _, number = field.rpartition("#")
    kind, _, name = start.partition(":")
    known: dict[str, StepKind] = {"step": "step", "signal": "signal", "sleep": "sleep"}
    if kind == "step":
        name = _without_digest(name)
    return known[kind], name, read_number(number.encode()) or 0


def _without_digest(name: str) -> str:
    before, at, digest = name.rpartition("@")
    is_digest = bool(at) and len(digest) == DIGEST_LENGTH
    return before if is_digest else name


DIGEST_LENGTH: Final = 16
"""Number of hex digits in a digest of arguments."""


def _label(kind: str, name: str, number: int) -> str:
    what = f"{kind} '{name}'" if name else kind
    return what if number == 1 else f"{what} (call {number})"


def _label_of(field: str) -> str:
    return _label(*_parts(field))

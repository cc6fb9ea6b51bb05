"""Jobs: new ones to add, stored ones that were read, rows of lists, where functions run."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import JobOptions
from taskbull.core.states import JobState, due_ms_of_score
from taskbull.core.validation import check_text, check_type, instant_from_ms, iso
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import CorruptJob


class Ticket(Struct, frozen=True):
    """Identifies the call that tried to add a job, and the job's position in that call.

    A ticket makes adding idempotent: a job that is sent again gets the first reply, and is not
    added twice. It may be sent alone or with other jobs of the call.
    """

    producer: str
    sequence: int
    call: int
    mark: str
    place: int
    """Position in the call, counted from 1."""
    sent_ms: int | None = None
    """Time when the job was first sent, or `None` if it was never sent and so was not added."""
    flow: str = ""
    """Base of the ids of a flow's jobs. Set only for the root of a flow."""


# Cache of valid names, because tasks reuse theirs: 0.1 µs instead of 0.6.
_sound_names: set[str] = set()
_NAMES_KEPT = 1000


def _check_name(name: str) -> None:
    check_text("job name", name, most=NAME_LIMIT)
    if len(_sound_names) >= _NAMES_KEPT:
        _sound_names.clear()
    _sound_names.add(name)


class NewJob(Struct, frozen=True):
    """A job to add."""

    name: str
    """Task name."""
    data: Any = msgspec.field(default_factory=dict[str, Any])
    options: JobOptions = JobOptions()
    telemetry: str | None = None
    """Trace context of the span that adds the job."""
    ticket: Ticket | None = None
    """Ticket of an earlier failed attempt to add the job. See `EnqueueError.spec`."""

    def __post_init__(self) -> None:
        if self.name.__class__ is not str or self.name not in _sound_names:
            _check_name(self.name)
        if self.options.__class__ is not JobOptions:
            check_type("options", self.options, JobOptions, "be JobOptions")

    def __repr__(self) -> str:
        # Omit the arguments, which may be large or secret.
        return f"<NewJob {self.name}>"

    def with_ticket(self, ticket: Ticket) -> NewJob:
        """Return the job with a ticket, which makes sending it again idempotent."""
        return replace(self, ticket=ticket)

    def without_ticket(self) -> NewJob:
        """Return the job without its ticket, so that it is added even if this one already was."""
        return replace(self, ticket=None)


EMPTY_DATA: Final = b"{}"
"""Raw data of a job whose data was not read."""


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """Snapshot of a job as stored in Redis.

    Reading a job never raises. If its name or options are unreadable, `corrupt` is set, and the job
    must not run. JSON values are decoded on access. `data` and `progress` raise `CorruptJob` if
    they are not JSON.
    """

    id: str
    name: str = ""
    """Task name."""
    raw_data: bytes = EMPTY_DATA
    options: StoredOptions = StoredOptions()
    created_ms: int | None = None
    delay_ms: int = 0
    priority: int = 0
    attempts_made: int = 0
    """Number of attempts that have been used."""
    attempts_started: int = 0
    """Number of times that a worker started the job."""
    stalled_count: int = 0
    """Number of times that the job stalled."""
    previous_delay_ms: int | None = None
    """Last delay of decorrelated jitter."""
    deferred_failure: str | None = None
    """Reason why the next worker must fail the job instead of running it."""
    expiry_lifted: bool = False
    """True if the job no longer expires, because it was retried manually."""
    dedup_key: str | None = None
    scheduler_id: str | None = None
    parent_key: str | None = None
    processed_by: str | None = None
    """Worker that ran the latest attempt."""
    processed_ms: int | None = None
    finished_ms: int | None = None
    failed_reason: str | None = None
    raw_stacktrace: bytes | None = None
    raw_progress: bytes | None = None
    raw_returnvalue: bytes | None = None
    raw_parent: bytes | None = None
    attempt_over: bool = False
    """True if the latest attempt has finished, as in events that report its end."""
    corrupt: CorruptJob | None = None
    """Error that describes an unreadable name or unreadable options."""
    fresh: bool = False
    """True if the fetched job had only the fields of a new job or a new child."""

    def __repr__(self) -> str:
        # Omit the data, which may be large or secret.
        return f"<Job {self.name} {self.id}, attempts made: {self.attempts_made}>"

    @property
    def attempt(self) -> int:
        """Number of the current attempt, or of the one that just finished, counted from 1."""
        return self.attempts_made if self.attempt_over else self.attempts_made + 1

    @cached_property
    def data(self) -> Any:
        """Data of the job, decoded."""
        return self._decode("data", self.raw_data)

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of the job. Values that are not strings are returned as JSON."""
        stored = self.options.headers or {}
        return {
            name: value if isinstance(value, str) else payload.encode(value, "headers").decode()
            for name, value in stored.items()
        }

    @cached_property
    def progress(self) -> Any:
        """Last reported progress, or 0 if there was none."""
        return 0 if self.raw_progress is None else self._decode("progress", self.raw_progress)

    @cached_property
    def returnvalue(self) -> Any:
        """Result of the job, or `None` if there is none or it is not JSON, as in BullMQ."""
        try:
            return payload.decode(self.raw_returnvalue or b"null")
        except ValueError:
            return None

    @cached_property
    def stacktrace(self) -> list[str]:
        """Stored stack traces of failed attempts, oldest first."""
        try:
            return msgspec.convert(payload.decode(self.raw_stacktrace or b"[]"), list[str])
        except (ValueError, msgspec.ValidationError):
            return []

    @property
    def expires_ms(self) -> int | None:
        """Time when the job expires in ms since 1970, or `None` if it does not expire."""
        limit = self.options.expires_ms
        if limit is None or self.created_ms is None or self.expiry_lifted:
            return None
        return self.created_ms + int(self.options.delay_ms or 0) + int(limit)

    @property
    def expires(self) -> datetime | None:
        """Time when the job expires unless it has started, or `None` if it does not expire."""
        return _instant(self.expires_ms)

    @property
    def timestamp(self) -> datetime | None:
        """Time when the job was added."""
        return _instant(self.created_ms)

    @property
    def processed_on(self) -> datetime | None:
        """Time when the latest attempt started."""
        return _instant(self.processed_ms)

    @property
    def finished_on(self) -> datetime | None:
        """Time when the job completed or failed."""
        return _instant(self.finished_ms)

    def _decode(self, field: str, raw: bytes) -> Any:
        try:
            return payload.decode(raw)
        except ValueError as error:
            raise CorruptJob(self.id, field, str(error)) from error


class JobRow(Struct, frozen=True):
    """A job in a list of a queue, read whole or in part. `sizes` has the sizes of its fields."""

    queue: str
    job: Job
    """Fields that were read. Use the properties below for data, result and progress."""
    state: JobState
    attempts: int = 1
    """Maximum number of attempts, as the `Server` that read the job knows them."""
    score: float | None = None
    """Its score, if its state is stored as a sorted set."""
    sizes: dict[str, int] = {}
    """Sizes of data, result, progress, reason, options and stacktrace, in bytes."""
    gone: bool = False
    """True if only its id is left."""
    raw_options: bytes = b""
    """Its stored options, or empty if they are too large."""
    lock_seconds: float | None = None
    """Seconds until its lock expires, or None if it has no lock or its lock was not read."""
    unknown_task: tuple[datetime, datetime] | None = None
    """First and last time that a worker without its task fetched it."""
    is_held: bool = False
    """True if a worker has delayed it because it stalled before."""

    @property
    def due(self) -> datetime | None:
        """Due time, if it is delayed."""
        if self.state is not JobState.DELAYED or self.score is None:
            return None
        return instant_from_ms(due_ms_of_score(self.score))

    @property
    def data(self) -> str:
        """The start of its stored data, or empty if the data is too large."""
        raw, size = self.job.raw_data, self.sizes.get("data", 0)
        was_read = len(raw) == size or raw != EMPTY_DATA
        return _text(raw) if size and was_read else ""

    @property
    def result(self) -> str:
        """The start of its stored result."""
        return _text(self.job.raw_returnvalue or b"")

    @property
    def progress(self) -> str:
        """The start of its stored progress."""
        return _text(self.job.raw_progress or b"")

    def describe(self) -> dict[str, Any]:
        """Return a whole job as JSON-compatible values. Times are ISO 8601, durations in seconds.

        Data that is not JSON is described as text, and `corrupt` says why workers cannot read it.
        """
        job, corrupt = self.job, self.job.corrupt
        try:
            data = job.data
        except CorruptJob as error:
            data, corrupt = _text(job.raw_data), error
        try:
            progress = job.progress
        except CorruptJob:
            progress = None
        return {
            "id": job.id,
            "queue": self.queue,
            "name": job.name,
            "state": str(self.state),
            "data": data,
            "result": job.returnvalue,
            "reason": job.failed_reason,
            "progress": progress,
            "attempts": self.attempts,
            "attempts_made": job.attempts_made,
            "attempts_started": job.attempts_started,
            "stalled_count": job.stalled_count,
            "priority": job.priority,
            "delay": job.delay_ms / 1000,
            "added_at": iso(job.timestamp),
            "due_at": iso(self.due),
            "started_at": iso(job.processed_on),
            "finished_at": iso(job.finished_on),
            "worker": job.processed_by,
            "dedup": job.dedup_key,
            "scheduler": job.scheduler_id,
            "parent": job.parent_key,
            "stacktrace": job.stacktrace,
            "corrupt": None if corrupt is None else str(corrupt),
        }


class Ending(Struct, frozen=True):
    """The end of a job: its result as JSON, or its failure reason."""

    state: JobState
    raw_value: bytes | None = None
    failed_reason: str | None = None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else instant_from_ms(ms)


class ExecutionMode(StrEnum):
    """Place where a task's function runs. The value is the text shown to users."""

    LOOP = "event loop"
    """The function is an `async def` and is awaited."""
    THREAD = "thread"
    PROCESS = "process"

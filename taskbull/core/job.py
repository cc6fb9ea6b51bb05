"""A job, as it is to be written and as it was read."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import JobOptions
from taskbull.core.states import JobState
from taskbull.core.validation import check_text, check_type, instant_from_ms
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import CorruptJob

# A job, as it is to be written and as it was read.


class Ticket(Struct, frozen=True):
    """The call by which a job was to be added, and its place in it.

    Sent again under its ticket, a job gets its first answer: it is not added twice, however often
    it is sent, alone or with others of its call.
    """

    producer: str
    sequence: int
    call: int
    mark: str
    place: int
    """Counted from 1."""
    sent_ms: int | None = None
    """When it was sent for the first time, so that it may have been added; None: it was not."""
    flow: str = ""
    """Of the root of a flow: what the ids of its jobs are made from."""


# The names of tasks come up over and over: 0.1 µs instead of 0.6.
_sound_names: set[str] = set()
_NAMES_KEPT = 1000


def _check_name(name: str) -> None:
    check_text("job name", name, most=NAME_LIMIT)
    if len(_sound_names) >= _NAMES_KEPT:
        _sound_names.clear()
    _sound_names.add(name)


class NewJob(Struct, frozen=True):
    """A job to be written. `telemetry` is the context of the span that adds it."""

    name: str
    data: Any = msgspec.field(default_factory=dict[str, Any])
    options: JobOptions = JobOptions()
    telemetry: str | None = None
    ticket: Ticket | None = None
    """What a job has that could not be added once: see `EnqueueError.spec`."""

    def __post_init__(self) -> None:
        if self.name.__class__ is not str or self.name not in _sound_names:
            _check_name(self.name)
        if self.options.__class__ is not JobOptions:
            check_type("options", self.options, JobOptions, "be JobOptions")

    def __repr__(self) -> str:
        # Without the arguments, which may be large or secret.
        return f"<NewJob {self.name}>"

    def with_ticket(self, ticket: Ticket) -> NewJob:
        """Return the job with the ticket under which it is sent again."""
        return replace(self, ticket=ticket)

    def anew(self) -> NewJob:
        """Return the job without its ticket: it is added, whatever happened to this one."""
        return replace(self, ticket=None)


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """A job as it stood in Redis when it was read.

    Reading never fails as a whole: `corrupt` names the first field that could not be understood,
    and such a job must not be run. What is JSON in Redis is decoded when asked for.
    """

    id: str
    name: str = ""
    raw_data: bytes = b"{}"
    options: StoredOptions = StoredOptions()
    created_ms: int | None = None
    delay_ms: int = 0
    priority: int = 0
    attempts_made: int = 0
    attempts_started: int = 0
    stalled_count: int = 0
    previous_delay_ms: int | None = None
    """What decorrelated jitter gave the last time."""
    deferred_failure: str | None = None
    """Why the next worker must fail the job instead of running it."""
    expiry_lifted: bool = False
    """Whether it may begin at any time, because it was retried by hand."""
    dedup_key: str | None = None
    scheduler_id: str | None = None
    parent_key: str | None = None
    processed_by: str | None = None
    processed_ms: int | None = None
    finished_ms: int | None = None
    failed_reason: str | None = None
    raw_stacktrace: bytes | None = None
    raw_progress: bytes | None = None
    raw_returnvalue: bytes | None = None
    raw_parent: bytes | None = None
    attempt_over: bool = False
    """Whether its latest attempt has ended, as in events that tell of an end."""
    corrupt: CorruptJob | None = None
    fresh: bool = False
    """Whether it had the fields of a new job or of a new child when it was taken, and no others."""

    def __repr__(self) -> str:
        # Without its data, which may be large or secret.
        return f"<Job {self.name} {self.id}, attempts made: {self.attempts_made}>"

    @property
    def attempt(self) -> int:
        """The number of the attempt that runs now, or has just ended, counted from 1."""
        return self.attempts_made if self.attempt_over else self.attempts_made + 1

    @cached_property
    def data(self) -> Any:
        """The payload."""
        return self._decode("data", self.raw_data)

    @cached_property
    def progress(self) -> Any:
        """The last progress that was reported; 0 if none was."""
        return 0 if self.raw_progress is None else self._decode("progress", self.raw_progress)

    @cached_property
    def returnvalue(self) -> Any:
        """What the job returned; None before that, and for what is not JSON, as in BullMQ."""
        try:
            return payload.decode(self.raw_returnvalue or b"null")
        except ValueError:
            return None

    @cached_property
    def stacktrace(self) -> list[str]:
        """The stacks of all failed attempts, oldest first."""
        try:
            return msgspec.convert(payload.decode(self.raw_stacktrace or b"[]"), list[str])
        except (ValueError, msgspec.ValidationError):
            return []

    @property
    def expires_ms(self) -> int | None:
        """When it must have begun, in ms since 1970; None: at any time."""
        limit = self.options.expires_ms
        if limit is None or self.created_ms is None or self.expiry_lifted:
            return None
        return self.created_ms + int(self.options.delay_ms or 0) + int(limit)

    @property
    def expires(self) -> datetime | None:
        """When it must have begun; None: at any time."""
        return _instant(self.expires_ms)

    @property
    def timestamp(self) -> datetime | None:
        """When the job was added."""
        return _instant(self.created_ms)

    @property
    def processed_on(self) -> datetime | None:
        """When its latest attempt began."""
        return _instant(self.processed_ms)

    @property
    def finished_on(self) -> datetime | None:
        """When it completed or failed."""
        return _instant(self.finished_ms)

    def _decode(self, field: str, raw: bytes) -> Any:
        try:
            return payload.decode(raw)
        except ValueError as error:
            raise CorruptJob(self.id, field, str(error)) from error


class Ending(Struct, frozen=True):
    """How a job has ended: its value as JSON, or why it failed."""

    state: JobState
    raw_value: bytes | None = None
    failed_reason: str | None = None


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else instant_from_ms(ms)


# Where the function of a task is called.


class Site(StrEnum):
    """Where a function is called; its value is how that is told."""

    LOOP = "event loop"
    """Awaited: an `async def`."""
    THREAD = "thread"
    PROCESS = "process"

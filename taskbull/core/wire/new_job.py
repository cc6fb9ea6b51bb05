"""A job that is to be added, as it is written: from a `NewJob` to what a script takes.

What is written must be readable by Node, or its worker leaves the job stuck in `active`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.job import NewJob
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import SIZE_LIMIT, Dedup, JobOptions, check_job_id
from taskbull.core.states import MAX_DUE_MS, MAX_PRIORITY, JobState
from taskbull.core.validation import check_int, check_text, instant_to_ms, shown, to_ms
from taskbull.core.wire.job import OPTIONS_FIELD, decode_job
from taskbull.core.wire.options import encode_lasting, encode_options, with_telemetry
from taskbull.errors import ConfigurationError, CorruptJob

# A job that is to be added, as it is written: from a `NewJob` to what a script takes.
#
# What is written must be readable by Node, or its worker leaves the job stuck in `active`.


class ParentLink(Struct, frozen=True):
    """The parent of a child, as a script needs it; `stored` is what stands in the child's hash."""

    key: str
    id: str
    queue_key: str
    stored: bytes


class EncodedJob(Struct, frozen=True, gc=False):
    """A new job in the form in which a script takes it."""

    name: str
    data: bytes
    options: bytes
    timestamp_ms: int
    delay_ms: int
    priority: int
    lifo: bool
    job_id: str
    """Empty: the queue's counter gives the id."""
    is_plain: bool = False
    """It has nothing of its own but its data: those with the same `options` object are alike."""
    dedup: Dedup | None = None
    parent: ParentLink | None = None
    has_children: bool = False
    """It waits for its children, which are added after it."""
    telemetry: str | None = None
    """The context that stands in `options`, if one does."""
    place: int | None = None
    """Its place in the call under whose ticket it is sent again."""


# What all jobs of some options have alike: the options, as they are stored, how many bytes of data
# may stand beside them, the priority, and whether they are lifo. By identity, as in `wire.options`,
# and so the options are kept.
_forms: dict[int, tuple[JobOptions, bytes, int, int, bool]] = {}
_FORMS_KEPT = 256


def encode_job(job: NewJob, timestamp_ms: int) -> EncodedJob:
    """Return the job as it is written at `timestamp_ms`; refuse what Node could not read."""
    form = _forms.get(id(job.options))
    if form is None or job.ticket is not None or job.telemetry is not None:
        return _encode_anew(job, timestamp_ms)
    options, stored, room, priority, lifo = form
    data = payload.encode(job.data, "data")
    if len(data) > room:
        payload.check_size(len(data) + len(stored), options.size_limit)
    return EncodedJob(job.name, data, stored, timestamp_ms, 0, priority, lifo, "", True)


def encode_jobs(jobs: Sequence[NewJob], timestamp_ms: int) -> list[EncodedJob]:
    """Return jobs as `encode_job` does each of them; those of one form take 0.7 of the time."""
    form = _forms.get(id(jobs[0].options))
    if form is not None and len(jobs) > 1:
        options, stored, room, priority, lifo = form
        data = [
            job.data
            for job in jobs
            if job.options is options and job.ticket is None and job.telemetry is None
        ]
        texts = payload.encode_all(data) if len(data) == len(jobs) else None
        if texts is not None and max(map(len, texts)) <= room:
            return [
                EncodedJob(job.name, text, stored, timestamp_ms, 0, priority, lifo, "", True)
                for job, text in zip(jobs, texts, strict=True)
            ]
    return [encode_job(job, timestamp_ms) for job in jobs]


def _note_form(options: JobOptions, stored: bytes) -> bool:
    """Remember options that say nothing of a single job or moment, as a task has them."""
    if options.eta or options.delay or options.expires or options.job_id or options.dedup:
        return False
    if encode_options(options, delay_ms=0) is not stored:  # it depends on the moment, or is long
        return False
    if len(_forms) >= _FORMS_KEPT:
        _forms.clear()
    room = options.size_limit - len(stored)
    _forms[id(options)] = (options, stored, room, options.priority, options.lifo)
    return True


def _encode_anew(job: NewJob, timestamp_ms: int) -> EncodedJob:
    options = job.options
    data = payload.encode(job.data, "data")
    if options.delay is None and options.eta is None and options.expires is None:
        delay_ms, opts = 0, encode_lasting(options)
    else:
        delay_ms = _delay_ms(options, timestamp_ms)
        expires_ms = _expires_ms(options, timestamp_ms, delay_ms)
        opts = encode_options(options, delay_ms=delay_ms, expires_ms=expires_ms)
    if job.telemetry is not None:
        opts = with_telemetry(opts, job.telemetry)
    payload.check_size(len(data) + len(opts), options.size_limit)
    has_form = job.telemetry is None and _note_form(options, opts)
    return EncodedJob(
        job.name,
        data,
        opts,
        timestamp_ms,
        delay_ms,
        options.priority,
        options.lifo,
        options.job_id or "",
        has_form and job.ticket is None,
        options.dedup if isinstance(options.dedup, Dedup) else None,
        telemetry=job.telemetry,
        place=None if job.ticket is None else job.ticket.place,
    )


def _delay_ms(options: JobOptions, timestamp_ms: int) -> int:
    if options.eta is not None:
        return max(0, instant_to_ms(options.eta) - timestamp_ms)
    if options.delay is None:
        return 0
    delay_ms = to_ms(options.delay)
    if timestamp_ms + delay_ms > MAX_DUE_MS:
        raise ConfigurationError(
            f"delay must end before September 2039, where BullMQ ends, not after {options.delay} s"
        )
    return delay_ms


def _expires_ms(options: JobOptions, timestamp_ms: int, delay_ms: int) -> int | None:
    """Return how long after its delay a job may still begin; None: at any time."""
    expires = options.expires
    if expires is None:
        return None
    if isinstance(expires, datetime):
        after_ms = instant_to_ms(expires) - timestamp_ms
    else:
        after_ms = to_ms(expires)
    if after_ms <= delay_ms:
        when = "before it is due" if delay_ms else "already"
        raise ConfigurationError(
            f"expires must be later than the job's delay or eta, and than now, not "
            f"{shown(expires)}: the job would expire {when}"
        )
    return after_ms - delay_ms


# A job as it is written down outside Redis, to be added again from there.


_EMPTY: Final = Raw(b"{}")

_ID_LIMIT: Final = 10_000
"""Characters of a kept id: Node's may be longer than ours."""

_OWN: Final = (
    *("jobId", "timestamp", "delay", "priority", "de", "debounce", "tm"),
    *("parent", "repeat", "repeatJobKey", "prevMillis"),
)
"""What options say of one job and its moment: when it was due, what it belonged to."""


class JobCopy(Struct, frozen=True, kw_only=True):
    """A job as it stood in Redis, without its history: enough to add it again."""

    queue: str
    id: str
    name: str
    state: JobState = JobState.UNKNOWN
    data: Raw = _EMPTY
    options: Raw = _EMPTY
    """As they are stored."""
    priority: int = 0
    due_ms: int | None = None
    """When it is due, if it is delayed."""
    reason: str = ""
    """Why it failed."""
    masked: bool = False
    """Whether some values were replaced before it was written down."""
    unreadable: str = ""
    """What keeps it from being added again: its data or options are not JSON."""
    parent: str = ""
    """The key of its parent in a flow: what is added again does not belong to it."""


def copy_job(
    queue: str, job_id: str, fields: Mapping[bytes, bytes], state: JobState, due_ms: int | None
) -> JobCopy:
    """Return the copy of a job, from what stands in its hash."""
    job = decode_job(job_id.encode(), fields)
    raw_options = fields.get(OPTIONS_FIELD.encode(), b"{}")
    unreadable = "" if job.corrupt is None else str(job.corrupt)
    try:
        _ = job.data
    except CorruptJob as error:
        unreadable = str(error)
    return JobCopy(
        queue=queue,
        id=job_id,
        name=job.name,
        state=state,
        data=_EMPTY if unreadable else one_line(job.raw_data),
        options=_EMPTY if unreadable else one_line(raw_options),
        priority=job.priority,
        due_ms=due_ms,
        reason=job.failed_reason or "",
        unreadable=unreadable,
        parent=job.parent_key or "",
    )


def one_line(text: bytes) -> Raw:
    """Return JSON on one line: outside of its strings, which have none, a line end is a space."""
    return Raw(text.replace(b"\n", b" ").replace(b"\r", b" "))


def write_copy(copy: JobCopy) -> bytes:
    """Return a line of a file of copies."""
    return msgspec.json.encode(copy) + b"\n"


def read_copy(line: bytes) -> JobCopy:
    """Read a line of a file of copies; `ConfigurationError` if it is not one."""
    try:
        return msgspec.json.decode(line, type=JobCopy)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _read_tolerantly(line)


def _read_tolerantly(line: bytes) -> JobCopy:
    """Read a line with half a character, as JSON.stringify writes it and msgspec has none."""
    try:
        found = json.loads(line)
        raws = {part: Raw(json.dumps(found[part]).encode()) for part in ("data", "options")}
        rest = {name: value for name, value in found.items() if name not in raws}
        return replace(msgspec.convert(rest, JobCopy), **raws)
    except (ValueError, LookupError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigurationError(f"it is not the copy of a job: {error}") from None


def check_copy(copy: JobCopy) -> None:
    """Refuse a copy that is not to be added as it is; `ConfigurationError` says why."""
    if copy.masked:
        raise ConfigurationError(
            f"values of job {copy.id} are masked, so that it would not run as it did: download it "
            'with its secrets, or write them in and set "masked" to false'
        )
    encode_copy(copy, bytes(copy.data), 0, keeps_id=True)


def encode_copy(copy: JobCopy, data: bytes, now_ms: int, *, keeps_id: bool) -> EncodedJob:
    """Return the job of a copy as it is written now, with other data if they are others.

    It is due when the copy was. What concerned the first job alone is left out: its place in a flow
    or a schedule, its dedup key; and its id, unless it is kept and was not the queue's.
    """
    if copy.unreadable:
        raise ConfigurationError(f"job {copy.id} cannot be added again: {copy.unreadable}")
    check_text("job name", copy.name, most=NAME_LIMIT)
    check_int("priority", copy.priority, least=0, most=MAX_PRIORITY)
    _read(copy, "data", data)
    options = _read(copy, "options", bytes(copy.options))
    stored = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    is_run = isinstance(stored.get("repeat"), dict)  # its id is that of its schedule's run
    own_id = stored.get("jobId") if keeps_id and not is_run else None
    if own_id is not None:
        check_job_id(own_id, most=_ID_LIMIT)
    delay_ms = 0 if copy.due_ms is None else max(0, copy.due_ms - now_ms)
    kept = {name: value for name, value in stored.items() if name not in _OWN}
    said = {"jobId": own_id, "delay": delay_ms or None, "priority": copy.priority or None}
    kept |= {name: value for name, value in said.items() if value is not None}
    written = payload.encode(kept, "options")
    payload.check_size(len(data) + len(written), SIZE_LIMIT)
    return EncodedJob(
        copy.name,
        data,
        written,
        now_ms,
        delay_ms,
        copy.priority,
        stored.get("lifo") is True,
        own_id or "",
    )


def _read(copy: JobCopy, part: str, text: bytes) -> Any:
    try:
        return payload.decode(text)
    except ValueError as error:
        raise ConfigurationError(f"{part} of job {copy.id} are not JSON: {error}") from None

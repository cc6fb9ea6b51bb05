"""Encode new jobs for storage, and copy jobs to files outside Redis.

Node must be able to read every encoded job. Otherwise, its worker leaves the job stuck in `active`.
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


class ParentLink(Struct, frozen=True):
    """The parent of a child, in the form that scripts take."""

    key: str
    id: str
    queue_key: str
    stored: bytes
    """Value of the `parent` field in the child's hash."""


class EncodedJob(Struct, frozen=True, gc=False):
    """A new job in the form that scripts take."""

    name: str
    data: bytes
    options: bytes
    timestamp_ms: int
    delay_ms: int
    priority: int
    lifo: bool
    job_id: str
    """Id of the job, or "" for an id from the queue's counter."""
    is_plain: bool = False
    """True if only its name and data distinguish the job from others with the same `options`."""
    dedup: Dedup | None = None
    parent: ParentLink | None = None
    has_children: bool = False
    """True if the job waits for children, which are added after it."""
    telemetry: str | None = None
    """Trace context in `options`, if any."""
    place: int | None = None
    """Position of the job in the call of its ticket, if it is sent again."""


# The common values of jobs with the same options: the options, their encoding, the maximum size of
# the data, the priority and lifo. Keyed by identity as in `wire.options`, so each entry keeps its
# options alive.
_forms: dict[int, tuple[JobOptions, bytes, int, int, bool]] = {}
_FORMS_KEPT = 256


def encode_job(job: NewJob, timestamp_ms: int) -> EncodedJob:
    """Encode a job to be added at `timestamp_ms`.

    Raises:
        SerializationError: Node could not read the data, or the job is too large.
        ConfigurationError: The delay or the expiry is out of range.
    """
    form = _forms.get(id(job.options))
    if form is None or job.ticket is not None or job.telemetry is not None:
        return _encode_anew(job, timestamp_ms)
    options, stored, room, priority, lifo = form
    data = payload.encode(job.data, "data")
    if len(data) > room:
        payload.check_size(len(data) + len(stored), options.size_limit)
    return EncodedJob(job.name, data, stored, timestamp_ms, 0, priority, lifo, "", True)


def encode_jobs(jobs: Sequence[NewJob], timestamp_ms: int) -> list[EncodedJob]:
    """Encode jobs like `encode_job`. Jobs with the same options take 0.7 of the time."""
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
    """Cache options that do not depend on a single job or on the time. Return True if cached."""
    if options.eta or options.delay or options.expires or options.job_id or options.dedup:
        return False
    if encode_options(options, delay_ms=0) is not stored:  # time-dependent, or too long to cache
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
            f"delay must end before September 2039 (BullMQ's limit), got {options.delay} s"
        )
    return delay_ms


def _expires_ms(options: JobOptions, timestamp_ms: int, delay_ms: int) -> int | None:
    """Return the time after its delay when a job expires, or None if it does not."""
    expires = options.expires
    if expires is None:
        return None
    if isinstance(expires, datetime):
        after_ms = instant_to_ms(expires) - timestamp_ms
    else:
        after_ms = to_ms(expires)
    if after_ms <= delay_ms:
        when = "the job's delay or eta" if delay_ms else "now"
        raise ConfigurationError(
            f"expires must be later than {when}, got {shown(expires)}: the job could never run"
        )
    return after_ms - delay_ms


# Copies of jobs in files outside Redis, which can be added again.


_EMPTY: Final = Raw(b"{}")

_ID_LIMIT: Final = 10_000
"""Maximum length of a copied id. Node's ids may be longer than those taskbull accepts."""

_OWN: Final = (
    *("jobId", "timestamp", "delay", "priority", "de", "debounce", "tm"),
    *("parent", "repeat", "repeatJobKey", "prevMillis"),
)
"""Options that belong to a single job, such as its due time, flow or schedule. Not copied."""


class JobCopy(Struct, frozen=True, kw_only=True):
    """A copy of a stored job without its history, sufficient to add the job again."""

    queue: str
    id: str
    name: str
    state: JobState = JobState.UNKNOWN
    data: Raw = _EMPTY
    options: Raw = _EMPTY
    """Options as stored."""
    priority: int = 0
    due_ms: int | None = None
    """Due time of a delayed job."""
    reason: str = ""
    """Failure reason."""
    masked: bool = False
    """True if some values were masked. `check_copy` rejects such a copy."""
    unreadable: str = ""
    """Error if the data or options are not JSON. Such a copy cannot be added."""
    parent: str = ""
    """Key of the parent in a flow. The new job will not belong to it."""


def copy_job(
    queue: str, job_id: str, fields: Mapping[bytes, bytes], state: JobState, due_ms: int | None
) -> JobCopy:
    """Return a copy of a job from the fields of its hash."""
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
    """Return JSON on one line.

    JSON strings contain no raw line breaks, so those between tokens are replaced with spaces.
    """
    return Raw(text.replace(b"\n", b" ").replace(b"\r", b" "))


def write_copy(copy: JobCopy) -> bytes:
    """Encode a copy as one line of a file."""
    return msgspec.json.encode(copy) + b"\n"


def read_copy(line: bytes) -> JobCopy:
    """Decode a line written by `write_copy`.

    Raises:
        ConfigurationError: The line is not a copy of a job.
    """
    try:
        return msgspec.json.decode(line, type=JobCopy)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _read_tolerantly(line)


def _read_tolerantly(line: bytes) -> JobCopy:
    # JSON.stringify writes lone surrogates as escapes, which msgspec rejects.
    try:
        found = json.loads(line)
        raws = {part: Raw(json.dumps(found[part]).encode()) for part in ("data", "options")}
        rest = {name: value for name, value in found.items() if name not in raws}
        return replace(msgspec.convert(rest, JobCopy), **raws)
    except (ValueError, LookupError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigurationError(f"not a copy of a job: {error}") from None


def check_copy(copy: JobCopy) -> None:
    """Raise `ConfigurationError` if a copy is masked or cannot be added."""
    if copy.masked:
        raise ConfigurationError(
            f"the values of job '{copy.id}' are masked: download it with its secrets, or write "
            'them into the file and set "masked" to false'
        )
    encode_copy(copy, bytes(copy.data), 0, keeps_id=True)


def encode_copy(copy: JobCopy, data: bytes, now_ms: int, *, keeps_id: bool) -> EncodedJob:
    """Encode a copy, with the given data, as a new job to be added at `now_ms`.

    The new job has the due time of the copy. It does not belong to the original job's flow or
    schedule, and has no deduplication key. A custom id is kept if `keeps_id` is true.

    Raises:
        ConfigurationError: The copy is unreadable or has an invalid value.
        SerializationError: The job is too large.
    """
    if copy.unreadable:
        raise ConfigurationError(f"job '{copy.id}' cannot be added again: {copy.unreadable}")
    check_text("job name", copy.name, most=NAME_LIMIT)
    check_int("priority", copy.priority, least=0, most=MAX_PRIORITY)
    _read(copy, "data", data)
    options = _read(copy, "options", bytes(copy.options))
    stored = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    is_run = isinstance(stored.get("repeat"), dict)  # The id belongs to a run of a schedule.
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
        raise ConfigurationError(f"the {part} of job '{copy.id}' are not JSON: {error}") from None

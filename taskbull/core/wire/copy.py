"""A job as it is written down outside Redis, to be added again from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.checks import check_int, check_text
from taskbull.core.keys import NAME_LIMIT
from taskbull.core.options import SIZE_LIMIT, check_job_id
from taskbull.core.states import MAX_PRIORITY, JobState
from taskbull.core.wire.job import OPTIONS_FIELD, decode_job
from taskbull.core.wire.new_job import EncodedJob
from taskbull.errors import ConfigurationError, CorruptJob

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

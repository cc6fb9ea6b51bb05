"""Decode a queue's event stream, and match the stored fields of jobs against search terms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Ending
from taskbull.core.search import Terms
from taskbull.core.states import JobState
from taskbull.core.wire.numbers import read_text

Entry: TypeAlias = tuple[bytes, Sequence[bytes]]
"""A stream entry: its id, and alternating field names and values, with `event` first."""

_JOB_ID: Final = "jobId"
_VALUE: Final = "returnvalue"

_ENDS: Final = frozenset({b"completed", b"failed", b"removed"})


class QueueEvent(Struct, frozen=True):
    """An event of a queue, with BullMQ's names for events and fields."""

    id: str
    """Id in the stream: the server's clock in ms, and a counter."""
    name: str
    """Name of the event, such as `completed`."""
    job_id: str | None
    """Id of the job, if the event is about one."""
    fields: Mapping[str, str]
    """Fields as stored in the stream. Values that BullMQ writes as JSON are still JSON."""

    @property
    def details(self) -> dict[str, str]:
        """All fields except the job id."""
        return {name: value for name, value in self.fields.items() if name != _JOB_ID}

    @property
    def progress(self) -> Any:
        """Reported progress if this is a `progress` event, otherwise `None`."""
        return _decoded(self.fields.get("data")) if self.name == "progress" else None

    @property
    def returnvalue(self) -> Any:
        """Result of the job, which `completed` events carry, or `None` if there is none."""
        return _decoded(self.fields.get(_VALUE))


def decode_event(entry: Entry) -> QueueEvent:
    """Decode a stream entry."""
    entry_id, flat = entry
    texts = {read_text(name): read_text(value) for name, value in _fields(flat).items()}
    return QueueEvent(read_text(entry_id), texts.pop("event", ""), texts.get(_JOB_ID), texts)


def decode_end(entry: Entry) -> tuple[str, Ending | None] | None:
    """Return the job id and the ending if the event reports that a job finished, otherwise `None`.

    The ending is `None` for a removed job.
    """
    _, flat = entry
    if flat[1] not in _ENDS:  # The first field is `event`.
        return None
    fields = _fields(flat)
    return read_text(fields.get(b"jobId", b"")), _ending(fields)


def tells_how_it_stands(entry: Entry, job_id: str) -> bool:
    """Return True if the event reports that this job was added, finished or removed."""
    _, flat = entry
    telling = flat[1] in _ENDS or flat[1] == b"added"
    return telling and _fields(flat).get(b"jobId") == job_id.encode()


def _ending(fields: Mapping[bytes, bytes]) -> Ending | None:
    match fields[b"event"]:
        case b"completed":
            return Ending(JobState.COMPLETED, raw_value=fields.get(b"returnvalue") or b"null")
        case b"failed":
            return Ending(
                JobState.FAILED, failed_reason=read_text(fields.get(b"failedReason", b""))
            )
        case _:
            return None


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _decoded(value: str | None) -> Any:
    try:
        return None if value is None else payload.decode(value.encode())
    except ValueError:  # Neither BullMQ nor taskbull wrote this value.
        return value


# Search terms as text to find in stored job fields.


Wanted: TypeAlias = list[tuple[list[str], list[str]]]
"""Pairs of fields and texts. For each pair, one of the fields must contain one of the texts."""


def wanted(terms: Terms) -> Wanted:
    """Return the fields and texts that a script must find.

    Data paths match any occurrence of their value. Check the position with `confirmed`.
    """
    found: Wanted = [(["name"], [name]) for name in terms.names]
    found += [(["failedReason"], [error]) for error in terms.errors]
    found += [(["data"], _forms(text)) for text in terms.texts]
    for path in terms.paths:
        found += [(["data"], _forms(path.value))]
    return found


def confirmed(terms: Terms, raw: bytes | None, mask: Callable[[str], str] | None = None) -> bool:
    """Return True if a job's data matches the terms, after masking if `mask` is given.

    Values of data paths must be at their path.
    """
    text = (raw or b"").decode("utf-8", "surrogateescape")
    if mask is not None:
        text = mask(text)
        if not all(any(form in text for form in _forms(each)) for each in terms.texts):
            return False
    if not terms.paths:
        return True
    try:
        data = payload.decode(text.encode("utf-8", "surrogateescape"))
    except ValueError:
        return False
    return terms.confirmed(data)


def _forms(text: str) -> list[str]:
    """Return the text as typed, and as JSON may encode it."""
    escaped = json.dumps(text)[1:-1]
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return list(dict.fromkeys([text, plain, escaped]))

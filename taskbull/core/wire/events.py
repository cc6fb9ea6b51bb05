"""The entries of a queue's event stream as they stand in Redis: names and values in turn."""

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

# The entries of a queue's event stream as they stand in Redis: names and values in turn.


Entry: TypeAlias = tuple[bytes, Sequence[bytes]]
"""An id; then names and values of fields in turn, `event` first."""

_JOB_ID: Final = "jobId"
_VALUE: Final = "returnvalue"

_ENDS: Final = frozenset({b"completed", b"failed", b"removed"})


class QueueEvent(Struct, frozen=True):
    """Something that happened in a queue; names and fields are BullMQ's."""

    id: str
    """Place in the stream: the server's clock in ms, and a counter."""
    name: str
    job_id: str | None
    fields: Mapping[str, str]
    """As they stand in the stream: what BullMQ writes as JSON is JSON here."""

    @property
    def details(self) -> dict[str, str]:
        """Its fields but for the id of the job."""
        return {name: value for name, value in self.fields.items() if name != _JOB_ID}

    @property
    def progress(self) -> Any:
        """What a job told of its progress, of an event of that name; else None."""
        return _decoded(self.fields.get("data")) if self.name == "progress" else None

    @property
    def returnvalue(self) -> Any:
        """The result, of an event `completed`; else None."""
        return _decoded(self.fields.get(_VALUE))


def decode_event(entry: Entry) -> QueueEvent:
    """Read any event."""
    entry_id, flat = entry
    texts = {read_text(name): read_text(value) for name, value in _fields(flat).items()}
    return QueueEvent(read_text(entry_id), texts.pop("event", ""), texts.get(_JOB_ID), texts)


def decode_end(entry: Entry) -> tuple[str, Ending | None] | None:
    """Return the job that an event ends, and how; None for the many events that end no job.

    The ending is None for a job that was removed.
    """
    _, flat = entry
    if flat[1] not in _ENDS:  # the first field is `event`
        return None
    fields = _fields(flat)
    return read_text(fields.get(b"jobId", b"")), _ending(fields)


def tells_how_it_stands(entry: Entry, job_id: str) -> bool:
    """Return whether an event is about the addition or the end of a job."""
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
    except ValueError:  # not by BullMQ, nor by us
        return value


# What is looked for in the fields of jobs, as bytes that stand there.


Wanted: TypeAlias = list[tuple[list[str], list[str]]]
"""Fields and texts: one of the texts has to be in one of the fields, for each of the pairs."""


def wanted(terms: Terms) -> Wanted:
    """Return what a script has to look for; whether paths fit is to be confirmed."""
    found: Wanted = [(["name"], [name]) for name in terms.names]
    found += [(["failedReason"], [error]) for error in terms.errors]
    found += [(["data"], _forms(text)) for text in terms.texts]
    for path in terms.paths:
        found += [(["data"], _forms(path.value))]
    return found


def confirmed(terms: Terms, raw: bytes | None, mask: Callable[[str], str] | None = None) -> bool:
    """Return whether the data of a job has what is looked for, in the part that a person may see.

    Values at a place in the data have to stand there.
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
    """Return a text as typed, and in the forms in which JSON may have it."""
    escaped = json.dumps(text)[1:-1]
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return list(dict.fromkeys([text, plain, escaped]))

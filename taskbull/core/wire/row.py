"""The fields of a job that are shown of many at once, each cut to what a line holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.wire.job import decode_job
from taskbull.core.wire.numbers import Foreign, Number, read_number

DATA_FIELD: Final = "data"

_LINE: Final = 300
_NUMBER: Final = 32

LINE_FIELDS: Final[Mapping[str, int]] = {
    "name": _LINE,
    "timestamp": _NUMBER,
    "delay": _NUMBER,
    "priority": _NUMBER,
    "atm": _NUMBER,
    "ats": _NUMBER,
    "stc": _NUMBER,
    "attemptsMade": _NUMBER,
    "processedOn": _NUMBER,
    "finishedOn": _NUMBER,
    "pb": _LINE,
    "rjk": _LINE,
    "deid": _LINE,
    "parentKey": _LINE,
    "defa": _LINE,
    "failedReason": _LINE,
    "tbun": 64,
    "progress": _LINE,
    "data": _LINE,
    "returnvalue": _LINE,
    "opts": -2048,
    "stacktrace": 0,
}
"""How many bytes of each field a row has; a negative number: all of them, if there are no more."""

WHOLE_FIELDS: Final[Mapping[str, int]] = {
    **LINE_FIELDS,
    "parent": -_LINE * 4,
    "tbho": _NUMBER,
    "failedReason": 16_384,
    "progress": 16_384,
    "data": -65_536,
    "returnvalue": -65_536,
    "opts": -65_536,
    "stacktrace": -65_536,
}
"""The same for a job that is shown alone."""

ID_FIELDS: Final[Mapping[str, int]] = {}
"""Nothing but the id."""

SIZED: Final[Mapping[str, str]] = {
    "data": "data",
    "returnvalue": "result",
    "progress": "progress",
    "failedReason": "reason",
    "opts": "options",
    "stacktrace": "stacktrace",
}
"""The fields of any length, and what we call them."""

WIRE_NAMES: Final[Mapping[str, str]] = {ours: name for name, ours in SIZED.items()}
"""The same fields by what we call them."""


def flat(fields: Mapping[str, int]) -> list[Any]:
    """Return fields in the form in which scripts take them."""
    return [word for pair in fields.items() for word in pair]


class Peeked(Struct, frozen=True):
    """A job of which parts were read."""

    job: Job
    sizes: dict[str, int]
    """The bytes of its fields of any length, by their names in `SIZED`."""
    unclaimed_ms: tuple[int, int] | None = None
    """When workers first and last met it without having its task."""
    expires_ms: int | None = None
    """When it is too late to run it."""
    held_until_ms: int | None = None
    """Until when a worker has delayed it, because it had stalled before."""


def decode_row(job_id: bytes, fields: Mapping[str, int], reply: Sequence[Any]) -> Peeked:
    """Read a job of which `fields` were asked: their values, and the bytes that each has."""
    values, sizes = reply
    found = {
        name.encode(): _cut(value, most)
        for (name, most), value in zip(fields.items(), values, strict=True)
        if value
    }
    lengths = dict(zip(fields, sizes, strict=True))
    job = decode_job(job_id, found)
    return Peeked(
        job,
        {ours: lengths.get(name, 0) for name, ours in SIZED.items()},
        _unclaimed(found.get(b"tbun", b"")),
        _expiry(job, found.get(b"opts", b"")),
        read_number(found.get(b"tbho", b"")),
    )


class _Expiring(Foreign, frozen=True):
    expires: Number | None = None
    delay: Number | None = None


def _expiry(job: Job, options: bytes) -> int | None:
    try:
        found = msgspec.json.decode(options or b"{}", type=_Expiring)
    except (msgspec.MsgspecError, ValueError):
        return None
    if found.expires is None or job.created_ms is None:
        return None
    return int(job.created_ms + max(found.delay or 0, 0) + found.expires)


def _unclaimed(raw: bytes) -> tuple[int, int] | None:
    first, _, last = raw.partition(b":")
    from_ms, until_ms = read_number(first), read_number(last)
    return None if from_ms is None or until_ms is None else (from_ms, until_ms)


def _cut(value: bytes, most: int) -> bytes:
    """Return a value; one that was cut may end in the middle of a character."""
    return value.decode("utf-8", "ignore").encode() if len(value) == most else value

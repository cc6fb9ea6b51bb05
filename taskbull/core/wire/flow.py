"""Storage format of parents and children in flows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.job import Member, NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import OnFailure
from taskbull.core.wire.job import EncodedJob, ParentLink, encode_job
from taskbull.core.wire.options import with_telemetry

FLAGS: Final[dict[OnFailure, str]] = {
    "fail": "fpof",
    "ignore": "idof",
    "continue": "cpof",
    "drop": "rdof",
}
"""BullMQ's flag for each `on_failure`. "wait" has no flag, because it is BullMQ's default."""

ORDER_FIELD: Final = "tbch"
"""Field of a parent with the order of its children. See `encode_order`."""

PARENT_FIELD: Final = "parent"
"""Field of a child with its parent and its `on_failure`. See `decode_policy`."""

DROPPED_FIELD: Final = "tbdr"
"""Field with the number of children that were removed or dropped without a result."""

SPAWNED_FIELD: Final = "tbsp"
"""Field with the number of children that a job had spawned when it started to wait for them."""

Child: TypeAlias = tuple[str, str, str]
"""Name of a child, key prefix of its queue, and id."""


class ChildEncoder:
    """Encoder for children of one parent with the same `on_failure`.

    The part of the encoding that describes the parent is computed once.
    """

    def __init__(self, queue: QueueKeys, parent_id: str, on_failure: OnFailure) -> None:
        flag = FLAGS.get(on_failure)
        flags = {} if flag is None else {flag: True}
        where = queue.qualified_name
        stored = {"id": parent_id, "queueKey": where, **flags}
        self.link = ParentLink(
            queue.job(parent_id), parent_id, where, payload.encode(stored, "parent")
        )
        own = {"parent": {"id": parent_id, "queue": where}, **flags}
        self._tail = b"," + payload.encode(own, "options")[1:]

    def encode(self, job: NewJob, job_id: str, timestamp_ms: int) -> EncodedJob:
        """Return the encoded child."""
        if job.telemetry is None:
            bare = encode_job(job, timestamp_ms)
            options = bare.options[:-1] + self._tail
            return replace(bare, options=options, job_id=job_id, parent=self.link, is_plain=False)
        bare = encode_job(replace(job, telemetry=None), timestamp_ms)
        options = with_telemetry(bare.options[:-1] + self._tail, job.telemetry)
        return replace(
            bare,
            options=options,
            job_id=job_id,
            is_plain=False,
            parent=self.link,
            telemetry=job.telemetry,
        )


def encode_members(members: Sequence[Member], timestamp_ms: int) -> Iterator[EncodedJob]:
    """Yield the encoded jobs of a flow."""
    words: dict[tuple[int, OnFailure], ChildEncoder] = {}
    for member in members:
        job = member.branch.job
        if member.parent is None:
            yield replace(encode_job(job, timestamp_ms), job_id=member.id, is_plain=False)
            continue
        key = member.parent, member.on_failure
        if (said := words.get(key)) is None:
            parent = members[member.parent]
            said = ChildEncoder(parent.branch.queue, parent.id, member.on_failure)
            words[key] = said
        yield said.encode(job, member.id, timestamp_ms)


def encode_order(children: Iterable[Child]) -> str:
    """Encode the order of a parent's children for storage.

    Consecutive children with the same name and queue are one array: name, key prefix, ids. Names
    are stored because BullMQ stores results by key only, and the child may already be removed.
    """
    runs = [
        (name, base, [job_id for _, _, job_id in run])
        for (name, base), run in groupby(children, key=lambda child: child[:2])
    ]
    return payload.encode(runs, "order").decode()


_read_order = msgspec.json.Decoder(list[tuple[str, str, list[str]]]).decode


def decode_order(stored: bytes | None) -> list[Child] | None:
    """Return a parent's children in order, or `None` if no order is stored, as in Node's jobs."""
    if not stored:
        return None
    try:
        runs = _read_order(stored)
    except (ValueError, msgspec.DecodeError):
        return None
    return [(name, base, job_id) for name, base, ids in runs for job_id in ids]


_read_parent = msgspec.json.Decoder(dict[str, Any]).decode


def decode_policy(raw_parent: bytes | None) -> OnFailure | None:
    """Return a child's `on_failure`, or `None` if it has no readable parent field."""
    if not raw_parent:
        return None
    try:
        parent = _read_parent(raw_parent)
    except (ValueError, msgspec.DecodeError):
        return None
    asked: tuple[OnFailure, ...] = ("fail", "continue", "ignore", "drop")  # BullMQ's order
    for policy in asked:
        if parent.get(FLAGS[policy]) is True:
            return policy
    return "wait"

"""Parents and children as they stand in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.flow import Member
from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import OnFailure
from taskbull.core.wire.new_job import EncodedJob, ParentLink, encode_job
from taskbull.core.wire.options import with_telemetry

FLAGS: Final[dict[OnFailure, str]] = {
    "fail": "fpof",
    "ignore": "idof",
    "continue": "cpof",
    "drop": "rdof",
}
"""BullMQ's flag for what a child's failure means; "wait" has none: it is what BullMQ does."""

ORDER_FIELD: Final = "tbch"
"""Where a parent of ours holds the order of its children: see `encode_order`."""

PARENT_FIELD: Final = "parent"
"""Where a child holds what its failure means: see `decode_policy`."""

DROPPED_FIELD: Final = "tbdr"
"""How many children a parent has lost without a result: they were removed, or dropped."""

SPAWNED_FIELD: Final = "tbsp"
"""How many children a job had spawned when it began to wait for them."""

Child: TypeAlias = tuple[str, str, str]
"""The name of a child, the start of the keys of its queue, and its id."""


class ParentWords:
    """What the children of one parent say about it; made once for all with the same policy."""

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
        """Return a child as it is written."""
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
    """Return the jobs of a flow as they are written."""
    words: dict[tuple[int, OnFailure], ParentWords] = {}
    for member in members:
        job = member.branch.job
        if member.parent is None:
            yield replace(encode_job(job, timestamp_ms), job_id=member.id, is_plain=False)
            continue
        key = member.parent, member.on_failure
        if (said := words.get(key)) is None:
            parent = members[member.parent]
            said = ParentWords(parent.branch.queue, parent.id, member.on_failure)
            words[key] = said
        yield said.encode(job, member.id, timestamp_ms)


def encode_order(children: Iterable[Child]) -> str:
    """Return the order of children as a parent stores it: runs of one name and queue.

    A run is an array: name, start of the keys, ids. A child's result is told under its key alone,
    and the child itself may be gone by then.
    """
    runs = [
        (name, base, [job_id for _, _, job_id in run])
        for (name, base), run in groupby(children, key=lambda child: child[:2])
    ]
    return payload.encode(runs, "order").decode()


_read_order = msgspec.json.Decoder(list[tuple[str, str, list[str]]]).decode


def decode_order(stored: bytes | None) -> list[Child] | None:
    """Return the children of a parent in order; None where nobody has noted it, as in Node."""
    if not stored:
        return None
    try:
        runs = _read_order(stored)
    except (ValueError, msgspec.DecodeError):
        return None
    return [(name, base, job_id) for name, base, ids in runs for job_id in ids]


_read_parent = msgspec.json.Decoder(dict[str, Any]).decode


def decode_policy(raw_parent: bytes | None) -> OnFailure | None:
    """Return what a child's failure means to its parent; None where it names none."""
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

"""Looking at a flow: jobs as nodes of a tree, and where their children are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.job import decode_job
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import Call
from taskbull.scripts.inspection import PAGE_BYTES
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text, texts

GET_NODES = load("get_nodes")
SCAN_CHILDREN = load("scan_children")

_LONGEST: Final = 1000
"""Of longer lists no job's place is looked for: that takes as long as the list is."""


class Place(Struct, frozen=True):
    """Where a job of a flow is."""

    queue: QueueKeys
    job_id: str
    parent_key: str = ""

    @property
    def key(self) -> str:
        """The key of its hash."""
        return self.queue.job(self.job_id)


class Node(Struct, frozen=True):
    """What one call has read of a job."""

    state: JobState
    job: Job
    child_count: int
    removed: bool


class ChildKeys(Struct, frozen=True):
    """Some keys of a job's children, and where to go on."""

    place: int
    """0: there are no more."""
    cursor: str
    keys: list[str]


def get_nodes(places: Sequence[Place]) -> Call[list[Node]]:
    """Read jobs of one queue, or the first of them, as many as one reply holds."""
    queue = places[0].queue
    keys = (
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.active,
        queue.wait,
        queue.paused,
    )
    flat = [word for place in places for word in (place.job_id, place.parent_key)]
    args = (queue.base, PAGE_BYTES, _LONGEST, msgspec.msgpack.encode(flat))

    def read(reply: list[Any]) -> list[Node]:
        return [
            Node(
                JobState(text(state)), decode_job(place.job_id.encode(), fields), count, bool(gone)
            )
            for place, (state, fields, count, gone) in zip(places, reply, strict=False)
        ]

    return Call(GET_NODES, keys, args, read)


def scan_children(parent: Place, after: ChildKeys, count: int) -> Call[ChildKeys]:
    """List some keys of a job's children."""
    queue, job_id = parent.queue, parent.job_id
    keys = (
        queue.processed(job_id),
        queue.failed_children(job_id),
        queue.unsuccessful(job_id),
        queue.dependencies(job_id),
    )
    args = (after.place, after.cursor, count)
    return Call(
        SCAN_CHILDREN,
        keys,
        args,
        lambda reply: ChildKeys(reply[0], text(reply[1]), texts(reply[2])),
    )


_JOB_ID: Final = re.compile(r"[^:]+|[^:]*:[^:]*:[^:]*|repeat:.+", re.DOTALL)
"""What an id looks like: BullMQ allows no colons in it, or two; a scheduler's runs have more."""


def child_place(parent: Place, key: str) -> Place | None:
    """Return where the child of that key is; None if it is not the key of a job."""
    own = parent.queue
    tagged, _, job_id = key.removeprefix(f"{own.prefix}:").partition(":")
    prefix = own.prefix
    if not key.startswith(f"{prefix}:") or not _JOB_ID.fullmatch(job_id):
        start, _, job_id = key.rpartition(":")
        prefix, _, tagged = start.rpartition(":")
    if not (prefix and tagged and job_id):
        return None
    if (prefix, tagged) == (own.prefix, own.tagged):
        return Place(own, job_id, parent.key)
    try:
        return Place(_queue(prefix, tagged, own), job_id, parent.key)
    except ConfigurationError:
        return None


def _queue(prefix: str, tagged: str, beside: QueueKeys) -> QueueKeys:
    """Return the queue of that name in keys; without the hash tag that we have added to it."""
    inner = tagged[1:-1]
    if tagged == f"{{{inner}}}" and inner:
        plain = QueueKeys(inner, prefix, beside.cluster, beside.hash_tag)
        if plain.tagged == tagged:
            return plain
    return QueueKeys(tagged, prefix, beside.cluster, hash_tag=False)

"""Looking at a flow: jobs as nodes of a tree, and where their children are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.flow import ORDER_FIELD, decode_order
from taskbull.core.wire.job import decode_job
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import Call, Command
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
    name: str = ""
    """Its name, if its parent has noted that."""

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
    children: list[Place]
    """Those of which it has noted the order."""


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
        return [_node(*pair) for pair in zip(places, reply, strict=False)]

    return Call(GET_NODES, keys, args, read)


def _node(place: Place, reply: list[Any]) -> Node:
    state, flat, count, gone = reply
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    job = decode_job(place.job_id.encode(), fields)
    if gone and place.name:
        job = replace(job, name=place.name)
    ordered = decode_order(fields.get(ORDER_FIELD.encode())) or []
    places = (_place(place, base[:-1], job_id, name) for name, base, job_id in ordered)
    children = [child for child in places if child is not None]
    return Node(JobState(text(state)), job, count, bool(gone), children)


def unknown_node(place: Place) -> Node:
    """Return what is known of a job that this user may not read."""
    job = Job(id=place.job_id, name=place.name)
    return Node(JobState.UNKNOWN, job, 0, removed=True, children=[])


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
    prefix = parent.queue.prefix
    tagged, _, job_id = key.removeprefix(f"{prefix}:").partition(":")
    if key.startswith(f"{prefix}:") and _JOB_ID.fullmatch(job_id):
        return _place(parent, f"{prefix}:{tagged}", job_id)
    start, _, job_id = key.rpartition(":")
    return _place(parent, start, job_id)


def _place(parent: Place, qualified_name: str, job_id: str, name: str = "") -> Place | None:
    own = parent.queue
    queue, (prefix, _, tagged) = own, qualified_name.rpartition(":")
    if not (prefix and tagged and job_id):
        return None
    if qualified_name != own.qualified_name:
        try:
            queue = _queue(prefix, tagged, own)
        except ConfigurationError:
            return None
    return Place(queue, job_id, parent.key, name)


def _queue(prefix: str, tagged: str, beside: QueueKeys) -> QueueKeys:
    """Return the queue of that name in keys; without the hash tag that we have added to it."""
    inner = tagged[1:-1]
    if tagged == f"{{{inner}}}" and inner:
        plain = QueueKeys(inner, prefix, beside.cluster, beside.hash_tag)
        if plain.tagged == tagged:
            return plain
    return QueueKeys(tagged, prefix, beside.cluster, hash_tag=False)


def pick_pending(parent: Place, most: int) -> Command[list[Place]]:
    """Choose some children that a job waits for."""
    key = parent.queue.dependencies(parent.job_id)

    def read(reply: list[bytes]) -> list[Place]:
        held = f"{parent.key}:tb:flow"  # it stands for those to come
        found = (child_place(parent, text(child)) for child in reply if text(child) != held)
        return [place for place in found if place is not None]

    return Command(("SRANDMEMBER", key, most), key, read)

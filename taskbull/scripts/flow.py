"""Calls that add flows (trees of jobs), and the children that a running job spawns.

A large flow is cut into chunks, each small enough for one call. A flow that stays incomplete is
removed after its deadline.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.flow import Branch, Member, arrange
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.flow import (
    ORDER_FIELD,
    SPAWNED_FIELD,
    Child,
    decode_order,
    encode_members,
    encode_order,
)
from taskbull.core.wire.new_job import EncodedJob
from taskbull.core.wire.numbers import read_number
from taskbull.errors import LockLost, TaskbullError
from taskbull.scripts.add import (
    MEMO_LIFE_MS,
    Added,
    CallSequence,
    Result,
    digest,
    fields_of,
    link_of,
)
from taskbull.scripts.call import Call, Command, Steps, text
from taskbull.scripts.loader import load

# Adding flows, and removing incomplete ones.

ADD_FLOW = load("add_flow")
UNDO_FLOW = load("undo_flow")

UNDONE: Final = 50
"""Number of children of an incomplete flow that one call checks and possibly removes."""

pack = msgspec.msgpack.encode


class Waits(IntEnum):
    """The children that a job in a flow waits for."""

    FOR_NONE = 0
    FOR_THESE = 1
    """All children are in the same call."""
    FOR_MORE = 2
    """More children follow in later calls."""


class FlowNode(Struct, frozen=True):
    """A job in a flow. It always has an explicit id, because its children refer to it."""

    queue: QueueKeys
    job: EncodedJob
    waits: Waits = Waits.FOR_NONE
    order: str = ""
    """Its children in order, encoded as they are stored."""


class FlowChunk(Struct, frozen=True):
    """Jobs that are added in one call, each parent before its children."""

    nodes: Sequence[FlowNode]
    complete: Sequence[tuple[QueueKeys, str]] = ()
    """Parents from earlier chunks whose last child is in this chunk."""
    deadline_ms: int | None = None
    """Time to give up waiting for the rest of the flow, or None if nothing is missing."""
    owner: str = ""
    """Id that distinguishes a flow added in chunks from other flows with the same root."""
    token: str = ""
    """Token of the root's lock, if the root is running and adds children."""
    order: str = ""
    """Order of all children of a running root, stored with the last child."""


def add_flow(
    root: FlowNode, chunk: FlowChunk, now_ms: int, sequence: CallSequence
) -> Call[list[Added]]:
    """Add a flow, or a chunk of one, as the current call of `sequence`. Return one answer per job.

    The list is empty if Redis did nothing, because the sequence has a later call or another
    producer used its number. Raises `FlowRefused` if one of the jobs cannot be added, and
    `LockLost` if the root is running and its lock is lost.
    """
    queues = {node.queue.base: node.queue for node in chunk.nodes}
    queues |= {queue.base: queue for queue, _ in chunk.complete}
    places = {base: place for place, base in enumerate(queues, 1)}
    packed = pack(_runs(chunk.nodes, places))
    complete = pack([(places[queue.base], job_id) for queue, job_id in chunk.complete])
    data = [node.job.data for node in chunk.nodes]
    if not sequence.mark:
        sequence.mark = digest(packed, data)
    keys = (
        root.queue.private("add", sequence.producer, str(sequence.number)),
        root.queue.private("flows"),
    )
    args = (
        root.queue.job(root.job.job_id),
        now_ms,
        sequence.calls,
        sequence.mark,
        MEMO_LIFE_MS,
        "" if chunk.deadline_ms is None else chunk.deadline_ms,
        chunk.owner,
        chunk.token,
        chunk.order,
        pack(list(queues)),
        packed,
        complete,
        *data,
    )
    return Call(ADD_FLOW, keys, args, partial(_added, root, chunk.nodes))


def _runs(nodes: Sequence[FlowNode], places: Mapping[str, int]) -> list[list[Any]]:
    """Group consecutive jobs that differ only in id and data, in the form the script expects."""
    runs: list[list[Any]] = []
    last = None
    for node in nodes:
        if last is None or not _alike(node, last):
            runs.append(_run(node, places[node.queue.base]))
        runs[-1].append(node.job.job_id)
        last = node
    return runs


def _alike(node: FlowNode, other: FlowNode) -> bool:
    job, last = node.job, other.job
    return (
        job.options == last.options
        and job.name == last.name
        and job.parent == last.parent
        and (job.timestamp_ms, job.delay_ms) == (last.timestamp_ms, last.delay_ms)
        and (job.priority, job.lifo) == (last.priority, last.lifo)
        and node.queue.base == other.queue.base
        and (node.waits, node.order) == (other.waits, other.order)
    )


def _run(node: FlowNode, place: int) -> list[Any]:
    job, parent = node.job, node.job.parent
    *shared, _ = fields_of(job)  # All fields except the id.
    link = False if parent is None else link_of(parent)
    return [place, *shared, link, int(node.waits), node.order]


def _added(root: FlowNode, nodes: Sequence[FlowNode], reply: list[Any]) -> list[Added]:
    if len(reply) > 1 and reply[1] < 0:
        if reply[0] == 0:
            raise LockLost(root.queue.queue, root.job.job_id)
        refused, place = Result(reply[1]), int(reply[0])
        node = nodes[place - 1] if nodes else root
        if refused is Result.UNFINISHED:
            raise FlowUnfinished(node, text(reply[2]))
        why = "has another parent" if refused is Result.OTHER_PARENT else "has no parent any more"
        raise FlowRefused(f"job {node.job.job_id} of queue {node.queue.queue} {why}", refused)
    answers = zip(nodes, reply, strict=True) if reply else ()
    return [Added(node.job.job_id, Result(code)) for node, code in answers]


def undo_flows(
    queue: QueueKeys, now_ms: int, *, chunk: int = UNDONE, skipped: list[str] | None = None
) -> Steps[list[str]]:
    """Remove incomplete flows whose deadline has passed. Return the keys of their roots.

    Only flows with a root in this queue are removed. If a flow cannot be removed, the key of its
    root is appended to `skipped`.
    """
    call = undo_flow(queue, now_ms, chunk)
    undone: list[str] = []
    root, code = yield call
    while root:
        if code == _GONE:
            undone.append(root)
        elif code == _SKIPPED and skipped is not None:
            skipped.append(root)
        root, code = yield call
    return undone


_GONE: Final = 1
_SKIPPED: Final = -1


def undo_flow(queue: QueueKeys, now_ms: int, chunk: int = UNDONE) -> Call[tuple[str, int]]:
    """Remove a chunk of an incomplete flow whose deadline has passed. Return its root and a code.

    The root is empty if there is no such flow. The code is 1 if the flow is removed completely, 0
    if there is more to do, and -1 if the flow is skipped.
    """
    return Call(UNDO_FLOW, (queue.private("flows"),), (now_ms, chunk), _undone)


def _undone(reply: Any) -> tuple[str, int]:
    root, code = reply
    return text(root), code


class FlowRefused(TaskbullError):
    """Raised if a flow was not added because of one of its jobs."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(f"the flow was not added: {message}")
        self.result = result


class FlowUnfinished(FlowRefused):
    """Raised if a flow was not added because one of its jobs is in another, incomplete flow.

    `owner` identifies the other flow if it has the same root and can still be continued.
    """

    def __init__(self, node: FlowNode, owner: str) -> None:
        super().__init__(
            f"job {node.job.job_id} of queue {node.queue.queue} is in another flow that is still "
            "being added, or whose producer died. Try again when it is complete, or five minutes "
            "after its producer died",
            Result.UNFINISHED,
        )
        self.owner = owner


# Cutting a flow into chunks. The result must be deterministic, because chunks may be sent again.

PIECE: Final = 250
"""Maximum number of jobs per script call. The call blocks Redis for a few milliseconds."""

PIECE_BYTES: Final = 1 << 20
"""Maximum number of bytes per script call."""

_OPTIONS_BYTES: Final = 500
"""Assumed size of a job's options. Fixed, so that a flow is always cut at the same jobs."""


def cut_flow(members: Sequence[Member], timestamp_ms: int) -> list[FlowChunk]:
    """Cut a flow into chunks, each small enough for one call. Most flows fit in one chunk."""
    nodes = [
        FlowNode(member.branch.queue, job, order=_order(members, member))
        for member, job in zip(members, encode_members(members, timestamp_ms), strict=True)
    ]
    cuts = [0]
    size = 0
    for place, node in enumerate(nodes):
        own = len(node.job.data) + len(node.order) + _OPTIONS_BYTES
        if place > cuts[-1] and (place - cuts[-1] >= PIECE or size + own > PIECE_BYTES):
            cuts.append(place)
            size = 0
        size += own
    complete: list[list[tuple[QueueKeys, str]]] = [[] for _ in cuts]
    for place, member in enumerate(members):
        if not member.children:
            continue
        own_piece, last = (bisect(cuts, each) - 1 for each in (place, member.children[-1]))
        if last != own_piece:
            complete[last].append((member.branch.queue, member.id))
        waits = Waits.FOR_THESE if last == own_piece else Waits.FOR_MORE
        nodes[place] = replace(nodes[place], waits=waits)
    bounds = pairwise([*cuts, len(nodes)])
    return [
        FlowChunk(nodes[begin:end], ended)
        for (begin, end), ended in zip(bounds, complete, strict=True)
    ]


def _order(members: Sequence[Member], parent: Member) -> str:
    if not parent.children:
        return ""
    below = (members[place] for place in parent.children)
    return encode_order((one.branch.job.name, one.branch.queue.base, one.id) for one in below)


# Children that a running job spawns. They are numbered, so that a repeated call adds none twice.


class Spawned(Struct, frozen=True):
    """The result of spawning children."""

    ids: list[str]
    """Ids of the children, in order."""
    before: int
    """Number of jobs that earlier runs of the job spawned."""
    count: int
    """Number of jobs in this call, including all descendants of the children."""


def spawn(
    parent: Branch, job_id: str, so_far: int, now_ms: int, producer: str, token: str
) -> Steps[Spawned]:
    """Add the children of `parent` to a running job. Each call may be sent again.

    `so_far` is the number of jobs that the job has spawned in this run. Children that exist or have
    completed are not added again. The order of the children is stored with the last one. Children
    of a run that was interrupted before that do not count.

    Raises `LockLost` if `token` does not hold the job's lock.
    """
    queue = parent.queue
    job, processed = queue.job(job_id), queue.processed(job_id)
    words = ("HMGET", job, ORDER_FIELD, SPAWNED_FIELD)
    stored, number = yield Command(words, job, tuple)
    before = read_number(number) or 0
    first = before + so_far

    def new_id(place: int) -> str:
        return job_id if place == 0 else f"{queue.queue}-{job_id}-{first + place}"

    members = arrange(parent, new_id)
    children = [members[place] for place in members[0].children]
    keys = [child.branch.queue.job(child.id) for child in children]
    values: list[bytes | None] = yield Command(("HMGET", processed, *keys), processed, list)
    done = {place for place, value in enumerate(values, 1) if value is not None}
    order = decode_order(stored) or []
    known = set(order)
    whole = encode_order([*order, *(one for one in map(_child, children) if one not in known)])
    chunks = cut_flow(members, now_ms)
    root = chunks[0].nodes[0]
    new = [replace(chunk, token=token) for chunk in _without(chunks, members, done)]
    new[-1] = replace(new[-1], order=whole)
    for place, chunk in enumerate(new):
        if chunk.nodes or chunk.complete or chunk.order:
            yield add_flow(root, chunk, now_ms, CallSequence(producer, place, 1, producer[:16]))
    return Spawned([child.id for child in children], before, len(members) - 1)


def _child(member: Member) -> Child:
    return member.branch.job.name, member.branch.queue.base, member.id


def _without(
    chunks: Sequence[FlowChunk], members: Sequence[Member], done: set[int]
) -> list[FlowChunk]:
    """Remove the parent and all completed children, with their descendants, from the chunks."""
    gone = {0, *done}
    for place, member in enumerate(members):
        if place and member.parent in gone and member.parent != 0:
            gone.add(place)
    keys = {members[place].branch.queue.job(members[place].id) for place in gone}
    return [
        replace(
            chunk,
            nodes=[node for node in chunk.nodes if node.queue.job(node.job.job_id) not in keys],
            complete=[each for each in chunk.complete if each[0].job(each[1]) not in keys],
        )
        for chunk in chunks
    ]

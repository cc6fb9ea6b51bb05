"""Adding trees of jobs: in one call, or a large one in several."""

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

# Adding trees of jobs: in one call, or a large one in several.


ADD_FLOW = load("add_flow")
UNDO_FLOW = load("undo_flow")

UNDONE: Final = 50
"""How many children one call removes of a flow that is undone."""

pack = msgspec.msgpack.encode


class Waits(IntEnum):
    """For which children a job of a flow waits."""

    FOR_NONE = 0
    FOR_THESE = 1
    """All of them are in the same call."""
    FOR_MORE = 2
    """Others will come in later calls."""


class FlowNode(Struct, frozen=True):
    """A job of a flow; it has an id of its own, which its children know."""

    queue: QueueKeys
    job: EncodedJob
    waits: Waits = Waits.FOR_NONE
    order: str = ""
    """The keys of its children in their order, as they are stored."""


class FlowPiece(Struct, frozen=True):
    """Jobs that are added in one call, each parent before its children."""

    nodes: Sequence[FlowNode]
    complete: Sequence[tuple[QueueKeys, str]] = ()
    """Parents of former pieces whose last child is in this one."""
    deadline_ms: int | None = None
    """When to give up waiting for the rest of the flow; None: this is all of it."""
    owner: str = ""
    """Identifies a flow that is added in pieces, among others with the same root."""
    token: str = ""
    """The token of the root's lock, if the root is running and adds children."""
    order: str = ""
    """The order of all children of a running root, to be stored with the last of them."""


def add_flow(
    root: FlowNode, piece: FlowPiece, now_ms: int, sequence: CallSequence
) -> Call[list[Added]]:
    """Add a flow, or a piece of one, as the sequence's current call; it gives each job's answer.

    No answer at all: the sequence's number was used by another, and nothing was done.
    """
    queues = {node.queue.base: node.queue for node in piece.nodes}
    queues |= {queue.base: queue for queue, _ in piece.complete}
    places = {base: place for place, base in enumerate(queues, 1)}
    packed = pack(_runs(piece.nodes, places))
    complete = pack([(places[queue.base], job_id) for queue, job_id in piece.complete])
    data = [node.job.data for node in piece.nodes]
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
        "" if piece.deadline_ms is None else piece.deadline_ms,
        piece.owner,
        piece.token,
        piece.order,
        pack(list(queues)),
        packed,
        complete,
        *data,
    )
    return Call(ADD_FLOW, keys, args, partial(_added, root, piece.nodes))


def _runs(nodes: Sequence[FlowNode], places: Mapping[str, int]) -> list[list[Any]]:
    """Return jobs as the script takes them: those in a row that differ in id and data as one."""
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
    *shared, _ = fields_of(job)  # all but the id
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
    queue: QueueKeys, now_ms: int, *, piece: int = UNDONE, skipped: list[str] | None = None
) -> Steps[list[str]]:
    """Remove the flows of a queue's roots that are overdue; return the keys of the roots.

    Keys of roots whose flow cannot be removed are appended to `skipped`.
    """
    call = undo_flow(queue, now_ms, piece)
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


def undo_flow(queue: QueueKeys, now_ms: int, piece: int = UNDONE) -> Call[tuple[str, int]]:
    """Remove a piece of a flow that is overdue; the call returns its root and a code.

    An empty root: there is no such flow. The code is 1 if all of the flow is gone, 0 if there is
    more to do, -1 if the flow is skipped.
    """
    return Call(UNDO_FLOW, (queue.private("flows"),), (now_ms, piece), _undone)


def _undone(reply: Any) -> tuple[str, int]:
    root, code = reply
    return text(root), code


class FlowRefused(TaskbullError):
    """A flow was not added, because of one of its jobs."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(f"the flow was not added: {message}")
        self.result = result


class FlowUnfinished(FlowRefused):
    """A flow was not added: one of its jobs is in another flow, of which pieces are missing.

    `owner` identifies the other flow if it has the same root, and can still be continued.
    """

    def __init__(self, node: FlowNode, owner: str) -> None:
        super().__init__(
            f"job {node.job.job_id} of queue {node.queue.queue} is in another flow that is still "
            "being added, or whose producer died. Try again when it is complete, or five minutes "
            "after its producer died",
            Result.UNFINISHED,
        )
        self.owner = owner


# Cutting a flow into pieces: the same ones every time, since they may be sent again.


PIECE: Final = 250
"""Jobs per script call: Redis serves nobody else meanwhile, and that is a few milliseconds."""

PIECE_BYTES: Final = 1 << 20
"""Bytes per script call."""

_OPTIONS_BYTES: Final = 500
"""For what a job's options count. Not their real length: pieces have the same jobs every time."""


def cut_flow(members: Sequence[Member], timestamp_ms: int) -> list[FlowPiece]:
    """Return the jobs of a flow in pieces, each small enough for one call: mostly one."""
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
        FlowPiece(nodes[begin:end], ended)
        for (begin, end), ended in zip(bounds, complete, strict=True)
    ]


def _order(members: Sequence[Member], parent: Member) -> str:
    if not parent.children:
        return ""
    below = (members[place] for place in parent.children)
    return encode_order((one.branch.job.name, one.branch.queue.base, one.id) for one in below)


# Children that a running job adds: numbered, so that adding them again adds none twice.


class Spawned(Struct, frozen=True):
    """The jobs that were added."""

    ids: list[str]
    """Of the children themselves, in order."""
    before: int
    """How many had been spawned before the job ran this time."""
    count: int
    """How many jobs there are now, all below the children counted."""


def spawn(
    parent: Branch, job_id: str, so_far: int, now_ms: int, producer: str, token: str
) -> Steps[Spawned]:
    """Add the children of `parent` to a running job; each call may be sent again.

    `so_far` is how many the job has spawned in this run. Children that are there, or have been
    completed, are not added again. Their order is stored with the last of them: children of a run
    that broke off before that do not count. Raises `LockLost` if `token` does not open the job's
    lock.
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
    pieces = cut_flow(members, now_ms)
    root = pieces[0].nodes[0]
    new = [replace(piece, token=token) for piece in _without(pieces, members, done)]
    new[-1] = replace(new[-1], order=whole)
    for place, piece in enumerate(new):
        if piece.nodes or piece.complete or piece.order:
            yield add_flow(root, piece, now_ms, CallSequence(producer, place, 1, producer[:16]))
    return Spawned([child.id for child in children], before, len(members) - 1)


def _child(member: Member) -> Child:
    return member.branch.job.name, member.branch.queue.base, member.id


def _without(
    pieces: Sequence[FlowPiece], members: Sequence[Member], done: set[int]
) -> list[FlowPiece]:
    """Return the pieces without the parent, which is there, and without what is done."""
    gone = {0, *done}
    for place, member in enumerate(members):
        if place and member.parent in gone and member.parent != 0:
            gone.add(place)
    keys = {members[place].branch.queue.job(members[place].id) for place in gone}
    return [
        replace(
            piece,
            nodes=[node for node in piece.nodes if node.queue.job(node.job.job_id) not in keys],
            complete=[each for each in piece.complete if each[0].job(each[1]) not in keys],
        )
        for piece in pieces
    ]

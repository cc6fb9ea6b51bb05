"""Children that a running job adds: numbered, so that adding them again adds none twice."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.flow import Branch, Member, arrange
from taskbull.core.wire.flow import (
    ORDER_FIELD,
    SPAWNED_FIELD,
    Child,
    decode_order,
    encode_order,
)
from taskbull.core.wire.numbers import read_number
from taskbull.scripts.add import CallSequence
from taskbull.scripts.call import Command, Steps
from taskbull.scripts.flow import FlowPiece, add_flow
from taskbull.scripts.flow_pieces import cut_flow


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

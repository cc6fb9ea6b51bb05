"""Cutting a flow into pieces: the same ones every time, since they may be sent again."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from taskbull.core.flow import Member
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.flow import encode_members, encode_order
from taskbull.scripts.flow import FlowNode, FlowPiece, Waits

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

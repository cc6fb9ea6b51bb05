"""A flow on its way: in one call, or a large one in pieces, and never twice.

- A flow of up to 250 jobs and 1 MB is one call: it is there as a whole, or not at all.
- A larger one goes in pieces, level by level. A parent waits until its last child is there. Each
  piece has a call sequence of its own, so that each can be sent again for as long as Redis
  remembers what it has done.
- What a producer leaves behind that breaks off is undone by the sweep of any worker of the root's
  queue, `FLOW_LIFE_MS` after its last piece.

The ids of its jobs are made from one random word, so that a flow that is sent again has the same.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Generator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

from msgspec.structs import replace

from taskbull.core.flow import Branch, Member, arrange
from taskbull.core.job import Ticket
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.flow import encode_members, encode_order
from taskbull.errors import ConfigurationError
from taskbull.queue.add_call import Adder, Unsent, deliver
from taskbull.scripts.add import Added, CallSequence
from taskbull.scripts.call import Call, Steps
from taskbull.scripts.flow import FlowNode, FlowPiece, Waits, add_flow
from taskbull.store.slot_map import key_slot

PIECE: Final = 250
"""Jobs per script call: Redis serves nobody else meanwhile, and that is a few milliseconds."""

PIECE_BYTES: Final = 1 << 20
"""Bytes per script call."""

FLOW_LIFE_MS: Final = 300_000
"""How long the rest of a flow may take to come."""

_OPTIONS_BYTES: Final = 500
"""For what a job's options count. Not their real length: pieces have the same jobs every time."""


class Flow:
    """A tree of jobs that is to be added; checked, and ready to be sent."""

    def __init__(self, adder: Adder, root: Branch, ticket: Ticket | None) -> None:
        self._adder = adder
        self._ticket = ticket
        self.seed = (ticket is not None and ticket.flow) or uuid4().hex
        """What its ids are made from."""
        self._members = arrange(root, partial(_job_id, self.seed))
        check_slots([member.branch.queue for member in self._members])
        now_ms = int(time.time() * 1000)
        jobs = list(encode_members(self._members, now_ms))
        self.root_job = jobs[0]
        self._nodes = [
            FlowNode(member.branch.queue, job, order=_order(self._members, member))
            for member, job in zip(self._members, jobs, strict=True)
        ]
        self._pieces = _cut(self._members, self._nodes)

    def send(self) -> Generator[Steps[Any], Any, list[Added] | Unsent]:
        """Add all of it; return what became of the root."""
        if len(self._pieces) > 1:
            return (yield from self._send_pieces())
        ticket, sequences = self._ticket, self._adder.sequences
        added: list[Added] | Unsent
        if ticket is not None:
            added = yield self._piece(0, CallSequence.of(ticket), ticket.sent_ms)
            if added:
                return added
        while True:
            sequence = sequences.borrow()
            try:
                added = yield self._piece(0, sequence, None)
            except BaseException:
                sequences.give_back(sequence)
                raise
            if isinstance(added, Unsent):
                return added
            if added:
                sequences.give_back(sequence)
                return added
            sequences.renew()

    def _send_pieces(self) -> Generator[Steps[Any], Any, list[Added] | Unsent]:
        sent_ms = None if self._ticket is None else self._ticket.sent_ms
        began_ms = int(time.time() * 1000)
        first: list[Added] = []
        for number in range(len(self._pieces)):
            sequence = CallSequence(self.seed, number, 1, self.seed[:16])
            added: list[Added] | Unsent = yield self._piece(number, sequence, sent_ms)
            if isinstance(added, Unsent):
                whole = CallSequence(self.seed, 0, 1, self.seed[:16])
                return Unsent(added.error, whole, added.sent_ms or sent_ms)
            sent_ms = sent_ms or began_ms  # a part of it is there
            first = first or added
        return first

    def _piece(
        self, number: int, sequence: CallSequence, sent_ms: int | None
    ) -> Steps[list[Added] | Unsent]:
        piece, is_last = self._pieces[number], number == len(self._pieces) - 1

        def call(now_ms: int) -> Call[list[Added]]:
            deadline = None if is_last else now_ms + FLOW_LIFE_MS
            dated = replace(piece, deadline_ms=deadline)
            return add_flow(self._nodes[0], dated, now_ms, sequence)

        return deliver(call, sequence, sent_ms)


def check_slots(queues: Sequence[QueueKeys]) -> None:
    """Refuse queues of a Cluster that are not in one slot: no call could reach all of them."""
    if not any(queue.cluster for queue in queues):
        return
    first = queues[0]
    for queue in queues:
        if queue.base != first.base and key_slot(queue.base) != key_slot(first.base):
            raise ConfigurationError(
                f"queues {first.queue} and {queue.queue} of a flow are in different slots of the "
                "Cluster: give their names a common hash tag, such as "
                f"{{shop}}-{first.queue} and {{shop}}-{queue.queue}"
            )


def _job_id(seed: str, place: int) -> str:
    """Return a UUID of version 4; `uuid` itself takes three times as long to make its text."""
    drawn = blake2b(f"{seed}:{place}".encode(), digest_size=16).hexdigest()
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


def _order(members: Sequence[Member], parent: Member) -> str:
    if not parent.children:
        return ""
    below = (members[place] for place in parent.children)
    return encode_order((one.branch.job.name, one.branch.queue.base, one.id) for one in below)


def _cut(members: Sequence[Member], nodes: list[FlowNode]) -> list[FlowPiece]:
    """Return the pieces of a flow; it notes in `nodes` for what each parent waits."""
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

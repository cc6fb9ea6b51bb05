"""A flow on its way: in one call, or a large one in pieces, and never twice.

- A flow of up to 250 jobs and 1 MB is one call: it is there as a whole, or not at all.
- A larger one goes in pieces, level by level. A parent waits until its last child is there. Each
  piece has a call sequence of its own, so that each can be sent again for as long as Redis
  remembers what it has done.
- What a producer leaves behind that breaks off is undone by the sweep of any worker of the root's
  queue, `FLOW_LIFE_MS` after its last piece. Until then a producer that adds the same flow under
  the same id of its root continues it; another flow with that root is refused.

The ids of its jobs are made from one random word, so that a flow that is sent again has the same.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from hashlib import blake2b
from time import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec.structs import replace

from taskbull.core.flow import Branch, arrange
from taskbull.core.job import Ticket
from taskbull.errors import EnqueueError
from taskbull.observability.provider import current_tracer, sending
from taskbull.queue.add_call import Adder, Unsent, deliver, in_context
from taskbull.scripts.add import Added, CallSequence
from taskbull.scripts.call import Call, Stages, Steps, alone
from taskbull.scripts.flow import FlowPiece, FlowUnfinished, add_flow, undo_flows
from taskbull.scripts.flow_pieces import cut_flow
from taskbull.store.slot_map import check_slots

if TYPE_CHECKING:
    from taskbull.observability.tracing import Sending, Tracer

FLOW_LIFE_MS: Final = 300_000
"""How long the rest of a flow may take to come."""


class Flow:
    """A tree of jobs that is to be added; checked, and ready to be sent."""

    def __init__(self, adder: Adder, root: Branch, ticket: Ticket | None) -> None:
        self._adder = adder
        self._ticket = ticket
        self._tree = root
        self._arrange((ticket is not None and ticket.flow) or uuid4().hex)
        check_slots([member.branch.queue for member in self._members])

    def _arrange(self, seed: str) -> None:
        """Make the ids of all jobs from `seed`, and cut the flow into pieces."""
        self.seed = seed
        self._members = arrange(self._tree, partial(_job_id, seed))
        self._pieces = cut_flow(self._members, int(time() * 1000))
        self._root = self._pieces[0].nodes[0]
        self.root_job = self._root.job

    def send(self) -> Stages[list[Added] | Unsent]:
        """Add all of it, in a span where the app traces; return what became of the root."""
        tracer = current_tracer()
        return self._send() if tracer is None else self._send_traced(tracer)

    def _send_traced(self, tracer: Tracer) -> Stages[list[Added] | Unsent]:
        queue, jobs = self._root.queue.queue, [one.branch.job for one in self._members]
        names, contexts = [job.name for job in jobs], [job.telemetry for job in jobs]
        added: list[Added] | Unsent = []
        with (
            suppress(EnqueueError),
            sending(tracer, queue, names, contexts, flow=names[0]) as span,
        ):
            self._pieces = [_in_span(piece, span) for piece in self._pieces]
            added = yield from self._send()
            if isinstance(added, Unsent):
                raise EnqueueError(str(added.error), ())  # for the span
            span.sent([self._root.job.job_id])
        return added

    def _send(self) -> Stages[list[Added] | Unsent]:
        """Add all of it; continue or undo what a producer has left behind that broke off."""
        tries = 3  # one to continue a flow, one if another process undoes it
        while True:
            tries -= 1
            try:
                return (yield from self._send_all())
            except FlowUnfinished as unfinished:
                seed, _, form = unfinished.owner.partition(":")
                if not tries:
                    raise
                if form and form == self._form() and seed != self.seed:
                    self._arrange(seed)
                    continue
                now_ms = int(time() * 1000)
                undone: list[str] = yield from alone(undo_flows(self._root.queue, now_ms))
                if self._root.queue.job(self._root.job.job_id) not in undone:
                    raise
                self._arrange(uuid4().hex)  # Redis remembers the pieces of the former one

    def _form(self) -> str:
        """Return a digest that is the same for a flow of the same jobs, whatever its seed."""
        if len(self._pieces) == 1:
            return ""
        own = blake2b(digest_size=16)
        for piece in self._pieces:
            own.update(b"%d;" % len(piece.nodes))
            for node in piece.nodes:
                own.update(b"%d;" % len(node.job.data))
                own.update(node.job.data)
        for member in self._members:
            job, queue = member.branch.job, member.branch.queue
            words = (queue.base, job.name, job.options.job_id, member.parent, member.on_failure)
            own.update(repr(words).encode())
        return own.hexdigest()

    def _send_all(self) -> Stages[list[Added] | Unsent]:
        if len(self._pieces) > 1:
            return (yield from self._send_pieces())
        ticket, sequences = self._ticket, self._adder.sequences
        added: list[Added] | Unsent
        if ticket is not None:
            added = yield from alone(self._piece(0, CallSequence.of(ticket), ticket.sent_ms))
            if added:
                return added
        while True:
            sequence = sequences.borrow()
            try:
                added = yield from alone(self._piece(0, sequence, None))
            except BaseException:
                sequences.give_back(sequence)
                raise
            if isinstance(added, Unsent):
                return added
            if added:
                sequences.give_back(sequence)
                return added
            sequences.renew()

    def _send_pieces(self) -> Stages[list[Added] | Unsent]:
        sent_ms = None if self._ticket is None else self._ticket.sent_ms
        began_ms = int(time() * 1000)
        first: list[Added] = []
        owner = f"{self.seed}:{self._form()}"
        for number in range(len(self._pieces)):
            sequence = CallSequence(self.seed, number, 1, self.seed[:16])
            added = yield from alone(self._piece(number, sequence, sent_ms, owner))
            if isinstance(added, Unsent):
                whole = CallSequence(self.seed, 0, 1, self.seed[:16])
                return Unsent(added.error, whole, added.sent_ms or sent_ms)
            sent_ms = sent_ms or began_ms  # a part of it is there
            first = first or added
        return first

    def _piece(
        self, number: int, sequence: CallSequence, sent_ms: int | None, owner: str = ""
    ) -> Steps[list[Added] | Unsent]:
        piece, is_last = self._pieces[number], number == len(self._pieces) - 1

        def call(now_ms: int) -> Call[list[Added]]:
            deadline = None if is_last else now_ms + FLOW_LIFE_MS
            dated = replace(piece, deadline_ms=deadline, owner=owner)
            return add_flow(self._root, dated, now_ms, sequence)

        return deliver(call, sequence, sent_ms)


def _in_span(piece: FlowPiece, span: Sending) -> FlowPiece:
    """Return the jobs of a piece with the context of the span that adds them."""
    nodes = [
        replace(node, job=in_context(node.job, span.telemetry(node.job.telemetry)))
        for node in piece.nodes
    ]
    return replace(piece, nodes=nodes)


def _job_id(seed: str, place: int) -> str:
    """Return a UUID of version 4; `uuid` itself takes three times as long to make its text."""
    drawn = blake2b(f"{seed}:{place}".encode(), digest_size=16).hexdigest()
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"

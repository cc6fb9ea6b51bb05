"""Add jobs to one queue in single calls that Redis never executes twice."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Ticket
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.new_job import EncodedJob
from taskbull.core.wire.options import with_telemetry
from taskbull.errors import (
    ConnectionLost,
    EnqueueError,
    MaybeExecuted,
    OutOfTurn,
    ServerRefused,
    TaskbullError,
)
from taskbull.observability.provider import current_tracer, sending
from taskbull.scripts.add import MEMO_LIFE_MS, Added, CallSequence, add_jobs
from taskbull.scripts.call import Call, Steps

if TYPE_CHECKING:
    from taskbull.observability.tracing import Tracer


# Numbering of add calls. Redis uses the numbers to recognize a call that is sent again.
#
# A producer has one sequence per call in flight.


class _Producer:
    """The sequences of one process. It is replaced as a whole, so threads need no lock."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.id = uuid4().hex
        self.free: deque[CallSequence] = deque()
        self.numbers = count()

    def new_sequence(self) -> CallSequence:
        return CallSequence(self.id, next(self.numbers))


class CallSequences:
    """Lends sequences to any thread, before and after a fork.

    The producer's id is generated when the first sequence is borrowed. An id generated at import
    would be the same in all processes started from one image.
    """

    def __init__(self) -> None:
        self._producer: _Producer | None = None

    def borrow(self) -> CallSequence:
        """Return a sequence for one call, with the next call number."""
        producer = self._own()
        try:
            sequence = producer.free.pop()
        except IndexError:
            sequence = producer.new_sequence()
        sequence.begin_call()
        return sequence

    def give_back(self, sequence: CallSequence) -> None:
        """Take back a sequence whose call has finished."""
        producer = self._producer
        if producer is not None and producer.id == sequence.producer:
            producer.free.append(sequence)

    def reserve(self) -> CallSequence:
        """Return a sequence for a call that is made later. It is not lent again."""
        sequence = self._own().new_sequence()
        sequence.begin_call()
        sequence.mark = uuid4().hex[:16]
        return sequence

    def renew(self) -> None:
        """Use a new producer id, because a clone of this process uses the current one."""
        self._producer = None

    def _own(self) -> _Producer:
        producer = self._producer
        if producer is None or producer.process != os.getpid():
            producer = self._producer = _Producer()
        return producer


# Calls


SEND_AGAIN_MS = MEMO_LIFE_MS - 300_000
"""Milliseconds within which a call may be sent again: five minutes less than Redis remembers it."""


class Unsent(Struct, frozen=True):
    """Result of a call that did not get through. It can be sent again with `sequence`."""

    error: TaskbullError
    sequence: CallSequence
    sent_ms: int | None
    """Time of the first send if the call may have been executed, otherwise None."""


class Adder:
    """Adds jobs to one queue. It owns the sequences for that queue."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self.sequences = CallSequences()

    def add(
        self,
        jobs: Sequence[EncodedJob],
        ticket: Ticket | None = None,
        sequence: CallSequence | None = None,
        after: CallSequence | None = None,
    ) -> Steps[list[Added] | Unsent]:
        """Add jobs in one call, in a span if the app traces.

        Args:
            jobs: The jobs to add.
            ticket: The ticket that the jobs already have, if any.
            sequence: A sequence that was already borrowed for the jobs.
            after: Sequence of a call in flight whose jobs must be added before these.
        """
        tracer = None if sequence else current_tracer()
        if tracer is None:
            return self._add(jobs, ticket, sequence, after)
        return self._add_traced(jobs, ticket, tracer)

    def _add_traced(
        self, jobs: Sequence[EncodedJob], ticket: Ticket | None, tracer: Tracer
    ) -> Steps[list[Added] | Unsent]:
        names, contexts = [job.name for job in jobs], [job.telemetry for job in jobs]
        added: list[Added] | Unsent = []
        with suppress(EnqueueError), sending(tracer, self.keys.queue, names, contexts) as span:
            traced = [in_context(job, span.telemetry(job.telemetry)) for job in jobs]
            added = yield from self._add(traced, ticket)
            if isinstance(added, Unsent):
                raise EnqueueError(str(added.error), ())  # Recorded in the span.
            span.sent([one.id for one in added])
        return added

    def _add(
        self,
        jobs: Sequence[EncodedJob],
        ticket: Ticket | None,
        sequence: CallSequence | None = None,
        after: CallSequence | None = None,
    ) -> Steps[list[Added] | Unsent]:
        if ticket is not None:
            sequence = CallSequence.of(ticket)
            if added := (yield from self.send(jobs, sequence, ticket.sent_ms)):
                return added
            sequence = None
        while True:
            sequence = sequence or self.sequences.borrow()
            try:
                added = yield from self.send(jobs, sequence, None, after)
            except BaseException:
                self.sequences.give_back(sequence)
                raise
            if isinstance(added, Unsent):
                return added  # Its sequence is kept for sending the call again.
            if added:
                self.sequences.give_back(sequence)
                return added
            self.sequences.renew()
            sequence = None

    def send(
        self,
        jobs: Sequence[EncodedJob],
        sequence: CallSequence,
        sent_ms: int | None,
        after: CallSequence | None = None,
    ) -> Steps[list[Added] | Unsent]:
        """Send one call until it is answered.

        An empty result means that a clone of this process has used the sequence.
        """
        call = partial(add_jobs, self.keys, jobs, sequence=sequence)
        return deliver(call, sequence, sent_ms, partial(call, after=after))


AddCall: TypeAlias = Callable[[int], Call[list[Added]]]
"""Builds a call that adds jobs, for a time in milliseconds."""


def deliver(
    call: AddCall, sequence: CallSequence, sent_ms: int | None, first: AddCall | None = None
) -> Steps[list[Added] | Unsent]:
    """Send one call of a sequence until it is answered.

    `first` builds the call for the first try. The preceding call has been answered before a second
    try.
    """
    now_ms = int(time.time() * 1000)
    if sent_ms is not None and now_ms - sent_ms > SEND_AGAIN_MS:
        return Unsent(TaskbullError(_TOO_LATE), sequence, sent_ms)
    lost: MaybeExecuted | None = None
    make = first or call
    while True:
        try:
            request = make(now_ms)
            make = call
            added: list[Added] = yield request
        except OutOfTurn:  # The preceding call has finished by now.
            continue
        except MaybeExecuted as error:  # Sending it again returns the first reply.
            lost, sent_ms = error, sent_ms or now_ms
        except (ConnectionLost, ServerRefused) as error:
            return Unsent(lost or error, sequence, sent_ms)
        else:
            if not added and sent_ms is not None:
                return Unsent(TaskbullError(_OVERTAKEN), sequence, sent_ms)
            return added


_TOO_LATE = (
    f"they were sent more than {SEND_AGAIN_MS // 60_000} minutes ago, and Redis no longer knows "
    "that call. Check whether they exist; spec.without_ticket() adds one in any case"
)
_OVERTAKEN = (
    "a clone of this process has used the number of that call meanwhile. Look whether they are "
    "there; spec.without_ticket() adds one in any case"
)


def in_context(job: EncodedJob, telemetry: str | None) -> EncodedJob:
    """Return the job with another span context, or unchanged if there is none."""
    if telemetry is None or telemetry == job.telemetry:
        return job
    options = with_telemetry(job.options, telemetry, instead_of=job.telemetry)
    return replace(job, options=options, telemetry=telemetry)

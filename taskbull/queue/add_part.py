"""The parts of a bulk: jobs that go to their queue in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import NewJob, Ticket
from taskbull.core.wire.new_job import EncodedJob
from taskbull.observability.provider import current_tracer
from taskbull.queue.add_call import Unsent
from taskbull.queue.add_flow import Flow
from taskbull.queue.handle import QueueClient, ReadResult
from taskbull.scripts.add import Added, CallSequence
from taskbull.scripts.call import Finish, Stages, Start, UnderWay

BULK_BYTES: Final = 1 << 20
"""Bytes per script call: Redis takes 2 to 3 ms for them."""


class Sendable(Protocol):
    """A job in the form in which the caller knows it."""

    def with_ticket(self, ticket: Ticket) -> Self:
        """Return the job with the ticket under which it is sent again."""
        ...


class Entry(Struct, frozen=True, eq=False):
    """One job of a bulk: where it goes, what it is, and how its result is read."""

    client: QueueClient
    job: NewJob
    known_as: Sendable
    read: ReadResult
    flow: Flow | None = None
    """The job with all those that it waits for, if there are any."""


class Part:
    """Jobs that go to a queue in one call."""

    def __init__(self, client: QueueClient, ticket: Ticket | None) -> None:
        self.client = client
        self.ticket = ticket
        self.places: list[int] = []
        self.entries: list[Entry] = []
        self.jobs: list[EncodedJob] = []
        self.size = 0
        self.sequence: CallSequence | None = None
        """That of its call, if others may go behind it."""
        self._begun: UnderWay | None = None

    def has_room(self, job: EncodedJob, size: int) -> bool:
        """Return whether a job of that size may go with the others."""
        if self.size + size > BULK_BYTES:
            return False
        # Each place of a ticket once: the second time is another call, which gets the answer.
        return job.place is None or all(other.place != job.place for other in self.jobs)

    def put(
        self,
        places: Iterable[int],
        entries: Iterable[Entry],
        jobs: Iterable[EncodedJob],
        size: int,
    ) -> None:
        """Take jobs of that size together, which have those places in the bulk."""
        self.places.extend(places)
        self.entries.extend(entries)
        self.jobs.extend(jobs)
        self.size += size

    def may_follow(self, former: Part) -> bool:
        """Return whether it may be sent while another is under way.

        What has a ticket, or is traced, goes by itself.
        """
        return self.ticket is None and former.sequence is not None and former.is_smooth

    @property
    def is_smooth(self) -> bool:
        """Whether nothing has gone wrong with it so far."""
        return self._begun is not None and self._begun.is_smooth

    def begin(self, former: Part | None) -> Stages[None]:
        """Send the jobs: behind those of a part that is under way, and after them in the queue."""
        adder, after = self.client.adder, None
        if self.ticket is None and current_tracer() is None:
            self.sequence = adder.sequences.borrow()
            if former is not None and former.client is self.client:
                after = former.sequence
        self._begun = yield Start(adder.add(self.jobs, self.ticket, self.sequence, after))

    def end(self, *, given_up: bool = False) -> Stages[list[Added] | Unsent]:
        """Return an answer for each of the jobs."""
        added: list[Added] | Unsent = yield Finish(given_up)
        return added

    def ticket_of(self, number: int, sequence: CallSequence, sent_ms: int | None) -> Ticket:
        """Return the ticket under which one of them is sent again."""
        return sequence.ticket(self.jobs[number - 1].place or number, sent_ms)


class FlowPart(Part):
    """A flow, which goes by itself; the caller knows its root."""

    def __init__(self, place: int, entry: Entry, flow: Flow) -> None:
        super().__init__(entry.client, entry.job.ticket)
        self.put((place,), (entry,), (flow.root_job,), 0)
        self._flow = flow
        self._added: list[Added] | Unsent = []

    def may_follow(self, former: Part) -> bool:
        return False

    def begin(self, former: Part | None) -> Stages[None]:
        self._added = yield from self._flow.send()

    def end(self, *, given_up: bool = False) -> Stages[list[Added] | Unsent]:
        yield from ()
        return self._added if isinstance(self._added, Unsent) else self._added[:1]

    def ticket_of(self, number: int, sequence: CallSequence, sent_ms: int | None) -> Ticket:
        return replace(super().ticket_of(number, sequence, sent_ms), flow=self._flow.seed)


class Left:
    """The jobs that a bulk could not add, each with the ticket under which it is sent again."""

    def __init__(self) -> None:
        self.jobs: list[Sendable] = []
        self.unsure = 0
        """How many of them may have been added after all."""

    def put(self, part: Part, sequence: CallSequence, sent_ms: int | None) -> None:
        if part.ticket is not None and sent_ms is None:
            sent_ms = part.ticket.sent_ms
            self.jobs += [entry.known_as for entry in part.entries]
        else:
            for number, entry in enumerate(part.entries, 1):
                ticket = part.ticket_of(number, sequence, sent_ms)
                self.jobs.append(entry.known_as.with_ticket(ticket))
        if sent_ms is not None:
            self.unsure += len(part.entries)

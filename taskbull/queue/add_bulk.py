"""Many jobs on their way to their queues, part by part: as few in memory as that needs."""

from __future__ import annotations

import inspect
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import count, pairwise
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.checks import refusal
from taskbull.core.job import NewJob, Ticket
from taskbull.core.wire.job import EncodedJob, encode_job
from taskbull.errors import EnqueueError
from taskbull.queue.add_call import Unsent
from taskbull.queue.add_flow import Flow
from taskbull.queue.handle import JobHandle, QueueClient, ReadResult, handle
from taskbull.scripts.add import Added, CallSequence
from taskbull.scripts.call import Stages, Steps

T = TypeVar("T")

Progress: TypeAlias = Callable[[int], object]
"""Is told, after each part, how many jobs of the bulk were added so far."""

BULK = 250
"""Jobs per script call: Redis serves nobody else meanwhile, and that is a millisecond or two."""

BULK_BYTES = 1 << 20
"""Bytes per script call: Redis takes 2 to 3 ms for them."""

_OPEN_JOBS = 25_000
_OPEN_BYTES = 16 * BULK_BYTES
"""How much may wait for its part to be full, where the jobs are for many queues."""


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


class _Part:
    """Jobs that go to a queue in one call."""

    def __init__(self, client: QueueClient, ticket: Ticket | None) -> None:
        self.client = client
        self.ticket = ticket
        self.entries: list[tuple[int, Entry]] = []
        self.jobs: list[EncodedJob] = []
        self.size = 0

    def has_room(self, job: EncodedJob, size: int) -> bool:
        if self.size + size > BULK_BYTES:
            return False
        # Each place of a ticket once: the second time is another call, which gets the answer.
        return job.place is None or all(other.place != job.place for other in self.jobs)

    def put(self, place: int, entry: Entry, job: EncodedJob, size: int) -> None:
        self.entries.append((place, entry))
        self.jobs.append(job)
        self.size += size

    def send(self) -> Generator[Steps[Any], Any, list[Added] | Unsent]:
        """Add the jobs; return an answer for each."""
        added: list[Added] | Unsent = yield self.client.adder.add(self.jobs, self.ticket)
        return added

    def ticket_of(self, number: int, sequence: CallSequence, sent_ms: int | None) -> Ticket:
        """Return the ticket under which one of them is sent again."""
        return sequence.ticket(self.jobs[number - 1].place or number, sent_ms)


class _FlowPart(_Part):
    """A flow, which goes by itself; the caller knows its root."""

    def __init__(self, place: int, entry: Entry, flow: Flow) -> None:
        super().__init__(entry.client, entry.job.ticket)
        self.put(place, entry, flow.root_job, 0)
        self._flow = flow

    def send(self) -> Generator[Steps[Any], Any, list[Added] | Unsent]:
        added = yield from self._flow.send()
        return added if isinstance(added, Unsent) else added[:1]

    def ticket_of(self, number: int, sequence: CallSequence, sent_ms: int | None) -> Ticket:
        return replace(super().ticket_of(number, sequence, sent_ms), flow=self._flow.seed)


class _Left:
    """The jobs that a bulk could not add, each with the ticket under which it is sent again."""

    def __init__(self) -> None:
        self.jobs: list[Sendable] = []
        self.unsure = 0
        """How many of them may have been added after all."""

    def put(self, part: _Part, sequence: CallSequence, sent_ms: int | None) -> None:
        if part.ticket is not None and sent_ms is None:
            sent_ms = part.ticket.sent_ms
            self.jobs += [entry.known_as for _, entry in part.entries]
        else:
            for number, (_, entry) in enumerate(part.entries, 1):
                ticket = part.ticket_of(number, sequence, sent_ms)
                self.jobs.append(entry.known_as.with_ticket(ticket))
        if sent_ms is not None:
            self.unsure += len(part.entries)


class Bulk:
    """Adds jobs, and knows how far it has come.

    Those of a list, or another collection, are all checked before the first is sent; others are
    checked and sent as they come. `entry` is given each with its place.
    """

    def __init__(
        self,
        jobs: Iterable[Any],
        entry: Callable[[int, Any], Entry],
        progress: Progress | None = None,
    ) -> None:
        check_bulk(jobs, progress)
        self._entries = map(entry, count(), jobs)
        self._total = len(jobs) if isinstance(jobs, Collection) else None
        self._progress = progress
        self._handles: list[JobHandle[Any]] = []
        self._places = array("Q")
        self._open: dict[object, _Part] = {}
        self._open_jobs = 0
        self._open_bytes = 0
        self._closed = False

    def run(self) -> Stages[list[JobHandle[Any]]]:
        """Add all; give handles in order. Raises `EnqueueError` when it has to break off."""
        jobs = self._encoded()
        if self._total is not None:
            jobs = _drained(deque(jobs))
        parts = self._parts(jobs)
        try:
            for part in parts:
                added = yield from part.send()
                if isinstance(added, Unsent):
                    raise self._unsent(part, added, parts) from added.error
                self._take_in(part, added)
        except EnqueueError:
            raise
        except Exception as error:
            if not self._handles:
                raise
            why = f"the jobs, or progress, raised {type(error).__name__}: {error}"
            raise self._error(_Left(), parts, "", why) from error
        return self._in_order()

    def _encoded(self) -> Iterator[tuple[Entry, EncodedJob]]:
        for entry in self._entries:
            flow = entry.flow
            job = encode_job(entry.job, int(time.time() * 1000)) if flow is None else flow.root_job
            yield entry, job

    def _parts(self, jobs: Iterator[tuple[Entry, EncodedJob]]) -> Iterator[_Part]:
        """Yield parts as they are full, then the rest; when closed, no more jobs are asked for."""
        for place, (entry, job) in enumerate(jobs):
            if entry.flow is None:
                yield from self._put(place, entry, job)
            else:
                yield _FlowPart(place, entry, entry.flow)
            if self._closed:
                break
            if self._open_jobs > _OPEN_JOBS or self._open_bytes > _OPEN_BYTES:
                yield self._taken_out(max(self._open, key=lambda each: self._open[each].size))
        while self._open:
            yield self._taken_out(next(iter(self._open)))

    def _put(self, place: int, entry: Entry, job: EncodedJob) -> Iterator[_Part]:
        """Put a job into its part; give that one when it is full, with or without the job."""
        ticket = entry.job.ticket
        key: object = id(entry.client)
        if ticket is not None:
            key = (key, replace(ticket, place=0))
        size = len(job.data) + len(job.options)
        part = self._open.get(key)
        if part is not None and not part.has_room(job, size):
            yield self._taken_out(key)
            part = None
        if part is None:
            part = self._open[key] = _Part(entry.client, ticket)
        part.put(place, entry, job, size)
        self._open_jobs += 1
        self._open_bytes += size
        if len(part.jobs) >= BULK:
            yield self._taken_out(key)

    def _taken_out(self, key: object) -> _Part:
        part = self._open.pop(key)
        self._open_jobs -= len(part.jobs)
        self._open_bytes -= part.size
        return part

    def _take_in(self, part: _Part, added: list[Added]) -> None:
        for (place, entry), one in zip(part.entries, added, strict=True):
            self._handles.append(handle(part.client, entry.job.name, one, entry.read))
            self._places.append(place)
        if self._progress is not None:
            self._progress(len(self._handles))

    def _unsent(self, part: _Part, unsent: Unsent, parts: Iterator[_Part]) -> EnqueueError:
        left = _Left()
        left.put(part, unsent.sequence, unsent.sent_ms)
        where = f"Queue {part.client.keys.queue}: "
        return self._error(left, parts, where, str(unsent.error))

    def _error(self, left: _Left, parts: Iterator[_Part], where: str, why: str) -> EnqueueError:
        """Make the error of a bulk that is broken off: with `left`, and all that was not sent."""
        self._closed = self._total is None  # what was not asked for stays with the caller
        for part in [*parts, *self._open.values()]:
            left.put(part, part.client.adder.sequences.reserve(), None)
        missing = len(left.jobs) - left.unsure
        if self._total is None:
            told = f"{len(self._handles)} jobs were added, {missing} that came next were not"
            if left.unsure:
                told += f", and for {left.unsure} more it is not known"
        else:
            told = describe_missing(missing, left.unsure, self._total)
        return EnqueueError(
            f"{where}{told}: {why}",
            left.jobs,
            may_be_added=left.unsure > 0,
            added=self._in_order(),
        )

    def _in_order(self) -> list[JobHandle[Any]]:
        places, handles = self._places, self._handles
        if all(one < other for one, other in pairwise(places)):
            return handles
        return [
            one for _, one in sorted(zip(places, handles, strict=True), key=lambda pair: pair[0])
        ]


def describe_missing(missing: int, unsure: int, total: int) -> str:
    """Say how many of some jobs were not added, and of how many nobody knows."""
    if total == 1:
        return "it is not known whether the job was added" if unsure else "the job was not added"
    if not missing:
        return f"for {unsure} of {total} jobs it is not known whether they were added"
    told = f"{missing} of {total} jobs {'was' if missing == 1 else 'were'} not added"
    return f"{told}, and for {unsure} more it is not known" if unsure else told


def check_bulk(jobs: object, progress: object) -> None:
    """Refuse what is not a bulk, and a progress that cannot be told."""
    if not isinstance(jobs, Iterable):
        raise refusal("jobs", "be a list or another iterable of jobs", jobs)
    if progress is not None and (not callable(progress) or inspect.iscoroutinefunction(progress)):
        raise refusal("progress", "be a plain function that takes a number", progress)


def _drained(jobs: deque[T]) -> Iterator[T]:
    """Yield jobs without keeping them."""
    while jobs:
        yield jobs.popleft()

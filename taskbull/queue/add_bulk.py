"""Add jobs: single jobs, bulks and flows. No job is added twice.

A flow of up to 250 jobs and 1 MB is one call and is added completely or not at all. See `Flow` for
larger ones.
"""

from __future__ import annotations

import inspect
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import count, islice
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Branch, NewJob, Ticket, arrange
from taskbull.core.validation import refusal
from taskbull.core.wire.job import EncodedJob, encode_job, encode_jobs
from taskbull.errors import EnqueueError, TaskbullError
from taskbull.observability.provider import current_tracer, sending
from taskbull.queue.handle import (
    Adder,
    JobHandle,
    QueueClient,
    ReadResult,
    Unsent,
    deliver,
    handle,
    in_context,
)
from taskbull.queue.stores import stripped
from taskbull.scripts.add import (
    Added,
    CallSequence,
    FlowChunk,
    FlowRefused,
    FlowUnfinished,
    Result,
    add_flow,
    add_jobs,
    cut_flow,
    undo_flows,
)
from taskbull.scripts.call import AnySteps, Call, Finish, Pending, Separate, Start, Steps
from taskbull.store.cluster import check_slots
from taskbull.store.protocol import Deadline

if TYPE_CHECKING:
    from taskbull.observability.tracing import Sending, Tracer


# Flows
#
# - A larger flow is sent in chunks, level by level. A parent waits until its last child is added.
#   Each chunk has its own call sequence, so it can be sent again while Redis remembers the call.
# - If a producer stops halfway, any worker of the root's queue removes the partial flow,
#   `FLOW_LIFE_MS` after its last chunk. Until then, a producer that adds the same flow with the
#   same root id continues it. A different flow with that root is rejected.
# - All job ids are derived from one random seed, so a flow that is sent again has the same ids.


FLOW_LIFE_MS: Final = 300_000
"""Milliseconds until the next chunk of a flow must arrive."""


class Flow:
    """A validated tree of jobs, ready to be sent.

    A flow of up to 250 jobs and 1 MB is one call. A larger one is sent in chunks, and its children
    may run before all chunks have arrived.
    """

    def __init__(self, adder: Adder, root: Branch, ticket: Ticket | None) -> None:
        self._adder = adder
        self._ticket = ticket
        self._tree = root
        self._arrange((ticket is not None and ticket.flow) or uuid4().hex)
        check_slots([member.branch.queue for member in self._members])

    def _arrange(self, seed: str) -> None:
        """Derive the ids of all jobs from `seed`, and split the flow into chunks."""
        self.seed = seed
        self._members = arrange(self._tree, partial(_job_id, seed))
        self._chunks = cut_flow(self._members, int(time() * 1000))
        self._root = self._chunks[0].nodes[0]
        self.root_job = self._root.job

    def send(self) -> AnySteps[list[Added] | Unsent]:
        """Add all jobs, in a span if the app traces. Return the result for the root."""
        tracer = current_tracer()
        return self._send() if tracer is None else self._send_traced(tracer)

    def _send_traced(self, tracer: Tracer) -> AnySteps[list[Added] | Unsent]:
        queue, jobs = self._root.queue.queue, [one.branch.job for one in self._members]
        names, contexts = [job.name for job in jobs], [job.telemetry for job in jobs]
        added: list[Added] | Unsent = []
        with (
            suppress(EnqueueError),
            sending(tracer, queue, names, contexts, flow=names[0]) as span,
        ):
            self._chunks = [_in_span(chunk, span) for chunk in self._chunks]
            added = yield from self._send()
            if isinstance(added, Unsent):
                raise EnqueueError(str(added.error), ())  # Recorded in the span.
            span.sent([self._root.job.job_id])
        return added

    def _send(self) -> AnySteps[list[Added] | Unsent]:
        """Add all jobs. Continue or undo a partial flow of another producer."""
        tries = 3  # One to continue a flow, one if another process undoes it.
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
                undone: list[str] = yield Separate(undo_flows(self._root.queue, now_ms))
                if self._root.queue.job(self._root.job.job_id) not in undone:
                    raise
                self._arrange(uuid4().hex)  # Redis remembers the chunks of the previous flow.

    def _form(self) -> str:
        """Return a digest of the flow's jobs that does not depend on the seed."""
        if len(self._chunks) == 1:
            return ""
        own = blake2b(digest_size=16)
        for chunk in self._chunks:
            own.update(b"%d;" % len(chunk.nodes))
            for node in chunk.nodes:
                own.update(b"%d;" % len(node.job.data))
                own.update(node.job.data)
        for member in self._members:
            job, queue = member.branch.job, member.branch.queue
            words = (queue.base, job.name, job.options.job_id, member.parent, member.on_failure)
            own.update(repr(words).encode())
        return own.hexdigest()

    def _send_all(self) -> AnySteps[list[Added] | Unsent]:
        if len(self._chunks) > 1:
            return (yield from self._send_chunks())
        return (yield from self._adder.numbered(partial(self._send_chunk, 0), self._ticket))

    def _send_chunk(
        self, number: int, sequence: CallSequence, sent_ms: int | None, owner: str = ""
    ) -> AnySteps[list[Added] | Unsent]:
        added: list[Added] | Unsent
        added = yield Separate(self._chunk(number, sequence, sent_ms, owner))
        return added

    def _send_chunks(self) -> AnySteps[list[Added] | Unsent]:
        sent_ms = None if self._ticket is None else self._ticket.sent_ms
        began_ms = int(time() * 1000)
        first: list[Added] = []
        owner = f"{self.seed}:{self._form()}"
        for number in range(len(self._chunks)):
            sequence = CallSequence(self.seed, number, 1, self.seed[:16])
            added = yield from self._send_chunk(number, sequence, sent_ms, owner)
            if isinstance(added, Unsent):
                whole = CallSequence(self.seed, 0, 1, self.seed[:16])
                return Unsent(added.error, whole, added.sent_ms or sent_ms)
            sent_ms = sent_ms or began_ms  # Part of the flow has been added.
            first = first or added
        return first

    def _chunk(
        self, number: int, sequence: CallSequence, sent_ms: int | None, owner: str = ""
    ) -> Steps[list[Added] | Unsent]:
        chunk, is_last = self._chunks[number], number == len(self._chunks) - 1

        def call(now_ms: int) -> Call[list[Added]]:
            deadline = None if is_last else now_ms + FLOW_LIFE_MS
            dated = replace(chunk, deadline_ms=deadline, owner=owner)
            return add_flow(self._root, dated, now_ms, sequence)

        return deliver(call, sequence, sent_ms)


def _in_span(chunk: FlowChunk, span: Sending) -> FlowChunk:
    nodes = [
        replace(node, job=in_context(node.job, span.telemetry(node.job.telemetry)))
        for node in chunk.nodes
    ]
    return replace(chunk, nodes=nodes)


def _job_id(seed: str, place: int) -> str:
    """Return a version 4 UUID. `uuid` takes three times as long to format one."""
    drawn = blake2b(f"{seed}:{place}".encode(), digest_size=16).hexdigest()
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


# Parts of a bulk


BULK_BYTES: Final = 1 << 20
"""Bytes per script call. Redis takes 2 to 3 ms for them."""


class Sendable(Protocol):
    """A job in the form that the caller passed in."""

    def with_ticket(self, ticket: Ticket) -> Self:
        """Return the job with a ticket, which makes sending it again idempotent."""
        ...


class Entry(Struct, frozen=True, eq=False):
    """One job of a bulk, with its queue and the decoder for its result."""

    client: QueueClient
    job: NewJob
    known_as: Sendable
    read: ReadResult
    flow: Flow | None = None
    """The flow below the job, or None if it has no children."""


class Part:
    """Jobs for one queue that are added in one call."""

    def __init__(self, client: QueueClient, ticket: Ticket | None) -> None:
        self.client = client
        self.ticket = ticket
        self.places: list[int] = []
        self.entries: list[Entry] = []
        self.jobs: list[EncodedJob] = []
        self.size = 0
        self.sequence: CallSequence | None = None
        """Sequence of the call, if other parts may be sent behind it."""
        self.pending: Pending | None = None

    def has_room(self, job: EncodedJob, size: int) -> bool:
        """Return True if a job of this size fits into the part."""
        if self.size + size > BULK_BYTES:
            return False
        # Each place of a ticket is sent once per call. The second one gets the stored reply in
        # another call.
        return job.place is None or all(other.place != job.place for other in self.jobs)

    def put(
        self,
        places: Iterable[int],
        entries: Iterable[Entry],
        jobs: Iterable[EncodedJob],
        size: int,
    ) -> None:
        """Add jobs with this total size, at these places in the bulk."""
        self.places.extend(places)
        self.entries.extend(entries)
        self.jobs.extend(jobs)
        self.size += size

    def may_follow(self, previous: Part) -> bool:
        """Return True if the part may be sent while another one is in flight.

        Parts with a ticket, and traced parts, are sent alone.
        """
        return self.ticket is None and previous.sequence is not None and previous.is_smooth

    @property
    def is_smooth(self) -> bool:
        """True if the call has had no problems so far."""
        return self.pending is not None and self.pending.is_smooth

    def begin(self, previous: Part | None) -> AnySteps[None]:
        """Send the jobs. Jobs of the same queue that are in flight are added first."""
        adder, after = self.client.adder, None
        if self.ticket is None and current_tracer() is None:
            self.sequence = adder.sequences.borrow()
            if previous is not None and previous.client is self.client:
                after = previous.sequence
        steps = adder.add(self.jobs, self.ticket, self.sequence, after)
        self.pending = yield Start(steps, None if previous is None else previous.pending)

    def end(self, *, given_up: bool = False) -> AnySteps[list[Added] | Unsent]:
        """Return a result for each of the jobs."""
        assert self.pending is not None, "it has begun"  # noqa: S101
        added: list[Added] | Unsent = yield Finish(self.pending, given_up)
        return added

    def ticket_of(self, number: int, sequence: CallSequence, sent_ms: int | None) -> Ticket:
        """Return the ticket for sending one of the jobs again."""
        return sequence.ticket(self.jobs[number - 1].place or number, sent_ms)


class FlowPart(Part):
    """A flow, which is sent alone. The caller knows only its root."""

    def __init__(self, place: int, entry: Entry, flow: Flow) -> None:
        super().__init__(entry.client, entry.job.ticket)
        self.put((place,), (entry,), (flow.root_job,), 0)
        self._flow = flow
        self._added: list[Added] | Unsent = []

    def may_follow(self, previous: Part) -> bool:
        return False

    def begin(self, previous: Part | None) -> AnySteps[None]:
        self._added = yield from self._flow.send()

    def end(self, *, given_up: bool = False) -> AnySteps[list[Added] | Unsent]:
        yield from ()
        return self._added if isinstance(self._added, Unsent) else self._added[:1]

    def ticket_of(self, number: int, sequence: CallSequence, sent_ms: int | None) -> Ticket:
        return replace(super().ticket_of(number, sequence, sent_ms), flow=self._flow.seed)


# Bulks: sent part by part, with as few jobs in memory as possible.


Progress: TypeAlias = Callable[[int], object]
"""Called after each part with the number of jobs added so far."""

BULK = 250
"""Jobs per script call. Redis is blocked for a millisecond or two."""

AT_ONCE = 2
"""Number of parts in flight. Redis adds the jobs of one while the next is prepared."""

_STRETCH: Final = 50
"""Number of jobs that are encoded together."""

_OPEN_JOBS = 25_000
_OPEN_BYTES = 16 * BULK_BYTES
"""Limits for jobs in incomplete parts, if the jobs are for many queues."""


class Bulk:
    """Adds many jobs and keeps track of the progress.

    The jobs of a list or another collection are all validated before the first is sent. Jobs of
    other iterables are validated and sent as they arrive. `entry` is called with each job and its
    place.

    While Redis adds the jobs of one part, the next part is prepared and sent. The jobs of a queue
    are still added in order: Redis rejects a part if the part before it was not added. When a part
    fails, the next one is finished or abandoned before the error is raised.
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
        self._in_place = True  # True while the handles are in the order of the jobs.
        self._made: list[Part] = []  # The part to send next.
        self._in_flight: deque[Part] = deque()
        self._open: dict[object, Part] = {}
        self._open_jobs = 0
        self._open_bytes = 0
        self._closed = False
        self._left: list[Sendable] = []  # Jobs that were not added, each with a ticket.
        self._unsure = 0  # Number of jobs in `_left` that may have been added.

    def run(self) -> AnySteps[list[JobHandle[Any]]]:
        """Add all jobs and return their handles in order.

        Raises:
            EnqueueError: If not all jobs could be added.
        """
        stretches = self._encoded()
        if self._total is not None:
            made = deque[Any](stretches)
            made.append(None)
            stretches = iter(made.popleft, None)  # Releases each stretch after it was sent.
        parts = self._parts(stretches)
        try:
            for part in parts:
                self._made.append(part)
                yield from self._wait_for_room(part, parts)
                yield from part.begin(self._in_flight[-1] if self._in_flight else None)
                self._in_flight.append(self._made.pop())
            while self._in_flight:
                yield from self._end_oldest(parts)
        except EnqueueError:
            raise
        except Exception as error:
            yield from self._end_all()
            if not self._handles and not self._unsure:
                raise
            why = f"the iterable of jobs or progress() raised {type(error).__name__}: {error}"
            if isinstance(error, FlowRefused):
                why = error.problem
            raise self._error(parts, "", why) from error
        finally:
            for part in self._in_flight:  # The caller was cancelled.
                if part.pending is not None:
                    part.pending.leave()
        return self._in_order()

    def _wait_for_room(self, part: Part, parts: Iterator[Part]) -> AnySteps[None]:
        """Wait until a part may be sent."""
        while self._in_flight:
            if len(self._in_flight) < AT_ONCE and part.may_follow(self._in_flight[-1]):
                break
            oldest = self._in_flight[0]
            yield from self._end_oldest(parts)
            # Parts sent behind a delayed one were rejected.
            while self._in_flight and not oldest.is_smooth:
                yield from self._end_oldest(parts)

    def _end_oldest(self, parts: Iterator[Part]) -> AnySteps[None]:
        """Collect the result of the oldest part, and stop the bulk if it was not added."""
        part = self._in_flight.popleft()
        added = yield from part.end()
        if isinstance(added, Unsent):
            self._leave(part, added.sequence, added.sent_ms)
            yield from self._end_all(given_up=True)
            where = f"Queue '{part.client.keys.queue}': "
            raise self._error(parts, where, str(added.error)) from added.error
        self._take_in(part, added)
        if self._progress is not None:
            self._progress(len(self._handles))

    def _end_all(self, *, given_up: bool = False) -> AnySteps[None]:
        """Collect the results of all parts in flight when the bulk stops early."""
        while self._in_flight:
            part = self._in_flight.popleft()
            added = yield from part.end(given_up=given_up)
            if isinstance(added, Unsent):
                self._leave(part, added.sequence, added.sent_ms)
                given_up = True
            else:
                self._take_in(part, added)

    def _leave(self, part: Part, sequence: CallSequence, sent_ms: int | None) -> None:
        """Keep the jobs of a part that was not added, each with a ticket for sending it again."""
        if part.ticket is not None and sent_ms is None:
            sent_ms = part.ticket.sent_ms
            self._left += [entry.known_as for entry in part.entries]
        else:
            for number, entry in enumerate(part.entries, 1):
                ticket = part.ticket_of(number, sequence, sent_ms)
                self._left.append(entry.known_as.with_ticket(ticket))
        if sent_ms is not None:
            self._unsure += len(part.entries)

    def _encoded(self) -> Iterator[tuple[list[Entry], list[EncodedJob]]]:
        # An iterator may be endless or raise, so take the next job only after the last one is
        # stored.
        size = 1 if self._total is None else _STRETCH
        while entries := list(islice(self._entries, size)):
            yield entries, _encode(entries)

    def _parts(self, stretches: Iterator[tuple[list[Entry], list[EncodedJob]]]) -> Iterator[Part]:
        """Yield parts as they fill up, then the rest. When closed, take no more jobs."""
        place = 0
        for entries, jobs in stretches:
            if (part := self._put_together(place, entries, jobs)) is None:
                for number, (entry, job) in enumerate(zip(entries, jobs, strict=True), place):
                    yield from self._put(number, entry, job)
            elif len(part.jobs) >= BULK:
                yield self._taken_out(id(part.client))
            if self._closed:
                break
            place += len(entries)
            while self._open_jobs > _OPEN_JOBS or self._open_bytes > _OPEN_BYTES:
                yield self._taken_out(max(self._open, key=lambda each: self._open[each].size))
        while self._open:
            yield self._taken_out(next(iter(self._open)))

    def _put_together(
        self, place: int, entries: list[Entry], jobs: list[EncodedJob]
    ) -> Part | None:
        """Put plain jobs of one queue into its part and return it. Return None for other jobs.

        This takes 0.2 µs per job. Adding each job separately took 0.6 µs or more.
        """
        client = entries[0].client
        sizes = [
            len(job.data) + len(job.options)
            for entry, job in zip(entries, jobs, strict=True)
            if job.is_plain and entry.client is client and entry.flow is None
        ]
        part = self._open.get(id(client)) or Part(client, None)
        size, count = sum(sizes), len(jobs)
        has_room = part.size + size <= BULK_BYTES and len(part.jobs) + count <= BULK
        if len(sizes) < count or not has_room:
            return None
        self._open[id(client)] = part
        part.put(range(place, place + count), entries, jobs, size)
        self._open_bytes += size
        self._open_jobs += count
        return part

    def _put(self, place: int, entry: Entry, job: EncodedJob) -> Iterator[Part]:
        """Put a job into a part, and yield parts that are full."""
        if entry.flow is not None:
            yield FlowPart(place, entry, entry.flow)
            return
        ticket = entry.job.ticket
        key: object = id(entry.client)
        if ticket is not None:
            key = (key, replace(ticket, place=0))
        size = len(job.data) + len(job.options)
        part = self._open.get(key)
        if part is not None and not part.has_room(job, size):
            yield self._taken_out(key)  # Send the part without this job.
            part = None
        if part is None:
            part = self._open[key] = Part(entry.client, ticket)
        part.put((place,), (entry,), (job,), size)
        self._open_bytes += size
        self._open_jobs += 1
        if len(part.jobs) >= BULK:
            yield self._taken_out(key)

    def _taken_out(self, key: object) -> Part:
        part = self._open.pop(key)
        self._open_jobs -= len(part.jobs)
        self._open_bytes -= part.size
        return part

    def _take_in(self, part: Part, added: list[Added]) -> None:
        client, queue = part.client, part.client.keys.queue
        self._in_place = self._in_place and (not self._places or self._places[-1] < part.places[0])
        self._handles += [
            JobHandle(queue, one.id, entry.job.name, False, client, entry.read)
            if one.result is Result.ADDED
            else handle(client, entry.job.name, one, entry.read)
            for entry, one in zip(part.entries, added, strict=True)
        ]
        self._places.extend(part.places)

    def _error(self, parts: Iterator[Part], where: str, why: str) -> EnqueueError:
        """Return the error for a bulk that stopped early, with all jobs that were not added."""
        self._closed = self._total is None  # Jobs not yet taken stay in the caller's iterator.
        for part in [*self._made, *parts, *self._open.values()]:
            self._leave(part, part.client.adder.sequences.reserve(), None)
        unsure, missing = self._unsure, len(self._left) - self._unsure
        if self._total is None:
            summary = f"{len(self._handles)} jobs were added, the next {missing} were not"
            if unsure:
                summary += f", and {unsure} more may have been added"
        else:
            summary = describe_missing(missing, unsure, self._total)
        message, added = f"{where}{summary}: {why}", self._in_order()
        return EnqueueError(message, self._left, may_be_added=unsure > 0, added=added)

    def _in_order(self) -> list[JobHandle[Any]]:
        if self._in_place:
            return self._handles
        pairs = zip(self._places, self._handles, strict=True)
        return [one for _, one in sorted(pairs, key=lambda pair: pair[0])]


def _encode(entries: list[Entry]) -> list[EncodedJob]:
    jobs = [entry.job for entry in entries if entry.flow is None]
    encoded = encode_jobs(jobs, int(time() * 1000)) if jobs else []
    if len(encoded) == len(entries):
        return encoded
    others = iter(encoded)
    return [next(others) if each.flow is None else each.flow.root_job for each in entries]


def describe_missing(missing: int, unsure: int, total: int) -> str:
    """Describe how many jobs were not added, and for how many this is unknown."""
    if total == 1:
        return "the job may have been added" if unsure else "the job was not added"
    if not missing:
        return f"{unsure} of {total} jobs may or may not have been added"
    summary = f"{missing} of {total} jobs {'was' if missing == 1 else 'were'} not added"
    return f"{summary}, and {unsure} more may have been added" if unsure else summary


def check_bulk(jobs: object, progress: object) -> None:
    """Check the arguments of a bulk.

    Raises:
        ConfigurationError: If `jobs` is not iterable, or `progress` is not a sync function.
    """
    if not isinstance(jobs, Iterable):
        raise refusal("jobs", "be a list or another iterable of jobs", jobs)
    if progress is not None and (not callable(progress) or inspect.iscoroutinefunction(progress)):
        raise refusal("progress", "be a sync function that takes a number", progress)


# Single jobs: the fast path for `delay` and `add`


def add_one(
    entry: Entry, job: EncodedJob, sequence: CallSequence | None = None
) -> Steps[JobHandle[Any]]:
    """Add a job that was never sent before.

    Raises:
        EnqueueError: If it could not be added.
    """
    added = yield from entry.client.adder.add((job,), sequence=sequence)
    if isinstance(added, Unsent):
        raise not_added(entry, 1, added) from added.error
    return handle(entry.client, entry.job.name, added[0], entry.read)


def first_call(client: QueueClient, job: EncodedJob) -> tuple[CallSequence, Call[list[Added]]]:
    """Return the first call that adds a single job. If it fails, `add_one` continues.

    This avoids the generator of `add_one`, which takes 10 µs.
    """
    sequence = client.adder.sequences.borrow()
    return sequence, add_jobs(client.adder.keys, (job,), job.timestamp_ms, sequence)


def first_handle(entry: Entry, sequence: CallSequence, added: list[Added]) -> JobHandle[Any] | None:
    """Return the handle of an added job, or None if a clone of this process used the sequence."""
    sequences = entry.client.adder.sequences
    if not added:
        sequences.renew()
        return None
    sequences.give_back(sequence)
    return handle(entry.client, entry.job.name, added[0], entry.read)


def add_at_once(entry: Entry, timeout: float | None) -> JobHandle[Any]:
    """Add one job from code without an event loop."""
    client = entry.client
    store = client.stores.sync_store()
    job = encode_job(entry.job, int(time() * 1000))
    try:
        if current_tracer() is not None:
            return store.run(add_one(entry, job), timeout=timeout)
        sequence, call = first_call(client, job)
        limit = Deadline(timeout, monotonic)
        try:
            added = store.run_within(call, limit)
        except TaskbullError as error:
            return store.go_on(add_one(entry, job, sequence), limit, error)
        except BaseException:
            client.adder.sequences.give_back(sequence)
            raise
        found = first_handle(entry, sequence, added)
        return store.run(add_one(entry, job), timeout=timeout) if found is None else found
    except TaskbullError as error:
        raise stripped(error) from error.__cause__


def not_added(entry: Entry, place: int, unsent: Unsent) -> EnqueueError:
    """Return the error for the caller whose job is at this place in a call."""
    sent_ms = unsent.sent_ms
    summary = "Job not added" if sent_ms is None else "Job may have been added"
    return EnqueueError(
        f"{summary} to queue '{entry.client.keys.queue}': {unsent.error}",
        [entry.known_as.with_ticket(unsent.sequence.ticket(place, sent_ms))],
        may_be_added=sent_ms is not None,
    )

"""Many jobs on their way to their queues, part by part: as few in memory as that needs."""

from __future__ import annotations

import inspect
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count, islice
from time import time
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from taskbull.core.checks import refusal
from taskbull.core.wire.new_job import EncodedJob, encode_jobs
from taskbull.errors import EnqueueError
from taskbull.queue.add_call import Unsent
from taskbull.queue.add_part import BULK_BYTES, Entry, FlowPart, Left, Part
from taskbull.queue.handle import JobHandle, handle
from taskbull.scripts.add import Added, Result
from taskbull.scripts.call import Stages

Stretch: TypeAlias = tuple[list[Entry], list[EncodedJob]]
"""Some jobs that come one after the other."""

Progress: TypeAlias = Callable[[int], object]
"""Is told, after each part, how many jobs of the bulk were added so far."""

BULK = 250
"""Jobs per script call: Redis serves nobody else meanwhile, and that is a millisecond or two."""

AT_ONCE = 2
"""Parts under way at once: Redis adds the jobs of one while the next is made."""

_STRETCH: Final = 50
"""Jobs that are encoded together."""

_OPEN_JOBS = 25_000
_OPEN_BYTES = 16 * BULK_BYTES
"""How much may wait for its part to be full, where the jobs are for many queues."""


class Bulk:
    """Adds jobs, and knows how far it has come.

    Those of a list, or another collection, are all checked before the first is sent; others are
    checked and sent as they come. `entry` is given each with its place.

    While Redis adds the jobs of one part, the next is made and sent. The jobs of a queue are added
    in order all the same, whatever happens to a part: Redis refuses one whose former part it has
    not added. When a part fails, the one behind it is answered or given up before that is told.
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
        self._in_place = True  # the handles are in the order of the jobs
        self._made: list[Part] = []  # the one that is to be sent next
        self._under_way: deque[Part] = deque()
        self._open: dict[object, Part] = {}
        self._open_jobs = 0
        self._open_bytes = 0
        self._closed = False

    def run(self) -> Stages[list[JobHandle[Any]]]:
        """Add all; give handles in order. Raises `EnqueueError` when it has to break off."""
        stretches = self._encoded()
        if self._total is not None:
            made = deque[Any](stretches)
            made.append(None)
            stretches = iter(made.popleft, None)  # none is kept that was sent
        parts = self._parts(stretches)
        try:
            for part in parts:
                self._made.append(part)
                yield from self._make_way(part, parts)
                yield from part.begin(self._under_way[-1] if self._under_way else None)
                self._under_way.append(self._made.pop())
            while self._under_way:
                yield from self._end_oldest(parts)
        except EnqueueError:
            raise
        except Exception as error:
            left = Left()
            yield from self._end_all(left)
            if not self._handles and not left.unsure:
                raise
            why = f"the jobs, or progress, raised {type(error).__name__}: {error}"
            raise self._error(left, parts, "", why) from error
        return self._in_order()

    def _make_way(self, part: Part, parts: Iterator[Part]) -> Stages[None]:
        """Wait until a part may be sent."""
        while self._under_way:
            if len(self._under_way) < AT_ONCE and part.may_follow(self._under_way[-1]):
                break
            oldest = self._under_way[0]
            yield from self._end_oldest(parts)
            while self._under_way and not oldest.is_smooth:  # it came too late for those behind it
                yield from self._end_oldest(parts)

    def _end_oldest(self, parts: Iterator[Part]) -> Stages[None]:
        """Take in what became of the oldest part; break off if it was not added."""
        part = self._under_way.popleft()
        added = yield from part.end()
        if isinstance(added, Unsent):
            left = Left()
            left.put(part, added.sequence, added.sent_ms)
            yield from self._end_all(left, given_up=True)
            where = f"Queue {part.client.keys.queue}: "
            raise self._error(left, parts, where, str(added.error)) from added.error
        self._take_in(part, added)
        if self._progress is not None:
            self._progress(len(self._handles))

    def _end_all(self, left: Left, *, given_up: bool = False) -> Stages[None]:
        """Find out what becomes of the parts under way, in a bulk that is broken off."""
        while self._under_way:
            part = self._under_way.popleft()
            added = yield from part.end(given_up=given_up)
            if isinstance(added, Unsent):
                left.put(part, added.sequence, added.sent_ms)
                given_up = True
            else:
                self._take_in(part, added)

    def _encoded(self) -> Iterator[Stretch]:
        # Of what may be endless, or raise, none is asked for before the last one has its place.
        size = 1 if self._total is None else _STRETCH
        while entries := list(islice(self._entries, size)):
            yield entries, _encode(entries)

    def _parts(self, stretches: Iterator[Stretch]) -> Iterator[Part]:
        """Yield parts as they are full, then the rest; when closed, no more jobs are asked for."""
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
        """Put plain jobs of one queue into its part and return that; None if they are others.

        That takes 0.2 µs for a job; to put each by itself took 0.6 and more.
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
        """Put a job into a part; yield those that are full."""
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
            yield self._taken_out(key)  # without the job
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

    def _error(self, left: Left, parts: Iterator[Part], where: str, why: str) -> EnqueueError:
        """Make the error of a bulk that is broken off: with `left`, and all that was not sent."""
        self._closed = self._total is None  # what was not asked for stays with the caller
        for part in [*self._made, *parts, *self._open.values()]:
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

"""State per event loop: its store, the waits for results, and the groups of jobs to add.

Code without an event loop does not use this module. See `Stores`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - in its `__all__`
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import copy
from math import inf
from time import monotonic
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from anyio import (
    CancelScope,
    Event,
    current_time,
    fail_after,
    get_cancelled_exc_class,
    move_on_after,
)
from anyio.lowlevel import checkpoint, current_token
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Ending
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.wire.job import EncodedJob, encode_job
from taskbull.errors import (
    JobNotFound,
    MaybeExecuted,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.observability.provider import current_tracer
from taskbull.queue.add_bulk import BULK, BULK_BYTES, add_one, first_call, first_handle, not_added
from taskbull.queue.add_bulk import Entry as JobEntry
from taskbull.queue.handle import JobHandle, QueueClient, Unsent, handle
from taskbull.queue.stores import (
    CHECK_INTERVAL,
    Endings,
    Found,
    endings_in,
    failure,
    not_in_time,
    read_ending,
    settle,
    stripped,
)
from taskbull.queue.streams import Cursor
from taskbull.scripts.add import Added
from taskbull.scripts.call import Steps, again
from taskbull.scripts.read import BLOCK, last_event_id, read_ends
from taskbull.scripts.streams import (
    PAGE,
    PAGE_BYTES,
    Entry,
    EntryId,
    read_page,
    wait_for_entries,
)
from taskbull.store import backend
from taskbull.store.address import Address
from taskbull.store.async_store import Store, ambient_store
from taskbull.store.backend import Waiter, spawn, waiters, wake
from taskbull.store.connection import BlockingConnection, ConnectionOptions
from taskbull.store.protocol import Deadline

# Combine the jobs of many callers in one event loop into few calls per queue.
#
# While calls are in flight, the next jobs are gathered. No caller waits for a timer, and a single
# caller has no overhead. The rules:
#
# - Two calls are in flight, each for half of the callers. While Redis adds the jobs of one half,
#     the callers of the other half receive their results and prepare their next jobs. With few
#     callers, there is one call.
# - Each caller gets its own handle, or its own error with its own job.
# - A call does not belong to a caller, so cancelling one caller does not cancel the others. If a
#   caller is cancelled before its job is sent, the job is not sent.
# - Each caller has its own time limit. A call is abandoned when its first caller runs out of time.
#     It is sent again under the same number for the others, and Redis does not execute it twice.
# - Traced jobs are sent alone, because the span belongs to the caller.


FEW = 8
"""Number of callers below which a second call does not pay. A call costs as much as five jobs."""


class _Member(Struct, frozen=True, eq=False):
    """One caller, with its job, its start time and its waiter for `Added`."""

    entry: JobEntry
    job: EncodedJob
    since: float
    waiter: backend.Waiter


class _GroupCall:
    """Callers whose jobs are in flight, by the places of the jobs in the call."""

    def __init__(self, members: list[_Member]) -> None:
        self.size = len(members)
        self.waiting = dict(enumerate(members, 1))
        self.scope: CancelScope | None = None

    def drop_settled(self) -> None:
        """Remove callers that no longer wait."""
        self.waiting = {
            place: each for place, each in self.waiting.items() if not each.waiter.done()
        }


class Group:
    """Adds the single jobs of one event loop to one queue."""

    def __init__(self, client: QueueClient, store: Store, timeout: float | None) -> None:
        self._client = client
        self._store = store
        self._timeout = timeout
        self._new_waiter = backend.waiters()
        self._gathered: deque[_Member] = deque()
        self._busy = False  # A call is in flight.
        self._turn: backend.Waiter | None = None  # Waiter of the task that sends the gathered jobs.
        self._senders = 0  # Number of sending tasks: one, or two if there are many callers.
        self._calls: list[_GroupCall] = []  # Calls in flight.

    async def add(self, entry: JobEntry) -> JobHandle[Any]:
        """Add one job.

        Raises:
            EnqueueError: If the job could not be added in time.
        """
        member: _Member | None = None
        try:
            job = encode_job(entry.job, int(time.time() * 1000))
            if current_tracer() is not None:
                return await self._store.run(add_one(entry, job), timeout=self._timeout)
            if not self._busy:
                return await self._add_first(entry, job)
            member = _Member(entry, job, monotonic(), self._new_waiter())
            self._gathered.append(member)
            if self._turn is None:
                self._begin_turn()
            added: Added = await member.waiter
            return handle(self._client, entry.job.name, added, entry.read)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        except get_cancelled_exc_class():
            if member is not None:
                self._let_go(member)
            raise

    async def _add_first(self, entry: JobEntry, job: EncodedJob) -> JobHandle[Any]:
        """Add a job while no call is in flight. The jobs of other callers are gathered."""
        self._busy = True
        try:
            return await self._add_alone(entry, job)
        finally:
            if self._turn is None:
                self._busy = False
            else:
                backend.wake(self._turn)

    async def _add_alone(self, entry: JobEntry, job: EncodedJob) -> JobHandle[Any]:
        sequence, call = first_call(self._client, job)
        limit = Deadline(self._timeout, monotonic)
        try:
            added = await self._store.run_within(call, limit)
        except TaskbullError as error:
            return await self._store.go_on(add_one(entry, job, sequence), limit, error)
        except BaseException:
            self._client.adder.sequences.give_back(sequence)
            raise
        if (handle := first_handle(entry, sequence, added)) is not None:
            return handle
        return await self._store.run(add_one(entry, job), timeout=self._timeout)

    def _begin_turn(self) -> None:
        self._turn = self._new_waiter()
        self._senders = 1
        backend.spawn(self._send_in_turn)

    def _let_go(self, member: _Member) -> None:
        """Let a call continue without the job of a cancelled caller, if it was not sent."""
        for call in self._calls:
            if call.scope is not None and member in call.waiting.values():
                call.scope.cancel()

    async def _send_in_turn(self) -> None:
        """Send the gathered jobs after the call in flight has finished."""
        if self._turn is not None:
            try:
                await self._turn
            except BaseException:  # The event loop is closing.
                self._end_sender()
                raise
        await self._send_gathered()

    async def _send_gathered(self) -> None:
        """Send gathered jobs until there are none. Up to two tasks run this."""
        try:
            while members := self._take():
                call = _GroupCall(members)
                self._calls.append(call)
                if self._senders == 1 and len(self._gathered) >= FEW:
                    self._senders = 2
                    backend.spawn(self._send_gathered)
                try:
                    await self._send(call)
                finally:
                    self._calls.remove(call)
                    for member in call.waiting.values():  # Empty unless the event loop is closing.
                        member.waiter.cancel()
                # A caller with a result may have another job: on asyncio after one pass of the
                # loop, on trio after two. Without the checkpoints, every second call would contain
                # one job.
                await checkpoint()
                await checkpoint()
        finally:
            self._end_sender()

    def _end_sender(self) -> None:
        self._senders -= 1
        if self._senders == 0:
            for member in self._gathered:  # Empty unless the event loop is closing.
                member.waiter.cancel()
            self._gathered.clear()
            self._busy, self._turn = False, None

    def _take(self) -> list[_Member]:
        """Return the callers for the next call: about half of all, within limits."""
        gathered = self._gathered
        in_flight = sum([call.size for call in self._calls])
        most = min(BULK, max(FEW, (len(gathered) + in_flight + 1) // 2))
        members: list[_Member] = []
        while gathered and not members:
            first = [gathered.popleft() for _ in range(min(most, len(gathered)))]
            members = [each for each in first if not each.waiter.done()]
        sizes = [len(each.job.data) + len(each.job.options) for each in members]
        while sum(sizes) > BULK_BYTES and len(members) > 1:
            gathered.appendleft(members.pop())
            sizes.pop()
        return members

    async def _send(self, call: _GroupCall) -> None:
        """Add the jobs of some callers in one call, and pass each caller its result."""
        adder = self._client.adder
        sequence, sent_ms, is_free = adder.sequences.borrow(), None, True
        while waiting := call.waiting:
            began_ms = int(time.time() * 1000)
            added = await self._try(call, adder.send(_jobs(waiting), sequence, sent_ms))
            if added is None:  # Interrupted because a caller has left.
                sent_ms = sent_ms or began_ms
            elif isinstance(added, Unsent):
                sent_ms, is_free = added.sent_ms, False
                self._fail_overdue(waiting, added)
            elif not added:
                adder.sequences.renew()
                sequence = adder.sequences.borrow()
            else:
                for member, one in zip(waiting.values(), added, strict=True):
                    if not (waiter := member.waiter).done():
                        waiter.set_result(one)
                break
            call.drop_settled()
        call.waiting = {}
        if is_free:
            adder.sequences.give_back(sequence)

    async def _try(
        self, call: _GroupCall, steps: Steps[list[Added] | Unsent]
    ) -> list[Added] | Unsent | None:
        """Send the call within the first caller's time limit. Return None if it was interrupted."""
        limit = self._limit(next(iter(call.waiting.values())))
        try:
            with CancelScope() as call.scope:
                return await self._store.run(steps, timeout=limit.timeout)
        except Exception as error:  # noqa: BLE001 - each caller gets its own copy
            for member in call.waiting.values():
                if not member.waiter.done():
                    member.waiter.set_exception(copy(error))
        finally:
            call.scope = None
        return None

    def _fail_overdue(self, waiting: dict[int, _Member], unsent: Unsent) -> None:
        """Fail the callers that are out of time, or all callers if time was not the cause."""
        first = self._limit(next(iter(waiting.values())))
        for place, member in waiting.items():
            is_late = self._limit(member).left <= first.last_answer
            if (is_late or first.left > first.last_answer) and not member.waiter.done():
                error = not_added(member.entry, place, unsent)
                error.__cause__ = unsent.error
                member.waiter.set_exception(error)

    def _limit(self, member: _Member) -> Deadline:
        return Deadline(self._timeout, monotonic, member.since)


def _jobs(waiting: dict[int, _Member]) -> list[EncodedJob]:
    if len(waiting) == max(waiting):  # The call is complete.
        return [member.job for member in waiting.values()]
    return [replace(member.job, place=place, is_plain=False) for place, member in waiting.items()]


# Waiting for results: any number of waiters, one reader of the queue's event stream


LINGER = 1.0
"""Seconds until an unused reader stops. The next wait often follows soon."""

_LOOKS_AT_ONCE = 100


class ResultWatch:
    """Waits for the jobs of one queue, for one event loop.

    Its reader is a task of the event loop with a dedicated connection. The reader and the watch
    stop when there have been no waiters for a while.
    """

    def __init__(self, keys: QueueKeys, store: Store) -> None:
        self._keys = keys
        self._store = store
        self._new_waiter = waiters()
        self._waiting: dict[str, list[Waiter]] = {}
        # Set when the reader has its position and will see all later events.
        self._placed = Event()
        self._scope = CancelScope()
        spawn(self._run)

    @property
    def over(self) -> bool:
        """True if the watch has stopped and a new one is needed."""
        return self._scope.cancel_called

    @property
    def is_placed(self) -> bool:
        """True if Redis has answered, so that the reader has its position."""
        return self._placed.is_set()

    async def ending(self, job_id: str) -> Ending:
        """Wait until a job finishes.

        Raises:
            JobNotFound: If the job does not exist.
        """
        waiter = self.register(job_id)
        try:
            found = await self._await_ending(job_id, waiter)
        finally:
            self.leave(job_id, waiter)
        return await self.settle(job_id, found)

    def register(self, job_id: str) -> Waiter:
        """Return a waiter that the reader resumes with the end of a job. Pass it to `leave`."""
        waiter = self._new_waiter()
        self._waiting.setdefault(job_id, []).append(waiter)
        self._scope.deadline = inf
        return waiter

    async def settle(self, job_id: str, found: Found | Exception) -> Ending:
        """Return the final state of a job, from the value of its waiter."""
        if isinstance(found, Exception) and not isinstance(found, JobNotFound):
            raise found
        return await self._store.run(settle(self._keys, job_id, found))

    async def look(self, job_ids: list[str]) -> None:
        """Read jobs, and resume the waiters of those that have ended."""
        await self._placed.wait()
        for job_id, found in zip(job_ids, await self._read_endings(job_ids), strict=True):
            if found is not None:
                self._notify(job_id, found)

    async def _await_ending(self, job_id: str, waiter: Waiter) -> Any:
        await self._placed.wait()
        if not waiter.done():
            found = await self._store.run(again(read_ending(self._keys, job_id)))
            if isinstance(found, Ending) or (found is not None and not waiter.done()):
                return found
        return await waiter

    def leave(self, job_id: str, waiter: Waiter) -> None:
        """Stop waiting for a job."""
        others = self._waiting[job_id]
        others.remove(waiter)
        if not others:
            del self._waiting[job_id]
        if not self._waiting:
            self._scope.deadline = current_time() + LINGER

    async def _run(self) -> None:
        with self._scope:
            connection = self._store.blocking(self._keys.events)
            try:
                await self._read(connection)
            except Exception as error:  # noqa: BLE001 - raised in the waiters
                for job_id in self._waiting:
                    self._notify(job_id, error)
            finally:
                self._scope.cancel()  # New waiters need another watch from here on.
                self._placed.set()
                await connection.close()

    async def _read(self, connection: BlockingConnection) -> None:
        place: str = await self._store.run(again(last_event_id(self._keys)))
        self._placed.set()
        look_at = current_time() + CHECK_INTERVAL
        while True:
            asked_at = current_time()
            ends = await connection.run(read_ends(self._keys, place))
            for job_id, found in endings_in(self._keys, ends):
                self._notify(job_id, found)
            now = current_time()
            was_cut = ends.place == place and now - asked_at < BLOCK
            place = ends.place
            if was_cut or now >= look_at:  # The stream may have been trimmed.
                await self._look_again()
                look_at = current_time() + CHECK_INTERVAL

    async def _look_again(self) -> None:
        ids = list(self._waiting)
        for first in range(0, len(ids), _LOOKS_AT_ONCE):
            await self.look(ids[first : first + _LOOKS_AT_ONCE])

    async def _read_endings(self, job_ids: list[str]) -> list[Found | None]:
        calls = [read_ending(self._keys, each) for each in job_ids]
        while True:
            found = await self._store.run_each(calls)
            errors = [
                each
                for each in found
                if isinstance(each, TaskbullError) and not isinstance(each, JobNotFound)
            ]
            if not errors:
                return cast("list[Found | None]", found)
            for error in errors:
                if not isinstance(error, MaybeExecuted | ServerUnavailable):
                    raise error  # Otherwise reading again is safe.

    def _notify(self, job_id: str, found: Found | Exception) -> None:
        for waiter in self._waiting.get(job_id, ()):
            if not waiter.done():
                waiter.set_result(found)


class ExpectedEndings:
    """Ends of many jobs of a queue, for a caller that awaits them one after another.

    All ends are noted from the start. Jobs that have ended already are read many at a time.
    """

    def __init__(self, watch: ResultWatch, job_ids: Sequence[str]) -> None:
        self._watch = watch
        self._waiters = {job_id: watch.register(job_id) for job_id in dict.fromkeys(job_ids)}
        self._unread = deque(self._waiters)

    async def ending(self, job_id: str) -> Ending:
        """Wait until a job finishes.

        Raises:
            JobNotFound: If the job does not exist.
        """
        waiter = self._waiters[job_id]
        while self._unread and not waiter.done():
            part = [self._unread.popleft() for _ in range(min(_LOOKS_AT_ONCE, len(self._unread)))]
            await self._watch.look(part)
        return await self._watch.settle(job_id, await waiter)

    def close(self) -> None:
        """Stop waiting for all jobs."""
        for job_id, waiter in self._waiters.items():
            self._watch.leave(job_id, waiter)


# Following streams: any number of readers, one connection per 200 streams of a queue


_STREAMS: Final = 200
"""Maximum number of streams per connection. Each read names all of them."""


class Subscription:
    """New entries of one job's stream, for one reader.

    A slow reader does not accumulate entries. It `is_behind` and reads pages instead.
    """

    def __init__(self) -> None:
        self._new_waiter = waiters()
        self._waiter: Waiter | None = None
        self.entries: list[Entry] = []
        self.is_behind = True
        self.ended: Found | Exception | None = None
        self.look_at = current_time() + BLOCK

    def push(self, entries: list[Entry]) -> None:
        """Add entries, unless the reader is behind."""
        self.look_at = current_time() + BLOCK
        if not self.is_behind:
            self.entries += entries
            size = sum(len(entry.raw) for entry in self.entries)
            self.is_behind = len(self.entries) > PAGE or size > PAGE_BYTES
        if self.is_behind:
            self.entries = []
        self._notify()

    def end(self, found: Found | Exception) -> None:
        """Make the reader read the rest of the stream and finish."""
        self.ended = found
        self.is_behind = True
        self._notify()

    async def next(self, timeout: float) -> list[Entry]:
        """Wait for entries, and return them.

        The list is empty if there were none within `timeout` seconds, or if the reader is behind.
        """
        if not self.entries:
            self._waiter = self._new_waiter()
            with move_on_after(timeout):
                await self._waiter
        entries, self.entries = self.entries, []
        return entries

    def _notify(self) -> None:
        if self._waiter is not None:
            wake(self._waiter)


class StreamWatch:
    """Waits for entries of up to 200 streams of one queue, for one event loop.

    A stream that joins interrupts the wait, which closes the connection. A reader is subscribed for
    as long as it follows its job, so that happens once per reader.
    """

    def __init__(self, keys: QueueKeys, store: Store) -> None:
        self._keys = keys
        self._store = store
        self._places: dict[str, EntryId] = {}
        self._readers: dict[str, list[Subscription]] = {}
        self._joined = Event()
        self._wait = CancelScope()
        self._scope = CancelScope()
        spawn(self._run)

    @property
    def over(self) -> bool:
        """True if the watch has stopped and a new one is needed."""
        return self._scope.cancel_called

    @property
    def has_room(self) -> bool:
        """True if another stream can join."""
        return len(self._places) < _STREAMS

    def join(self, reader: Subscription, job_id: str, place: EntryId) -> None:
        """Push entries after `place` to a reader.

        If the stream has other readers, entries may be missing. The reader must read a page first.
        """
        self._scope.deadline = inf
        self._readers.setdefault(job_id, []).append(reader)
        if job_id not in self._places:
            self._places[job_id] = place
            self._joined.set()
            self._wait.cancel()

    def leave(self, reader: Subscription, job_id: str) -> None:
        """Stop pushing entries to a reader."""
        others = self._readers.get(job_id, [])
        if reader in others:
            others.remove(reader)
            if not others:
                del self._readers[job_id], self._places[job_id]
        if not self._places:
            self._scope.deadline = current_time() + LINGER

    async def _run(self) -> None:
        with self._scope:
            connection = self._store.blocking(self._keys.events)
            try:
                while True:
                    await self._joined.wait()
                    await self._read(connection)
            except Exception as error:  # noqa: BLE001 - raised in the readers
                for readers in self._readers.values():
                    for reader in readers:
                        reader.end(error)
            finally:
                self._scope.cancel()  # New readers need another watch from here on.
                await connection.close()

    async def _read(self, connection: BlockingConnection) -> None:
        if not self._places:
            self._joined = Event()
            return
        found: dict[str, list[Entry]] = {}
        try:
            with CancelScope() as self._wait:
                found = await connection.run(wait_for_entries(self._keys, self._places, BLOCK))
        except ServerRefused as error:
            if error.code != "WRONGTYPE":
                raise
            found = await self._read_each()
        for job_id, entries in found.items():
            if job_id in self._places:
                self._places[job_id] = entries[-1].id
                for reader in self._readers[job_id]:
                    reader.push(entries)

    async def _read_each(self) -> dict[str, list[Entry]]:
        """Read each stream alone. End the readers of those whose keys are not streams."""
        found: dict[str, list[Entry]] = {}
        for job_id, place in list(self._places.items()):
            try:
                page = await self._store.run(again(read_page(self._keys, job_id, place)))
            except ServerRefused as error:
                if error.code != "WRONGTYPE":
                    raise
                self._places.pop(job_id, None)
                for reader in self._readers.pop(job_id, ()):
                    reader.end(error)
            else:
                if page:
                    found[job_id] = page
        return found


# Contexts of event loops


T = TypeVar("T")

# Callers have deadlines of a few seconds, so a producer must notice soon that Redis is back.
_PRODUCER = ConnectionOptions(longest_delay=1.0)


class LoopContext:
    """The store, result watches and job groups of one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._watches: dict[str, ResultWatch] = {}
        self._stream_watches: dict[str, list[StreamWatch]] = {}
        self._groups: dict[QueueClient, Group] = {}

    def group(self, client: QueueClient, timeout: float | None) -> Group:
        """Return the group that adds single jobs of this event loop to a queue."""
        group = self._groups.get(client)
        if group is None:
            group = self._groups[client] = Group(client, self.store, timeout)
        return group

    def expect(self, keys: QueueKeys, job_ids: Sequence[str]) -> ExpectedEndings:
        """Begin to wait for many jobs of a queue, whose results are then awaited in order."""
        return ExpectedEndings(self._watch(keys), job_ids)

    async def ending(
        self,
        keys: QueueKeys,
        job_id: str,
        timeout: float | None,
        expected: Endings | None = None,
    ) -> Ending:
        """Wait until a job has completed.

        Args:
            keys: Keys of the queue.
            job_id: Id of the job.
            timeout: Time limit in seconds for the whole wait.
            expected: Ends of many jobs, including this one.

        Raises:
            JobFailed: If the job failed.
            JobNotFound: If the job does not exist.
            TimeoutError: If the job did not finish in time.
        """
        try:
            with fail_after(timeout):
                while True:
                    ends: Endings = self._watch(keys) if expected is None else expected
                    ending, expected = await ends.ending(job_id), None
                    if ending.state is not JobState.FAILED:
                        break
                    steps = failure(keys, job_id, ending.failed_reason or "")
                    if (error := await self.store.run(steps)) is not None:
                        raise error
        except TimeoutError:
            problem = ""
            if not self._watch(keys).is_placed:
                problem = f"Redis at {self.store.address} did not answer"
            raise not_in_time(keys, job_id, timeout, problem) from None
        return ending

    async def follow_with_pauses(
        self, cursor: Cursor, idle: float
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield the same as `follow`, and an empty list after `idle` seconds without entries.

        It does so even while Redis is unavailable.
        """
        page: list[Entry] | None = None
        error: Exception | None = None
        is_over = False
        ready, taken = Event(), Event()
        scope = CancelScope()

        async def read() -> None:
            nonlocal page, error, is_over, taken
            with scope:
                try:
                    async with aclosing(self.follow(cursor)) as pages:
                        async for entries in pages:
                            page = entries
                            ready.set()
                            await taken.wait()
                            taken = Event()
                except Exception as problem:  # noqa: BLE001 - raised in the reader
                    error = problem
                finally:
                    is_over = True
                    ready.set()

        spawn(read)
        try:
            while True:
                with move_on_after(idle):
                    await ready.wait()
                if page is not None:
                    new, page, ready = page, None, Event()
                    taken.set()
                    yield new
                elif is_over:
                    break
                else:
                    yield []
        finally:
            scope.cancel()
        if error is not None:
            raise error

    async def follow(self, cursor: Cursor) -> AsyncGenerator[list[Entry], None]:
        """Yield the entries of a job's stream until the job has ended.

        Raises:
            JobFailed: If the job failed.
            JobNotFound: If the job does not exist.
        """
        reader = Subscription()
        keys, job_id = cursor.keys, cursor.job_id
        watch: StreamWatch | None = None
        scope = self._await_end(reader, cursor)
        try:
            while True:
                if not reader.is_behind:
                    new = cursor.take(await reader.next(BLOCK))
                    await self._look_again(reader, cursor)
                    if new:
                        yield new
                    continue
                ended, reader.is_behind, reader.entries = reader.ended, False, []
                page = await self.store.run(cursor.page())
                is_last = not cursor.has_more
                if is_last and watch is None and ended is None:
                    watch = self._stream_watch(keys)
                    watch.join(reader, job_id, page[-1].id if page else cursor.place)
                    reader.is_behind = True  # Other readers may have got entries in between.
                if new := cursor.take(page):
                    yield new
                if is_last and ended is not None:
                    break
                reader.is_behind = reader.is_behind or not is_last
        finally:
            scope.cancel()
            if watch is not None:
                watch.leave(reader, job_id)
        if isinstance(ended, Exception) and not isinstance(ended, JobNotFound):
            raise ended
        await self.store.run(cursor.check_end(ended))

    async def _look_again(self, reader: Subscription, cursor: Cursor) -> None:
        """End a reader if its job is gone, which is read after each 5 seconds without entries.

        Some ways to remove a job emit no event.
        """
        if current_time() >= reader.look_at:
            reader.look_at = current_time() + BLOCK
            found = await self.store.run(again(read_ending(cursor.keys, cursor.job_id)))
            if found is not None:
                reader.end(found)

    def _await_end(self, reader: Subscription, cursor: Cursor) -> CancelScope:
        """Wait in the background for the end of a reader's job."""
        scope = CancelScope()

        async def wait() -> None:
            with scope:
                try:
                    reader.end(await self._watch(cursor.keys).ending(cursor.job_id))
                except Exception as error:  # noqa: BLE001 - raised in the reader
                    reader.end(error)

        spawn(wait)
        return scope

    def _stream_watch(self, keys: QueueKeys) -> StreamWatch:
        watches = [one for one in self._stream_watches.get(keys.base, ()) if not one.over]
        self._stream_watches[keys.base] = watches
        for watch in watches:
            if watch.has_room:
                return watch
        watches.append(StreamWatch(keys, self.store))
        return watches[-1]

    def _watch(self, keys: QueueKeys) -> ResultWatch:
        watch = self._watches.get(keys.base)
        if watch is None or watch.over:
            watch = self._watches[keys.base] = ResultWatch(keys, self.store)
        return watch


class EventLoops:
    """Provides the context of each event loop. Contexts are created when needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._contexts: WeakKeyDictionary[Any, LoopContext] = WeakKeyDictionary()

    def running(self) -> LoopContext:
        """Return the context of the running event loop."""
        loop = _running_loop()
        if (context := self._contexts.get(loop)) is None:
            self._forget_closed()
            context = self._contexts[loop] = LoopContext(ambient_store(self._address, _PRODUCER))
        return context

    def _forget_closed(self) -> None:
        # A store references its asyncio loop, so closed loops would never be garbage-collected.
        for loop in list(self._contexts):
            if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed():
                self._contexts.pop(loop, None)


def _running_loop() -> Any:
    """Return the running event loop, in a tenth of the time that anyio takes."""
    if _get_running_loop() is not None and (task := asyncio.current_task()) is not None:
        return task.get_loop()
    try:
        # Trio may run as a guest of asyncio.
        return sys.modules["trio"].lowlevel.current_trio_token()
    except (KeyError, RuntimeError):
        return current_token().native_token  # Without a loop, anyio raises the error.

"""Callers of one queue whose jobs go out together: while one call is under way, the next gathers.

No caller waits for a timer, and one alone pays for nothing. The rules:

- A caller gets its own handle, or its own error with its own job.
- The call belongs to no caller: cancelling one cancels no other. A job whose caller is gone before
  it was sent is not sent.
- Each caller has its own time limit. A call ends when the first of its callers is out of time, and
  is sent again, under its number, for the others: what was executed is not executed again.
- What is traced goes alone: its span is the caller's.
"""

from __future__ import annotations

import time
from collections import deque
from copy import copy
from time import monotonic
from typing import Any

from anyio import CancelScope, get_cancelled_exc_class
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.wire.job import EncodedJob
from taskbull.errors import TaskbullError
from taskbull.observability.provider import current_tracer
from taskbull.queue.add_bulk import BULK
from taskbull.queue.add_call import Unsent
from taskbull.queue.add_part import BULK_BYTES, Entry
from taskbull.queue.add_single import FirstTry, add_one, encode, not_added
from taskbull.queue.handle import JobHandle, QueueClient, handle
from taskbull.scripts.add import Added
from taskbull.scripts.call import Steps
from taskbull.store import backend
from taskbull.store.async_store import Store
from taskbull.store.deadline import Deadline


class _Member(Struct, frozen=True, eq=False):
    """One caller: its job, its time limit, and where it waits for `Added`."""

    entry: Entry
    job: EncodedJob
    limit: Deadline
    waiter: backend.Waiter


class Group:
    """Adds the single jobs of one event loop to one queue."""

    def __init__(self, client: QueueClient, store: Store, timeout: float | None) -> None:
        self._client = client
        self._store = store
        self._timeout = timeout
        self._new_waiter = backend.waiters()
        self._gathered: deque[_Member] = deque()
        self._busy = False  # a call is under way
        self._turn: backend.Waiter | None = None  # of the task that sends what has gathered
        self._under_way: CancelScope | None = None  # its call

    async def add(self, entry: Entry) -> JobHandle[Any]:
        """Add one job; raises `EnqueueError` if it could not be added in time."""
        job = encode(entry)
        if current_tracer() is not None:
            return await self._store.run(add_one(entry, job), timeout=self._timeout)
        if self._busy:
            return await self._join(entry, job)
        self._busy = True
        try:
            return await self._add_alone(entry, job)
        finally:
            if self._turn is None:
                self._busy = False
            else:
                backend.wake(self._turn)

    async def _add_alone(self, entry: Entry, job: EncodedJob) -> JobHandle[Any]:
        first = FirstTry(entry, job, self._timeout)
        try:
            added = await self._store.run_within(first.call, first.limit)
        except TaskbullError as error:
            return await self._store.go_on(first.rest(), first.limit, error)
        except BaseException:
            first.broken_off()
            raise
        if (handle := first.ended(added)) is not None:
            return handle
        return await self._store.run(add_one(entry, job), timeout=self._timeout)

    async def _join(self, entry: Entry, job: EncodedJob) -> JobHandle[Any]:
        waiter = self._new_waiter()
        member = _Member(entry, job, Deadline(self._timeout, monotonic), waiter)
        self._gathered.append(member)
        if self._turn is None:
            self._turn = self._new_waiter()
            backend.spawn(self._send_gathered)
        try:
            added: Added = await waiter
        except get_cancelled_exc_class():
            if self._under_way is not None and member not in self._gathered:
                self._under_way.cancel()  # it goes on without this job, if that was not sent
            raise
        return handle(self._client, entry.job.name, added, entry.read)

    async def _send_gathered(self) -> None:
        members: list[_Member] = []
        try:
            if self._turn is not None:
                await self._turn
            while members := self._take():
                await self._send(members)
                # Who has an answer now may have another job: on asyncio after one pass of the loop,
                # on trio after two. Without them every second call would be of one job.
                await checkpoint()
                await checkpoint()
        finally:
            for member in (*members, *self._gathered):  # none, unless the event loop is closing
                member.waiter.cancel()
            self._gathered.clear()
            self._busy, self._turn = False, None

    def _take(self) -> list[_Member]:
        """Return those who go together next: all who are still there, within bounds."""
        members: list[_Member] = []
        size = 0
        while self._gathered and len(members) < BULK:
            member = self._gathered[0]
            if not member.waiter.done():
                size += len(member.job.data) + len(member.job.options)
                if members and size > BULK_BYTES:
                    break
                members.append(member)
            self._gathered.popleft()
        return members

    async def _send(self, members: list[_Member]) -> None:
        """Add the jobs of some callers in one call, and tell each what became of its own."""
        adder = self._client.adder
        sequence, sent_ms, is_free = adder.sequences.borrow(), None, True
        waiting = dict(enumerate(members, 1))
        while waiting:
            began_ms = int(time.time() * 1000)
            added = await self._try(waiting, adder.send(_jobs(waiting), sequence, sent_ms))
            if added is None:  # cut short: one of them has left
                sent_ms = sent_ms or began_ms
            elif isinstance(added, Unsent):
                sent_ms, is_free = added.sent_ms, False
                _fail_late(waiting, added)
            elif not added:
                adder.sequences.renew()
                sequence = adder.sequences.borrow()
            else:
                for member, one in zip(waiting.values(), added, strict=True):
                    if not member.waiter.done():
                        member.waiter.set_result(one)
            waiting = {
                place: member for place, member in waiting.items() if not member.waiter.done()
            }
        if is_free:
            adder.sequences.give_back(sequence)

    async def _try(
        self, waiting: dict[int, _Member], steps: Steps[list[Added] | Unsent]
    ) -> list[Added] | Unsent | None:
        """Make the call, while the first has time; None if it was cut short."""
        limit = next(iter(waiting.values())).limit
        try:
            with CancelScope() as self._under_way:
                return await self._store.run(steps, timeout=limit.timeout)
        except Exception as error:  # noqa: BLE001 - each caller gets one of its own
            for member in waiting.values():
                if not member.waiter.done():
                    member.waiter.set_exception(copy(error))
        finally:
            self._under_way = None
        return None


def _jobs(waiting: dict[int, _Member]) -> list[EncodedJob]:
    if len(waiting) == max(waiting):  # all of the call
        return [member.job for member in waiting.values()]
    return [replace(member.job, place=place) for place, member in waiting.items()]


def _fail_late(waiting: dict[int, _Member], unsent: Unsent) -> None:
    """Raise the error where callers are out of time; everywhere, if time was not the reason."""
    first = next(iter(waiting.values())).limit
    for place, member in waiting.items():
        is_late = member.limit.left <= first.last_answer
        if (is_late or first.left > first.last_answer) and not member.waiter.done():
            error = not_added(member.entry, place, unsent)
            error.__cause__ = unsent.error
            member.waiter.set_exception(error)

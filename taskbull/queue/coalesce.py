"""Combine the jobs of many callers in one event loop into few calls per queue.

While calls are in flight, the next jobs are gathered. No caller waits for a timer, and a single
caller has no overhead. The rules:

- Two calls are in flight, each for half of the callers. While Redis adds the jobs of one half, the
  callers of the other half receive their results and prepare their next jobs. With few callers,
  there is one call.
- Each caller gets its own handle, or its own error with its own job.
- A call does not belong to a caller, so cancelling one caller does not cancel the others. If a
  caller is cancelled before its job is sent, the job is not sent.
- Each caller has its own time limit. A call is abandoned when its first caller runs out of time. It
  is sent again under the same number for the others, and Redis does not execute it twice.
- Traced jobs are sent alone, because the span belongs to the caller.
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

from taskbull.core.wire.new_job import EncodedJob, encode_job
from taskbull.errors import TaskbullError
from taskbull.observability.provider import current_tracer
from taskbull.queue.add import Unsent
from taskbull.queue.add_bulk import BULK, BULK_BYTES, Entry, FirstTry, add_one, not_added
from taskbull.queue.handle import JobHandle, QueueClient, handle
from taskbull.queue.stores import stripped
from taskbull.scripts.add import Added
from taskbull.scripts.call import Steps
from taskbull.store import backend
from taskbull.store.async_store import Store
from taskbull.store.delivery import Deadline

FEW = 8
"""Number of callers below which a second call does not pay. A call costs as much as five jobs."""


class _Member(Struct, frozen=True, eq=False):
    """One caller, with its job, its start time and its waiter for `Added`."""

    entry: Entry
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

    async def add(self, entry: Entry) -> JobHandle[Any]:
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

    async def _add_first(self, entry: Entry, job: EncodedJob) -> JobHandle[Any]:
        """Add a job while no call is in flight. The jobs of other callers are gathered."""
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
        under_way = sum([call.size for call in self._calls])
        most = min(BULK, max(FEW, (len(gathered) + under_way + 1) // 2))
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
                self._fail_late(waiting, added)
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

    def _fail_late(self, waiting: dict[int, _Member], unsent: Unsent) -> None:
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

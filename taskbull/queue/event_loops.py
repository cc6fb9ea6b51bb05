"""Waiting for the ends of jobs: any number of waiters, one reader of the queue's stream."""

from __future__ import annotations

import asyncio
import sys
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - in its `__all__`
from contextlib import suppress
from math import inf
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from anyio import CancelScope, Event, current_time, fail_after
from anyio.lowlevel import current_token

from taskbull.core.job import Ending
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.errors import JobNotFound, MaybeExecuted, ServerUnavailable
from taskbull.queue.coalesce import Group
from taskbull.queue.handle import QueueClient
from taskbull.queue.results import LOOK_AGAIN, Told, failure, look, not_in_time, settle, told_by
from taskbull.scripts.call import Steps, again
from taskbull.scripts.events import BLOCK, last_event_id, read_ends
from taskbull.store.address import Address
from taskbull.store.async_store import Begun, Store, ambient_store
from taskbull.store.backend import Waiter, spawn, waiters
from taskbull.store.blocking import BlockingConnection
from taskbull.store.connection import ConnectionOptions

# Waiting for the ends of jobs: any number of waiters, one reader of the queue's stream.


LINGER = 1.0
"""Seconds for which the reader stays when nobody waits: the next one to wait often comes soon."""

_LOOKS_AT_ONCE = 100


class ResultWatch:
    """Watches how the jobs of one queue end, for one event loop.

    Its reader is a task of the event loop, with a connection of its own. It ends, and the watch
    with it, when nobody has waited for a while.
    """

    def __init__(self, keys: QueueKeys, store: Store) -> None:
        self._keys = keys
        self._store = store
        self._new_waiter = waiters()
        self._waiting: dict[str, list[Waiter]] = {}
        self._placed = Event()  # from here on the reader sees everything
        self._scope = CancelScope()
        spawn(self._run)

    @property
    def over(self) -> bool:
        """Whether it has ended: who wants to wait needs a new one."""
        return self._scope.cancel_called

    async def ending(self, job_id: str) -> Ending:
        """Wait until a job has ended; raise `JobNotFound` for one that is not there."""
        waiter = self._new_waiter()
        self._waiting.setdefault(job_id, []).append(waiter)
        self._scope.deadline = inf
        try:
            told = await self._told(job_id, waiter)
        finally:
            self._leave(job_id, waiter)
        if isinstance(told, Exception) and not isinstance(told, JobNotFound):
            raise told
        return await self._store.run(settle(self._keys, job_id, told))

    async def _told(self, job_id: str, waiter: Waiter) -> Any:
        await self._placed.wait()
        if not waiter.done():
            found = await self._store.run(again(look(self._keys, job_id)))
            if isinstance(found, Ending) or (found is not None and not waiter.done()):
                return found
        return await waiter

    def _leave(self, job_id: str, waiter: Waiter) -> None:
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
            except Exception as error:  # noqa: BLE001 - raised where they wait
                for job_id in self._waiting:
                    self._tell(job_id, error)
            finally:
                self._scope.cancel()  # whoever comes now, while it is closed, needs another watch
                self._placed.set()
                await connection.close()

    async def _read(self, connection: BlockingConnection) -> None:
        place: str = await self._store.run(again(last_event_id(self._keys)))
        self._placed.set()
        look_at = current_time() + LOOK_AGAIN
        while True:
            asked_at = current_time()
            ends = await connection.run(read_ends(self._keys, place))
            for job_id, told in told_by(self._keys, ends):
                self._tell(job_id, told)
            now = current_time()
            was_cut = ends.place == place and now - asked_at < BLOCK
            place = ends.place
            if was_cut or now >= look_at:  # the stream may have been trimmed meanwhile
                await self._look_again()
                look_at = current_time() + LOOK_AGAIN

    async def _look_again(self) -> None:
        ids = list(self._waiting)
        for first in range(0, len(ids), _LOOKS_AT_ONCE):
            part = ids[first : first + _LOOKS_AT_ONCE]
            for job_id, told in zip(part, await self._look(part), strict=True):
                if told is not None:
                    self._tell(job_id, told)

    async def _look(self, job_ids: list[str]) -> list[Told | None]:
        while True:
            with suppress(MaybeExecuted, ServerUnavailable):  # looking again does no harm
                return await self._store.run_all([look(self._keys, each) for each in job_ids])

    def _tell(self, job_id: str, told: Told | Exception) -> None:
        for waiter in self._waiting.get(job_id, ()):
            if not waiter.done():
                waiter.set_result(told)


# What belongs to event loops: of each, one store, and what waits or gathers there.
#
# Code without an event loop never comes here: see `Stores`.


T = TypeVar("T")

# A producer's callers have deadlines of a few seconds: it must notice soon that Redis is back.
_PRODUCER = ConnectionOptions(longest_delay=1.0)


class LoopContext:
    """What belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._watches: dict[str, ResultWatch] = {}
        self._groups: dict[QueueClient, Group] = {}

    def group(self, client: QueueClient, timeout: float | None) -> Group:
        """Return what adds the single jobs of this event loop to a queue."""
        group = self._groups.get(client)
        if group is None:
            group = self._groups[client] = Group(client, self.store, timeout)
        return group

    def begin(self, steps: Steps[T]) -> Begun[T]:
        """Begin an operation, behind those that are under way."""
        return Begun(self.store, steps)

    async def ending(self, keys: QueueKeys, job_id: str, timeout: float | None) -> Ending:
        """Wait until a job has completed; the timeout is for all of it.

        Raises `JobFailed` for one that failed, `JobNotFound`, or `TimeoutError`.
        """
        try:
            with fail_after(timeout):
                ending = await self._watch(keys).ending(job_id)
                if ending.state is JobState.FAILED:
                    steps = failure(keys, job_id, ending.failed_reason or "")
                    raise await self.store.run(steps)
        except TimeoutError:
            raise not_in_time(keys, job_id, timeout) from None
        return ending

    def _watch(self, keys: QueueKeys) -> ResultWatch:
        watch = self._watches.get(keys.base)
        if watch is None or watch.over:
            watch = self._watches[keys.base] = ResultWatch(keys, self.store)
        return watch


class EventLoops:
    """Knows what belongs to each event loop; made when first needed."""

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
        # A store holds on to its loop of asyncio, so that none of them would ever be collected.
        for loop in list(self._contexts):
            if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed():
                self._contexts.pop(loop, None)


def _running_loop() -> Any:
    """Return the running event loop, in a tenth of the time that anyio takes."""
    if _get_running_loop() is not None and (task := asyncio.current_task()) is not None:
        return task.get_loop()
    try:
        return sys.modules["trio"].lowlevel.current_trio_token()  # it may be a guest of asyncio's
    except (KeyError, RuntimeError):
        return current_token().native_token  # there is none: anyio says so

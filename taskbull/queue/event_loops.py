"""State per event loop: its store, the waits for results, and the groups of jobs to add.

Code without an event loop does not use this module. See `Stores`.
"""

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
from taskbull.queue.results import (
    CHECK_INTERVAL,
    Found,
    endings_in,
    failure,
    not_in_time,
    read_ending,
    settle,
)
from taskbull.scripts.call import again
from taskbull.scripts.events import BLOCK, last_event_id, read_ends
from taskbull.store.address import Address
from taskbull.store.async_store import Store, ambient_store
from taskbull.store.backend import Waiter, spawn, waiters
from taskbull.store.blocking import BlockingConnection
from taskbull.store.connection import ConnectionOptions

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

    async def ending(self, job_id: str) -> Ending:
        """Wait until a job finishes.

        Raises:
            JobNotFound: If the job does not exist.
        """
        waiter = self._new_waiter()
        self._waiting.setdefault(job_id, []).append(waiter)
        self._scope.deadline = inf
        try:
            found = await self._await_ending(job_id, waiter)
        finally:
            self._leave(job_id, waiter)
        if isinstance(found, Exception) and not isinstance(found, JobNotFound):
            raise found
        return await self._store.run(settle(self._keys, job_id, found))

    async def _await_ending(self, job_id: str, waiter: Waiter) -> Any:
        await self._placed.wait()
        if not waiter.done():
            found = await self._store.run(again(read_ending(self._keys, job_id)))
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
            part = ids[first : first + _LOOKS_AT_ONCE]
            for job_id, found in zip(part, await self._read_endings(part), strict=True):
                if found is not None:
                    self._notify(job_id, found)

    async def _read_endings(self, job_ids: list[str]) -> list[Found | None]:
        while True:
            with suppress(MaybeExecuted, ServerUnavailable):  # Reading again is safe.
                return await self._store.run_all(
                    [read_ending(self._keys, each) for each in job_ids]
                )

    def _notify(self, job_id: str, found: Found | Exception) -> None:
        for waiter in self._waiting.get(job_id, ()):
            if not waiter.done():
                waiter.set_result(found)


# Contexts of event loops


T = TypeVar("T")

# Callers have deadlines of a few seconds, so a producer must notice soon that Redis is back.
_PRODUCER = ConnectionOptions(longest_delay=1.0)


class LoopContext:
    """The store, result watches and job groups of one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._watches: dict[str, ResultWatch] = {}
        self._groups: dict[QueueClient, Group] = {}

    def group(self, client: QueueClient, timeout: float | None) -> Group:
        """Return the group that adds single jobs of this event loop to a queue."""
        group = self._groups.get(client)
        if group is None:
            group = self._groups[client] = Group(client, self.store, timeout)
        return group

    async def ending(self, keys: QueueKeys, job_id: str, timeout: float | None) -> Ending:
        """Wait until a job has completed.

        Args:
            keys: Keys of the queue.
            job_id: Id of the job.
            timeout: Time limit in seconds for the whole wait.

        Raises:
            JobFailed: If the job failed.
            JobNotFound: If the job does not exist.
            TimeoutError: If the job did not finish in time.
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

"""Waiting for the ends of jobs: any number of waiters, one reader of the queue's stream."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

from anyio import CancelScope, Event, current_time

from taskbull.core.job import Ending
from taskbull.core.keys import QueueKeys
from taskbull.errors import JobNotFound, MaybeExecuted, ServerUnavailable
from taskbull.queue.endings import LOOK_AGAIN, Told, look, settle, told_by
from taskbull.scripts.call import again
from taskbull.scripts.events import BLOCK, last_event_id, read_ends
from taskbull.store.async_store import Store
from taskbull.store.backend import Waiter, spawn, waiters
from taskbull.store.blocking import BlockingConnection

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

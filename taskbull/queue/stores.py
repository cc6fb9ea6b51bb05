"""The connections that queues share: one async store per event loop, one sync store per process."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from anyio.lowlevel import current_token

from taskbull.core.keys import QueueKeys
from taskbull.errors import TaskbullError
from taskbull.queue.border import alone
from taskbull.queue.watch import Watch
from taskbull.scripts.steps import Stages
from taskbull.store.aio import Store, ambient_store
from taskbull.store.clients import Where, address_of
from taskbull.store.dialing import ConnectionOptions
from taskbull.store.sync import SyncStore

T = TypeVar("T")

# A producer's callers have deadlines of a few seconds: it must notice soon that Redis is back.
_PRODUCER = ConnectionOptions(longest_delay=1.0)


class _Side:
    """What belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watches: dict[str, Watch] = {}


class Stores:
    """Gives the store that fits where it is asked for; made when first needed."""

    def __init__(self, redis: Where | None = None) -> None:
        self.address = address_of(redis)
        self._by_loop: WeakKeyDictionary[Any, _Side] = WeakKeyDictionary()
        self._sync: SyncStore | None = None

    def running(self) -> Store:
        """Give the store of the running event loop."""
        return self._side().store

    def watch(self, keys: QueueKeys) -> Watch:
        """Give the watch over the ends of a queue's jobs, in the running event loop."""
        side = self._side()
        watch = side.watches.get(keys.base)
        if watch is None or watch.over:
            watch = side.watches[keys.base] = Watch(keys, side.store)
        return watch

    def _side(self) -> _Side:
        loop = current_token().native_token
        if (side := self._by_loop.get(loop)) is None:
            self._forget_closed_loops()
            side = self._by_loop[loop] = _Side(ambient_store(self.address, _PRODUCER))
        return side

    def _forget_closed_loops(self) -> None:
        # A store holds on to its loop of asyncio, so that none of them would ever be collected.
        for loop in list(self._by_loop):
            if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed():
                self._by_loop.pop(loop, None)

    def sync(self) -> SyncStore:
        """Give the store for code without an event loop."""
        if self._sync is None:
            self._sync = SyncStore(self.address)
        return self._sync

    def perform(self, stages: Stages[T], timeout: float | None) -> T:
        """Perform a long operation; `timeout` is for each of its stages."""
        store = self.sync()
        try:
            steps = next(stages)
            while True:
                try:
                    result = store.perform(steps, timeout=timeout)
                except BaseException as error:  # noqa: BLE001 - the operation may know more
                    steps = stages.throw(error)
                else:
                    steps = stages.send(result)
        except StopIteration as end:
            result_of_all: T = end.value
            return result_of_all
        except TaskbullError as error:
            raise alone(error) from error.__cause__

    async def aperform(self, stages: Stages[T], timeout: float | None) -> T:
        """Perform a long operation; `timeout` is for each of its stages."""
        store = self.running()
        try:
            steps = next(stages)
            while True:
                try:
                    result = await store.perform(steps, timeout=timeout)
                except BaseException as error:  # noqa: BLE001 - the operation may know more
                    steps = stages.throw(error)
                else:
                    steps = stages.send(result)
        except StopIteration as end:
            result_of_all: T = end.value
            return result_of_all
        except TaskbullError as error:
            raise alone(error) from error.__cause__

    def close(self) -> None:
        """Close the sync connections that are not in use; the others end with their event loop."""
        if self._sync is not None:
            self._sync.close()

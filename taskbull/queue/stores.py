"""The connections that queues share: one async store per event loop, one sync store per process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from taskbull.core.keys import QueueKeys
from taskbull.errors import TaskbullError
from taskbull.queue.border import alone
from taskbull.queue.sync_watch import SyncWatch
from taskbull.scripts.steps import Stages
from taskbull.store.clients import Where, address_of
from taskbull.store.sync_store import SyncStore

if TYPE_CHECKING:
    from taskbull.queue.loops import Loops, Side
    from taskbull.store.async_store import Store

T = TypeVar("T")


class Stores:
    """Gives the store that fits where it is asked for; made when first needed."""

    def __init__(self, redis: Where | None = None) -> None:
        self.address = address_of(redis)
        self._loops: Loops | None = None
        self._sync: SyncStore | None = None
        self._sync_watches: tuple[int, dict[str, SyncWatch]] = (os.getpid(), {})

    @property
    def here(self) -> Side:
        """What belongs to the running event loop."""
        if self._loops is None:
            # With asyncio, anyio and all it takes a third as long again as the rest of taskbull.
            from taskbull.queue.loops import Loops  # noqa: PLC0415

            self._loops = Loops(self.address)
        return self._loops.running()

    def running(self) -> Store:
        """Give the store of the running event loop."""
        return self.here.store

    def sync(self) -> SyncStore:
        """Give the store for code without an event loop."""
        if self._sync is None:
            self._sync = SyncStore(self.address)
        return self._sync

    def sync_watch(self, keys: QueueKeys) -> SyncWatch:
        """Give the watch over the ends of a queue's jobs, for all threads of this process."""
        process, watches = self._sync_watches
        if process != os.getpid():  # forked: whoever read there does not read here
            process, watches = self._sync_watches = (os.getpid(), {})
        watch = watches.get(keys.base)
        return watch or watches.setdefault(keys.base, SyncWatch(keys, self.sync()))

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

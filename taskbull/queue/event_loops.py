"""What belongs to event loops: of each, one store, and what waits or gathers there.

Code without an event loop never comes here: see `Stores`.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - in its `__all__`
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from anyio import fail_after
from anyio.lowlevel import current_token

from taskbull.core.job import Ending
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.queue.add_group import Group
from taskbull.queue.endings import failure, not_in_time
from taskbull.queue.handle import QueueClient
from taskbull.queue.result_watch import ResultWatch
from taskbull.scripts.call import Steps
from taskbull.store.address import Address
from taskbull.store.async_store import Store, ambient_store
from taskbull.store.begun import Begun
from taskbull.store.dialing import ConnectionOptions

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

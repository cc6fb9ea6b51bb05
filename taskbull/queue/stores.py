"""Connections that queues share, and the code that runs operations on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.errors import ConnectionLost, MaybeExecuted, NotRecorded, ServerRefused, TaskbullError
from taskbull.queue.results import SyncResultWatch
from taskbull.scripts.call import AnySteps, Request
from taskbull.store.address import Where, address_of
from taskbull.store.sync_store import SyncStore

if TYPE_CHECKING:
    from taskbull.queue.event_loops import EventLoops, LoopContext
    from taskbull.store.async_store import Store


# Errors without taskbull's internal tracebacks


_OF_REDIS = (ConnectionLost, MaybeExecuted, ServerRefused)

T = TypeVar("T")
E = TypeVar("E", bound=TaskbullError)


def stripped(error: E) -> E:
    """Return an error without its internal traceback, to be raised again.

    The message is complete. Forty lines of internal calls and previous errors would hide it. Raise
    the result `from error.__cause__`. A cause from the caller's code is kept. A Redis error moves
    from the cause to `__context__`, where it can still be inspected.
    """
    cause = error.__cause__
    if isinstance(cause, _OF_REDIS):
        error.__cause__, error.__context__ = None, cause
    return error.with_traceback(None)


# Stores: one async store per event loop, one sync store per process


class Detour(Protocol):
    """Takes jobs in place of Redis."""

    refusal: str
    """Message of the error for all other calls."""

    def add(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[Any]:
        """Take the jobs of a queue and return their handles."""
        ...

    async def aadd(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[Any]:
        """Take the jobs of a queue and return their handles."""
        ...


class Stores:
    """Provides the store for the current context. Stores are created when needed."""

    def __init__(self, redis: Where | None = None) -> None:
        self.address = address_of(redis)
        self._loops: EventLoops | None = None
        self._sync: SyncStore | None = None
        self._sync_result_watches: tuple[int, dict[str, SyncResultWatch]] = (os.getpid(), {})
        self.detour: Detour | None = None
        """Takes the place of Redis in tests and in inline mode."""

    @property
    def loop(self) -> LoopContext:
        """The context of the running event loop."""
        if self.detour is not None:
            raise NotRecorded(self.detour.refusal)
        if self._loops is None:
            # Importing asyncio and anyio takes a third as long again as the rest of taskbull.
            from taskbull.queue.event_loops import EventLoops  # noqa: PLC0415

            self._loops = EventLoops(self.address)
        return self._loops.running()

    def async_store(self) -> Store:
        """Return the store of the running event loop."""
        return self.loop.store

    def sync_store(self) -> SyncStore:
        """Return the store for code without an event loop."""
        if self.detour is not None:
            raise NotRecorded(self.detour.refusal)
        if self._sync is None:
            self._sync = SyncStore(self.address)
        return self._sync

    def sync_result_watch(self, keys: QueueKeys) -> SyncResultWatch:
        """Return the result watch of a queue, which all threads of this process share."""
        process, watches = self._sync_result_watches
        if process != os.getpid():  # After a fork, the reading thread does not exist here.
            process, watches = self._sync_result_watches = (os.getpid(), {})
        watch = watches.get(keys.base)
        return watch or watches.setdefault(keys.base, SyncResultWatch(keys, self.sync_store()))

    def run(self, operation: Request[T] | AnySteps[T], timeout: float | None) -> T:
        """Run an operation without an event loop. `timeout` applies to each of its requests."""
        try:
            return self.sync_store().run(operation, timeout=timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def arun(self, operation: Request[T] | AnySteps[T], timeout: float | None) -> T:
        """Run an operation in the running event loop. `timeout` applies to each request."""
        try:
            return await self.loop.store.run(operation, timeout=timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def close(self) -> None:
        """Close idle sync connections. Async connections are closed with their event loop."""
        if self._sync is not None:
            self._sync.close()

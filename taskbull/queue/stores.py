"""Connections that queues share, and the code that runs operations on them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from taskbull.core.keys import QueueKeys
from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused, TaskbullError
from taskbull.queue.results import SyncResultWatch
from taskbull.scripts.call import Finish, Stages, Start
from taskbull.store.address import Where, address_of
from taskbull.store.sync_store import SyncPendingOperation, SyncStore

if TYPE_CHECKING:
    from taskbull.queue.event_loops import EventLoops, LoopContext
    from taskbull.store.async_store import PendingOperation, Store


# Running generators, shared by sync and async code


Q = TypeVar("Q")
T = TypeVar("T")


class Driver(Generic[Q, T]):
    """Runs a generator until it returns.

        driver = Driver(operation)
        while driver.asks:
            with driver:
                driver.answer = await ask(driver.question)
        return driver.result

    An exception in the block is raised in the generator, which may handle it.
    """

    question: Q
    result: T

    def __init__(self, asking: Generator[Q, Any, T]) -> None:
        self.asks = True
        self.answer: Any = None
        self._asking = asking
        self._go_on(partial(next, asking))

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None:
            self._go_on(partial(self._asking.send, self.answer))
        else:
            self._go_on(partial(self._asking.throw, error))
        return True

    def _go_on(self, step: Callable[[], Q]) -> None:
        try:
            self.question = step()
        except StopIteration as end:
            self.asks = False
            self.result = end.value


# Errors without taskbull's internal tracebacks


_OF_REDIS = (ConnectionLost, MaybeExecuted, ServerRefused)

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


class Stores:
    """Provides the store for the current context. Stores are created when needed."""

    def __init__(self, redis: Where | None = None) -> None:
        self.address = address_of(redis)
        self._loops: EventLoops | None = None
        self._sync: SyncStore | None = None
        self._sync_result_watches: tuple[int, dict[str, SyncResultWatch]] = (os.getpid(), {})

    @property
    def loop(self) -> LoopContext:
        """The context of the running event loop."""
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

    def perform(self, stages: Stages[T], timeout: float | None) -> T:
        """Run an operation in stages. `timeout` applies to each stage."""
        store = self.sync_store()
        under_way: deque[SyncPendingOperation[Any]] = deque()
        try:
            driver = Driver(stages)
            while driver.asks:
                with driver:
                    match driver.question:
                        case Start(steps):
                            behind = under_way[-1] if under_way else None
                            begun = driver.answer = store.start(steps, behind, timeout=timeout)
                            under_way.append(begun)
                        case Finish(given_up):
                            begun = under_way.popleft()
                            driver.answer = store.finish(begun, timeout=timeout, given_up=given_up)
            return driver.result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        finally:
            for begun in under_way:
                begun.leave()

    async def aperform(self, stages: Stages[T], timeout: float | None) -> T:
        """Run an operation in stages. `timeout` applies to each stage."""
        loop = self.loop
        under_way: deque[PendingOperation[Any]] = deque()
        try:
            driver = Driver(stages)
            while driver.asks:
                with driver:
                    match driver.question:
                        case Start(steps):
                            begun = driver.answer = loop.begin(steps)
                            under_way.append(begun)
                        case Finish(given_up):
                            begun = under_way.popleft()
                            driver.answer = await begun.finish(timeout=timeout, given_up=given_up)
            return driver.result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        finally:
            for begun in under_way:
                begun.leave()

    def close(self) -> None:
        """Close idle sync connections. Async connections are closed with their event loop."""
        if self._sync is not None:
            self._sync.close()

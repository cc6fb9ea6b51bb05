"""Running a generator that asks: the same for those who await the answers and those who do not."""

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
from taskbull.store.sync_store import SyncBegun, SyncStore

if TYPE_CHECKING:
    from taskbull.queue.event_loops import EventLoops, LoopContext
    from taskbull.store.async_store import Begun, Store


# Running a generator that asks: the same for those who await the answers and those who do not.


Q = TypeVar("Q")
T = TypeVar("T")


class Driver(Generic[Q, T]):
    """Runs a generator until it returns.

        driver = Driver(operation)
        while driver.asks:
            with driver:
                driver.answer = await ask(driver.question)
        return driver.result

    What is raised in the block is raised in the generator, which may know better.
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


# What a caller of taskbull sees of an error: the error, and not our way to it.


_OF_REDIS = (ConnectionLost, MaybeExecuted, ServerRefused)

E = TypeVar("E", bound=TaskbullError)


def stripped(error: E) -> E:
    """Return an error of ours without the way that it came inside of taskbull, to be raised anew.

    Its message says all, and forty lines of our own calls and of the errors that led to it would
    bury that. So it is raised `from error.__cause__`, which is left only if it is of the caller's
    own making; trouble with Redis moves to `__context__`, for whoever looks for it.
    """
    cause = error.__cause__
    if isinstance(cause, _OF_REDIS):
        error.__cause__, error.__context__ = None, cause
    return error.with_traceback(None)


# The connections that queues share: one async store per event loop, one sync store per process.


class Stores:
    """Knows the store that fits where it is asked for; made when first needed."""

    def __init__(self, redis: Where | None = None) -> None:
        self.address = address_of(redis)
        self._loops: EventLoops | None = None
        self._sync: SyncStore | None = None
        self._sync_result_watches: tuple[int, dict[str, SyncResultWatch]] = (os.getpid(), {})

    @property
    def loop(self) -> LoopContext:
        """What belongs to the running event loop."""
        if self._loops is None:
            # With asyncio, anyio and all it takes a third as long again as the rest of taskbull.
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
        """Return the watch over the ends of a queue's jobs, for all threads of this process."""
        process, watches = self._sync_result_watches
        if process != os.getpid():  # forked: whoever read there does not read here
            process, watches = self._sync_result_watches = (os.getpid(), {})
        watch = watches.get(keys.base)
        return watch or watches.setdefault(keys.base, SyncResultWatch(keys, self.sync_store()))

    def perform(self, stages: Stages[T], timeout: float | None) -> T:
        """Perform a long operation; `timeout` is for each of its stages."""
        store = self.sync_store()
        under_way: deque[SyncBegun[Any]] = deque()
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
        """Perform a long operation; `timeout` is for each of its stages."""
        loop = self.loop
        under_way: deque[Begun[Any]] = deque()
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
        """Close the sync connections that are not in use; the others end with their event loop."""
        if self._sync is not None:
            self._sync.close()

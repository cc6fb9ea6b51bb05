"""The threads for functions that block: a fixed number, made when first needed.

Results come back in gathered batches, one wake-up of the event loop for many: 1.4 µs per call,
where a hand-over of its own for each (`to_thread`) costs 70 to 110.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from anyio import get_cancelled_exc_class
from msgspec import Struct

from taskbull.store.backend import Waiter, poster, waiters
from taskbull.worker.fork import end_child_of


class Stoppable(Protocol):
    """A clock that can be stopped."""

    def stop(self) -> None:
        """Let it stand still."""
        ...

    def go_on(self) -> None:
        """Let it run again."""
        ...


class _Errand(Struct, eq=False):
    """One call of a function, on its way through a thread."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    waiter: Waiter
    begun: bool = False
    abandoned: bool = False
    counted: bool = False
    """Whether it is among the abandoned ones: a thread was at it."""
    collected: bool = False
    """Whether its end is known in the event loop."""
    clock: Stoppable | None = None
    """What is stopped until a thread is free."""
    value: Any = None
    error: BaseException | None = None


class ThreadPool:
    """Runs functions in at most `size` threads at once, for one event loop.

    A thread cannot be stopped. If whoever waits for one is cancelled, the thread is *abandoned*: it
    is counted, and another takes its place, but not more often than there are threads: a function
    that always hangs must not eat the machine.
    """

    def __init__(
        self, size: int, told: Callable[[ThreadPool, Context], None] | None = None
    ) -> None:
        self.size = size
        self._told = told  # given the context of each call that is abandoned
        self.abandoned = 0
        """How many threads run a function for which nobody waits any more."""
        self._threads = 0
        self._busy = 0
        self._queue: SimpleQueue[_Errand | None] = SimpleQueue()
        self._begun: deque[_Errand] = deque()
        self._ended: deque[_Errand] = deque()
        self._posted = False
        self._post = poster()
        self._new_waiter = waiters()
        self._process = os.getpid()

    @property
    def busy(self) -> int:
        """How many functions run or wait for a thread, abandoned ones not counted."""
        return self._busy

    async def run(
        self, function: Callable[..., Any], /, *args: Any, clock: Stoppable | None = None
    ) -> Any:
        """Run a function in a thread, in the context of the caller, and give what it gives.

        The clock stands still while the function waits for a thread.
        """
        errand = _Errand(function, args, copy_context(), self._new_waiter())
        self._busy += 1
        another = self._threads < min(self._busy + self.abandoned, self._limit)
        self._threads += another
        if clock is not None and self._busy + self.abandoned > self._threads:
            errand.clock = clock
            clock.stop()
        self._queue.put(errand)
        if another:
            Thread(target=self._work, name=f"taskbull-{self._threads}", daemon=True).start()
        try:
            await errand.waiter
        except get_cancelled_exc_class():
            if not errand.collected:
                self._abandon(errand)
            raise
        if errand.error is not None:
            raise errand.error
        return errand.value

    def close(self) -> None:
        """Let the threads end: idle ones at once, the others after what they do."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0

    @property
    def _limit(self) -> int:
        return self.size + min(self.abandoned, self.size)

    def _abandon(self, errand: _Errand) -> None:
        # The thread sets `begun` before it looks at `abandoned`, and here it is the other way
        # round: one of the two sees the other.
        errand.abandoned = True
        self._busy -= 1
        if errand.begun:
            errand.counted = True
            self.abandoned += 1
            if self._told is not None:
                self._told(self, errand.context)

    def _work(self) -> None:
        while (errand := self._queue.get()) is not None:
            errand.begun = True
            if errand.clock is not None:
                self._begun.append(errand)
                self._tell()
            if not errand.abandoned:
                try:
                    errand.value = errand.context.run(errand.function, *errand.args)
                except BaseException as error:  # noqa: BLE001 - raised where the caller waits
                    errand.error = error
                end_child_of(self._process, errand.error)
            self._ended.append(errand)
            self._tell()
            del errand

    def _tell(self) -> None:
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # the event loop is over: nobody waits
                self._post(self._collect)

    def _collect(self) -> None:
        self._posted = False
        while self._begun:
            errand = self._begun.popleft()
            if errand.clock is not None and not errand.abandoned:
                errand.clock.go_on()
        while self._ended:
            errand = self._ended.popleft()
            errand.collected = True
            if errand.abandoned:
                self._return(errand)
                continue
            self._busy -= 1
            if not errand.waiter.done():
                errand.waiter.set_result(None)

    def _return(self, errand: _Errand) -> None:
        """Note that an abandoned thread is free again; send one away if there are too many."""
        if errand.counted:
            self.abandoned -= 1
        if self._threads > self._limit:
            self._threads -= 1
            self._queue.put(None)

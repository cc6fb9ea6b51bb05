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
from time import monotonic
from typing import Any, Protocol

from anyio import get_cancelled_exc_class
from msgspec import Struct

from taskbull.core.outcome import GiveBack, Outcome
from taskbull.store.backend import Waiter, poster, waiters, wake
from taskbull.worker.fork import end_child_of
from taskbull.worker.run import Run

# The threads for functions that block: a fixed number, made when first needed.
#
# Results come back in gathered batches, one wake-up of the event loop for many: 1.4 µs per call,
# where a hand-over of its own for each (`to_thread`) costs 70 to 110.


class Stoppable(Protocol):
    """A clock that can be stopped."""

    def stop(self) -> None:
        """Stop it."""
        ...

    def go_on(self) -> None:
        """Start it again."""
        ...


class CallOwner(Protocol):
    """Whoever may want to take a call back."""

    call: Any
    """The call, as long as it is not over: see `Run`."""


class Errand(Struct, eq=False):
    """One call of a function, on its way through a thread."""

    pool: ThreadPool
    function: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    waiter: Waiter | None = None
    """Where somebody waits for its end, unless it was started: then there are these two."""
    told: Callable[[Errand], None] | None = None
    will_collect: Callable[[int], bool] | None = None
    begun: bool = False
    withdrawn: Exception | None = None
    """What it raises because it was taken back before a thread had begun it."""
    abandoned: bool = False
    counted: bool = False
    """Whether it is among the abandoned ones: a thread was at it."""
    collected: bool = False
    """Whether its end is known in the event loop."""
    clock: Stoppable | None = None
    """What is stopped until a thread is free."""
    value: Any = None
    error: BaseException | None = None
    ended_at: float = 0.0
    """When the thread was done with it, by `time.monotonic`; 0: none has been at it."""

    def withdraw(self, error: Exception) -> None:
        """Take it back if no thread has begun it, and let it raise this; else leave it alone."""
        # The thread sets `begun` before it looks at `withdrawn`, and here it is the other way
        # round: if it has not begun yet, it will not run the function.
        self.withdrawn = error
        if not self.begun:
            self.pool.give_up(self)


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
        self._queue: SimpleQueue[Errand | None] = SimpleQueue()
        self._begun: deque[Errand] = deque()
        self.ended: deque[Errand] = deque()
        """Calls whose end the event loop has not taken in: see `collect`."""
        self._posted = False
        self._collecting = False
        self._post = poster()
        self._new_waiter = waiters()
        self._process = os.getpid()

    @property
    def busy(self) -> int:
        """How many functions run or wait for a thread, abandoned ones not counted."""
        return self._busy

    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        clock: Stoppable | None = None,
        owner: CallOwner | None = None,
    ) -> Any:
        """Run a function in a thread, in the context of the caller, and return what it returns.

        The clock stands still while the function waits for a thread, and so long its owner may
        withdraw the call.
        """
        call = Errand(self, function, args, copy_context(), waiter := self._new_waiter())
        if owner is not None:
            owner.call = call
        self._put(call, clock)
        try:
            await waiter
        except get_cancelled_exc_class():
            if not (call.collected or call.abandoned):  # else its end has come at the same instant
                self.abandon(call)
                raise
        finally:
            if owner is not None:
                owner.call = None
        if call.error is not None:
            raise call.error
        return call.value

    def start(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        told: Callable[[Errand], None],
        will_collect: Callable[[int], bool],
    ) -> Errand:
        """Run a function in a thread, in the context of the caller, who does not wait for it.

        `told` is called with the call, in the event loop, when it has ended or was withdrawn; not
        if it is abandoned. The thread asks `will_collect` whether somebody is going to `collect` in
        a moment, although so many calls have ended: then it does not wake the event loop.
        """
        call = Errand(self, function, args, copy_context(), None, told, will_collect)
        self._put(call)
        return call

    def give_up(self, call: Errand) -> None:
        """Let whoever waits for a call know that it was withdrawn before it had begun."""
        waiter = call.waiter
        if call.abandoned or (call.collected if waiter is None else waiter.done()):
            return
        call.abandoned = True
        self._busy -= 1
        call.error = call.withdrawn
        self._end(call)

    def abandon(self, call: Errand) -> None:
        """Forget a call that has not ended: if a thread is at it, that is told."""
        # The thread sets `begun` before it looks at `abandoned`, and here it is the other way
        # round: one of the two sees the other.
        call.abandoned = True
        self._busy -= 1
        if call.begun:
            call.counted = True
            self.abandoned += 1
            if self._told is not None:
                self._told(self, call.context)

    def collect(self) -> None:
        """Take in what the threads have done since the last time."""
        if self._collecting:  # whoever is told of an end may come here for more
            return
        self._collecting = True
        try:
            self._take_in()
        finally:
            self._collecting = False

    def close(self) -> None:
        """End the threads: idle ones at once, the others after what they do."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0

    @property
    def _limit(self) -> int:
        return self.size + min(self.abandoned, self.size)

    def _put(self, call: Errand, clock: Stoppable | None = None) -> None:
        self._busy += 1
        another = self._threads < min(self._busy + self.abandoned, self._limit)
        self._threads += another
        if clock is not None and self._busy + self.abandoned > self._threads:
            call.clock = clock
            clock.stop()
        self._queue.put(call)
        if another:
            Thread(target=self._work, name=f"taskbull-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            call.begun = True
            if call.clock is not None:
                self._begun.append(call)
                self._tell()
            if call.withdrawn is not None:
                call.error = call.withdrawn
            elif not call.abandoned:
                try:
                    call.value = call.context.run(call.function, *call.args)
                except BaseException as error:  # noqa: BLE001 - raised where the caller waits
                    call.error = error
                end_child_of(self._process, call.error)
            call.ended_at = monotonic()
            self.ended.append(call)  # before it asks, so that who has promised to look finds it
            if call.will_collect is None or not call.will_collect(len(self.ended)):
                self._tell()
            del call

    def _tell(self) -> None:
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # the event loop is over: nobody waits
                self._post(self._heed)

    def _heed(self) -> None:
        self._posted = False
        self.collect()

    def _take_in(self) -> None:
        while self._begun:
            call = self._begun.popleft()
            if call.clock is not None and not call.abandoned:
                call.clock.go_on()
        while self.ended:
            call = self.ended.popleft()
            call.collected = True
            if call.abandoned:
                self._return(call)
                continue
            self._busy -= 1
            self._end(call)

    @staticmethod
    def _end(call: Errand) -> None:
        if call.told is not None:
            call.told(call)
        elif call.waiter is not None and not call.waiter.done():
            call.waiter.set_result(None)

    def _return(self, call: Errand) -> None:
        """Note that an abandoned thread is free again; send one away if there are too many."""
        if call.counted:
            self.abandoned -= 1
        if self._threads > self._limit:
            self._threads -= 1
            self._queue.put(None)


# Jobs whose plain function runs in a thread while no slot waits for it.
#
# The slot goes on with the next job at once, and no task is woken for its end. That, and waking
# the event loop only when it could do something, saves 30 to 40 % of the CPU that a job takes
# (asyncio, 40 threads, functions of 1 ms: 67 µs instead of 108), half of it each.


class Unattended:
    """Leaves functions to the threads, and passes on what becomes of the jobs of one queue."""

    def __init__(
        self,
        threads: ThreadPool,
        *,
        settle: Callable[[Run, Any, BaseException | None], Outcome],
        decided: Callable[[Run, Outcome], None],
        will_collect: Callable[[int], bool],
    ) -> None:
        """Make it; `settle` decides by what a function returned or raised."""
        self._threads = threads
        self._settle = settle
        self._decided = decided
        self._will_collect = will_collect
        self._calls: dict[Errand, Run] = {}
        self._waiting: list[Waiter] = []
        self._new_waiter = waiters()

    def start(self, run: Run, function: Callable[..., Any], *args: Any) -> None:
        """Have a job's function called in a thread."""
        run.scope = None  # the slot takes others into it
        call = self._threads.start(function, args, self._ended, self._will_collect)
        run.call = call
        self._calls[call] = run

    async def until_over(self) -> None:
        """Wait until all functions have ended."""
        while self._calls:
            self._waiting.append(waiter := self._new_waiter())
            await waiter

    def give_back(self) -> None:
        """Give back the jobs whose functions have not ended."""
        self._threads.collect()
        while self._calls:
            call, run = self._calls.popitem()
            run.call = None
            self._threads.abandon(call)
            self._decided(run, GiveBack())

    def _ended(self, call: Errand) -> None:
        run = self._calls.pop(call)
        run.call = None
        outcome = self._settle(run, call.value, call.error)
        run.duration = (call.ended_at or monotonic()) - run.began
        self._decided(run, outcome)
        while self._waiting and not self._calls:
            wake(self._waiting.pop())

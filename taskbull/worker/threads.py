"""Run sync functions in a fixed number of threads, which are created on demand.

Threads return results in batches, with one wake-up of the event loop for many. That costs 1.4 µs
per call; a separate hand-over for each (`to_thread`) costs 70 to 110 µs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from types import FrameType
from typing import Any, Final

from anyio import CancelScope, get_cancelled_exc_class
from msgspec import Struct

from taskbull.core.outcome import Outcome, Release
from taskbull.store.backend import Waiter, poster, waiters, wake
from taskbull.worker.run import Run, end_child_of, loop_offset
from taskbull.worker.running_job import job_thread

# Time limits.


THREAD_PATIENCE: Final = 60.0
"""Seconds that a job with a timeout waits for a free thread or process before it is delayed."""


class TimeLimit:
    """Cancels a scope when an attempt exceeds its timeout.

    Time spent waiting for a free thread or process does not count.
    """

    __slots__ = ("_left", "_loop_offset", "_scope", "stopped")

    def __init__(self, scope: CancelScope, seconds: float) -> None:
        self._scope = scope
        self._left = seconds
        self._loop_offset = loop_offset()
        self.stopped = False
        """True while the attempt waits for a free thread or process."""
        scope.deadline = self._now() + seconds

    def stop(self) -> None:
        """Pause the clock."""
        now = self._now()
        self._left = self._scope.deadline - now
        self._scope.deadline = now + THREAD_PATIENCE
        self.stopped = True

    def go_on(self) -> None:
        """Resume the clock."""
        self._scope.deadline = self._now() + self._left
        self.stopped = False

    def _now(self) -> float:
        """Return the event loop's time. Unlike anyio's function, it also works in a callback."""
        return monotonic() + self._loop_offset


# The thread pool.


class ThreadCall(Struct, eq=False):
    """One function call, queued or running in a thread."""

    pool: ThreadPool
    function: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    waiter: Waiter | None = None
    """The waiter of `run`. A call made by `start` has the next two fields instead."""
    on_done: Callable[[ThreadCall], None] | None = None
    will_collect: Callable[[int], bool] | None = None
    begun: bool = False
    withdrawn: Exception | None = None
    """The error to raise because the call was withdrawn before a thread started it."""
    abandoned: bool = False
    counted: bool = False
    """True if it counts as abandoned: a thread had started it."""
    collected: bool = False
    """True once the event loop has collected it."""
    clock: TimeLimit | None = None
    """The clock to pause until a thread is free."""
    value: Any = None
    error: BaseException | None = None
    ended_at: float = 0.0
    """Time when the thread finished it, by `time.monotonic`, or 0 if no thread has."""

    def withdraw(self, error: Exception) -> None:
        """Withdraw the call with this error if no thread has started it; otherwise do nothing."""
        # The thread sets `begun` before it reads `withdrawn`, and this method does the reverse. If
        # `begun` is not set yet, the thread will not run the function.
        self.withdrawn = error
        if not self.begun:
            self.pool.give_up(self)


class ThreadPool:
    """A pool that runs functions in up to `size` concurrent threads, for one event loop.

    A thread cannot be stopped. If the caller that waits for it is cancelled, the thread is
    *abandoned*: it is counted, and another thread replaces it. There are at most `size`
    replacements, so that a function that always hangs does not exhaust the machine.
    """

    def __init__(
        self, size: int, on_abandoned: Callable[[ThreadPool, Context], None] | None = None
    ) -> None:
        self.size = size
        self._on_abandoned = on_abandoned  # called with the context of each abandoned call
        self.abandoned = 0
        """Number of threads that run an abandoned function."""
        self._threads = 0
        self._busy = 0
        self._queue: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._begun: deque[ThreadCall] = deque()
        self.ended: deque[ThreadCall] = deque()
        """Finished calls that the event loop has not collected yet. See `collect`."""
        self._posted = False
        self._collecting = False
        self._post = poster()
        self._new_waiter = waiters()
        self._process = os.getpid()

    @property
    def busy(self) -> int:
        """Number of functions that run or wait for a thread, without abandoned ones."""
        return self._busy

    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        clock: TimeLimit | None = None,
        owner: Run | None = None,
    ) -> Any:
        """Run a function in a thread, in the caller's context, and return its result.

        The clock is paused while the function waits for a thread. During that time its owner may
        withdraw the call.
        """
        call = ThreadCall(self, function, args, copy_context(), waiter := self._new_waiter())
        if owner is not None:
            owner.call = call
        self._put(call, clock)
        try:
            await waiter
        except get_cancelled_exc_class():
            if not (call.collected or call.abandoned):  # Otherwise it finished at the same instant.
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
        on_done: Callable[[ThreadCall], None],
        will_collect: Callable[[int], bool],
    ) -> ThreadCall:
        """Run a function in a thread, in the caller's context, without waiting for it.

        The completion callback is called in the event loop when the call has finished or was
        withdrawn, but not if it was abandoned. The thread calls `will_collect` with the number of
        finished calls. If that returns True, `collect` is about to be called, and the thread does
        not wake the event loop.
        """
        call = ThreadCall(self, function, args, copy_context(), None, on_done, will_collect)
        self._put(call)
        return call

    def give_up(self, call: ThreadCall) -> None:
        """Finish a call that was withdrawn before a thread started it."""
        waiter = call.waiter
        if call.abandoned or (call.collected if waiter is None else waiter.done()):
            return
        call.abandoned = True
        self._busy -= 1
        call.error = call.withdrawn
        self._end(call)

    def abandon(self, call: ThreadCall) -> None:
        """Stop waiting for an unfinished call. If a thread is running it, count and report it."""
        # The thread sets `begun` before it reads `abandoned`, and this method does the reverse. At
        # least one of the two therefore sees the other's write.
        call.abandoned = True
        self._busy -= 1
        if call.begun:
            call.counted = True
            self.abandoned += 1
            if self._on_abandoned is not None:
                self._on_abandoned(self, call.context)

    def collect(self) -> None:
        """Process the calls that threads have started and finished since the last time."""
        if self._collecting:  # A completion callback may call `collect` again.
            return
        self._collecting = True
        try:
            self._take_in()
        finally:
            self._collecting = False

    def close(self) -> None:
        """Stop the threads: idle ones immediately, the others after their current call."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0

    @property
    def _limit(self) -> int:
        return self.size + min(self.abandoned, self.size)

    def _put(self, call: ThreadCall, clock: TimeLimit | None = None) -> None:
        self._busy += 1
        another = self._threads < min(self._busy + self.abandoned, self._limit)
        self._threads += another
        if clock is not None and self._busy + self.abandoned > self._threads:
            call.clock = clock
            clock.stop()
        self._queue.put(call)
        if another:
            Thread(target=self._run_thread, name=f"taskbull-{self._threads}", daemon=True).start()

    def _run_thread(self) -> None:
        with job_thread():
            self.run_calls()

    def run_calls(self) -> None:
        """Run calls until `close`. The stacks of jobs begin after the frame of this function."""
        while (call := self._queue.get()) is not None:
            call.begun = True
            if call.clock is not None:
                self._begun.append(call)
                self._wake_loop()
            if call.withdrawn is not None:
                call.error = call.withdrawn
            elif not call.abandoned:
                try:
                    call.value = call.context.run(call.function, *call.args)
                except BaseException as error:  # noqa: BLE001 - re-raised in the caller
                    call.error = error
                end_child_of(self._process, call.error)
            call.ended_at = monotonic()
            # Append before asking, so that the `collect` promised by `will_collect` finds the call.
            self.ended.append(call)
            if call.will_collect is None or not call.will_collect(len(self.ended)):
                self._wake_loop()
            del call

    def _wake_loop(self) -> None:
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # The event loop is closed.
                self._post(self._on_wakeup)

    def _on_wakeup(self) -> None:
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
    def _end(call: ThreadCall) -> None:
        if call.on_done is not None:
            call.on_done(call)
        elif call.waiter is not None and not call.waiter.done():
            call.waiter.set_result(None)

    def _return(self, call: ThreadCall) -> None:
        """Record that an abandoned thread is free again, and stop one if there are too many."""
        if call.counted:
            self.abandoned -= 1
        if self._threads > self._limit:
            self._threads -= 1
            self._queue.put(None)


# Detached threads. The slot does not wait for a sync function, but takes the next job immediately,
# and no task is woken when the function finishes.
#
# That, and waking the event loop only when it has something to do, saves 30 to 40 % of a job's CPU
# time, half of it each (asyncio, 40 threads, functions of 1 ms: 67 µs instead of 108).


class ThreadDispatcher:
    """The jobs of one queue whose functions run in threads while no slot waits for them."""

    def __init__(
        self,
        threads: ThreadPool,
        *,
        settle: Callable[[Run, Any, BaseException | None], Outcome],
        decided: Callable[[Run, Outcome], None],
        will_collect: Callable[[int], bool],
    ) -> None:
        """Create it; `settle` returns the outcome for a function's result or error."""
        self._threads = threads
        self._settle = settle
        self._decided = decided
        self._will_collect = will_collect
        self._calls: dict[ThreadCall, Run] = {}
        self._waiting: list[Waiter] = []
        self._new_waiter = waiters()

    def start(self, run: Run, function: Callable[..., Any], *args: Any) -> None:
        """Call a job's function in a thread."""
        run.scope = None  # The slot runs other jobs in that scope.
        call = self._threads.start(function, args, self._ended, self._will_collect)
        run.call = call
        self._calls[call] = run

    async def until_over(self) -> None:
        """Wait until all functions have finished."""
        while self._calls:
            self._waiting.append(waiter := self._new_waiter())
            await waiter

    def give_back(self) -> None:
        """Release the jobs whose functions have not finished."""
        self._threads.collect()
        while self._calls:
            call, run = self._calls.popitem()
            run.call = None
            self._threads.abandon(call)
            self._decided(run, Release())

    def _ended(self, call: ThreadCall) -> None:
        run = self._calls.pop(call)
        run.call = None
        outcome = self._settle(run, call.value, call.error)
        run.duration = (call.ended_at or monotonic()) - run.began
        self._decided(run, outcome)
        while self._waiting and not self._calls:
            wake(self._waiting.pop())


# Stacks.


_frames_lock = Lock()

# This is the only way to inspect another thread's stack.
_current_frames = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's id. Thread-safe."""
    # Before 3.12, Python can deadlock if garbage is collected while it makes this list: it holds
    # the lock of the list of threads, and a finalizer may end or start one (gh-106883).
    with _frames_lock:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return _current_frames()
        finally:
            if was_enabled:
                gc.enable()

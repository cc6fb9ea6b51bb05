"""The process pool of a worker, which runs functions that compute, hang or crash.

`ProcessPool` starts and replaces the processes, and `Roster` assigns calls to them. Each process
has a thread (`ProcessMonitor`) that reports to the event loop through a `Mailbox`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from itertools import count
from math import inf
from threading import Lock
from time import monotonic
from typing import Final

from anyio import CancelScope, current_time, get_cancelled_exc_class, move_on_after

from taskbull.errors import (
    ConfigurationError,
    MaybeExecuted,
    ProcessUnavailable,
    TaskbullError,
)
from taskbull.store.backend import Waiter, poster, waiters, wake
from taskbull.worker.pool.messages import Ask, Ended, Fault, Reply, encode
from taskbull.worker.pool.pool_plan import Gone, PoolPlan, ProcessEnd
from taskbull.worker.pool.results import (
    End,
    PoolCall,
    ProcessSlot,
    Result,
    has_value,
    note_halted,
    perform,
    results_of,
)
from taskbull.worker.pool.supervise import LEAVING, ProcessMonitor
from taskbull.worker.running_job import RunningJob
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.threads import Stoppable


class Mailbox:
    """A queue of callbacks from other threads, run by the event loop that created it.

    Callbacks that arrive together share one wake-up of the loop.
    """

    def __init__(self) -> None:
        self._actions: deque[Callable[[], object]] = deque()
        self._posted = False
        self._post = poster()

    def post(self, action: Callable[[], object]) -> None:
        """Schedule a callback on the event loop. Thread-safe; ignored after the loop is closed."""
        self._actions.append(action)
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # The event loop is closed.
                self._post(self._empty)

    def _empty(self) -> None:
        self._posted = False
        while self._actions:
            self._actions.popleft()()


class Roster:
    """The assignment of calls to processes, shared by the event loop and the process threads.

    A call waits if no process is idle. The thread of the next free process then takes it, without
    a detour through the event loop.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        """Lock that must be held only briefly, because the event loop waits for it."""
        self._idle: list[ProcessSlot] = []
        self._waiting: deque[PoolCall] = deque()
        self.busy = 0
        """Number of processes that run a job."""

    def put(self, call: PoolCall) -> ProcessSlot | None:
        """Assign a call to an idle process and return its seat, or `None` if the call waits."""
        with self.lock:
            if not self._idle:
                self._waiting.append(call)
                return None
            seat = self._idle.pop()  # The most recently used process has warm caches.
            self._give(seat, call)
            return seat

    def put_back(self, call: PoolCall) -> bool:
        """Put an unstarted call back at the head of the line.

        Return False if the call was halted, or was put back before. A call gets only one second
        chance, because it may be the one that kills processes.
        """
        with self.lock:
            if call.is_halted or call.was_returned:
                return False
            call.was_returned = True
            call.seat = None
            self._waiting.appendleft(call)
            return True

    def take_waiting(self) -> tuple[ProcessSlot, PoolCall] | None:
        """Assign the first waiting call to an idle process, if there are both."""
        with self.lock:
            if not self._idle or not self._waiting:
                return None
            seat, call = self._idle.pop(), self._waiting.popleft()
            self._give(seat, call)
            return seat, call

    def take(self, seat: ProcessSlot) -> PoolCall | None:
        """Return the next call for a free process, or `None` if no call waits.

        Without a call the process becomes idle. A dismissed process gets no more calls.
        """
        with self.lock:
            if seat.call is not None:
                seat.call = None
                self.busy -= 1
            if seat.dismissed:
                return None
            if self._waiting:
                call = self._waiting.popleft()
                self._give(seat, call)
                return call
            self._idle.append(seat)
            return None

    def leave(self, seat: ProcessSlot) -> PoolCall | None:
        """Remove a process from the roster and return the call that it was running, if any."""
        with self.lock:
            if seat in self._idle:
                self._idle.remove(seat)
            call, seat.call = seat.call, None
            self.busy -= call is not None
            return call

    def dismiss(self, seat: ProcessSlot) -> bool:
        """Assign no more calls to a process; return False if it still has one."""
        with self.lock:
            seat.dismissed = True
            if seat in self._idle:
                self._idle.remove(seat)
            return seat.call is None

    def halt(self, call: PoolCall) -> ProcessSlot | None:
        """Mark a call as halted and return its seat.

        Return `None` if no process runs the call, or if it was halted before. The process gets no
        other call, so that a signal can only hit this one.
        """
        with self.lock:
            call.is_halted = True
            seat = call.seat
            if seat is None or seat.call is not call or seat.halted:
                return None
            seat.halted = seat.dismissed = True
            return seat

    def withdraw(self, call: PoolCall) -> bool:
        """Remove a waiting call; return False if a process already has it."""
        with self.lock:
            if call.seat is not None:
                return False
            if call in self._waiting:
                self._waiting.remove(call)
            return True

    def give_up(self) -> list[PoolCall]:
        """Remove all waiting calls and return them."""
        with self.lock:
            calls = list(self._waiting)
            self._waiting.clear()
            return calls

    def _give(self, seat: ProcessSlot, call: PoolCall) -> None:
        call.seat = seat
        seat.call = call
        self.busy += 1


# The pool. The executor awaits it like a thread; cancelling that await stops the process.


logger = logging.getLogger(__name__)

_HALTED = "the worker ends the job: its time is up, it was cancelled, or the worker stops"

_NOT_KNOWN = Fault(MaybeExecuted.__name__, f"{_HALTED}; this may have been done or not")

_KILLING = 5.0
"""Seconds to wait for a killed process to exit."""

_MOMENT = 2.0
"""Maximum grace in seconds during an urgent shutdown, regardless of the task's grace."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_SHORT_LIFE: Final = 5.0
"""A process that exits within this many seconds, without a job, counts as a failed start."""


class ProcessPool:
    """A pool of processes that runs jobs for one event loop."""

    def __init__(self, plan: PoolPlan, worker_id: str, told: Callable[[ProcessEnd], None]) -> None:
        self._hello = encode(plan.hello(worker_id))
        self._plan = plan
        self._told = told
        self._roster = Roster()
        self._mailbox = Mailbox()
        self._new_waiter = waiters()
        self._numbers = count(1)
        self._members: set[ProcessMonitor] = set()  # processes that run jobs or are starting
        self._leaving: set[ProcessMonitor] = set()
        self._failures = 0  # consecutive failed starts
        self._refusal = ""  # reason for the last failed start
        self._patience = inf  # maximum number of seconds that a process may take to exit
        self._closing = False
        self._started = False
        self._first = False  # True while `start` waits for the first processes
        self._watchers: list[Waiter] = []  # tasks that wait for a process to start or exit

    @property
    def size(self) -> int:
        """The configured number of processes."""
        return self._plan.size

    @property
    def busy(self) -> int:
        """The number of processes that run a job."""
        return self._roster.busy

    @property
    def pids(self) -> set[int]:
        """The process ids of all running processes."""
        return {one.pid for one in (*self._members, *self._leaving) if one.pid is not None}

    async def start(self) -> None:
        """Start all processes and wait until they are ready.

        Raises:
            ConfigurationError: If a process cannot start.
        """
        self._spawn_processes()
        self._first = True
        while not all(keeper.has_begun for keeper in self._members):
            await self._change()
            if self._failures:
                reason, _, details = self._refusal.partition("\n")
                error = ConfigurationError(f"A process of the pool cannot start: {reason}")
                if details:
                    error.add_note(details)
                raise error
        self._first = False

    async def run(
        self, jobs: Sequence[RunningJob], grace: float, clock: Stoppable | None = None
    ) -> list[Result]:
        """Run a job, or all jobs of a batch, in one process call; return each job's result.

        The clock is stopped while the call waits for a process. If the caller is cancelled, the
        process has `grace` seconds to finish the call before it is killed. A result that arrives
        before that still counts.
        """
        # The task's home queue may be one that this worker does not serve.
        if not self._started:
            self._spawn_processes()
        call = PoolCall(next(self._numbers), jobs, copy_context(), grace, clock)
        call.listen()
        seat = self._roster.put(call)
        if seat is not None:
            seat.send(call.order)
        elif clock is not None:
            clock.stop()
        try:
            end = await self._follow(call)
        except get_cancelled_exc_class():
            if self._roster.withdraw(call):
                raise
            halted = await self._halt(call)
            if not has_value(halted):
                note_halted(jobs, halted)
                raise
            end = halted
        return results_of(jobs, end)

    async def close(self, limit: float) -> None:
        """Stop all processes.

        They have `limit` seconds, and at most `LEAVING`, to leave their lifespans. Processes that
        take longer are killed.
        """
        self._closing = True
        with move_on_after(min(limit, LEAVING), shield=True):
            for keeper in [*self._members]:
                keeper.retire(min(LEAVING, self._patience))
            await self._until_empty()
        if self._members or self._leaving:
            for keeper in (*self._members, *self._leaving):
                keeper.kill()
            with move_on_after(_KILLING, shield=True):
                await self._until_empty()

    def hurry(self) -> None:
        """Limit the time that any process has to exit to `_MOMENT` seconds from now on."""
        self._patience = _MOMENT
        for keeper in (*self._members, *self._leaving):
            keeper.hurry(_MOMENT)

    async def _follow(self, call: PoolCall) -> End:
        """Serve requests from the call's jobs until the call finishes."""
        while True:
            while call.inbox:
                message = call.inbox.popleft()
                if not isinstance(message, Ask):
                    return message
                answer = Reply(message.number, fault=_NOT_KNOWN)
                try:
                    answer = await perform(message, call.jobs[message.job])
                finally:  # The job gets an answer even if this task is cancelled.
                    if call.seat is not None:
                        call.seat.send(encode(answer))
            call.waiter = self._new_waiter()
            await call.waiter

    async def _halt(self, call: PoolCall) -> End | None:
        """Stop a call and return its end, or `None` if it did not finish in time."""
        call.grace = min(call.grace, self._patience)
        seat = self._roster.halt(call)
        if seat is not None:
            seat.halt(call, _HALTED)
        with CancelScope(deadline=current_time() + call.grace + _KILLING, shield=True):
            return await self._follow(call)
        return None

    # Callbacks from keepers, which run in the keepers' threads.

    def began(self, keeper: ProcessMonitor) -> None:
        """Give a process that is ready its first call."""
        self._mailbox.post(self._on_begun)
        self._feed(keeper)

    def asked(self, call: PoolCall, ask: Ask) -> None:
        """Pass a job's request to the task that awaits the call."""
        self._mailbox.post(lambda: call.deliver(ask))

    def ended(self, keeper: ProcessMonitor, call: PoolCall) -> None:
        """Give the process its next call, then wake the task that awaits the finished one."""
        self._feed(keeper)
        self._mailbox.post(lambda: call.deliver(call.ends))
        if keeper.dismissed:
            self._mailbox.post(lambda: self._let_go(keeper))
        elif not keeper.worn and self._is_worn(keeper, call.ends[-1]):
            keeper.worn = True
            self._mailbox.post(self._spawn_process)

    def returned(self, call: PoolCall) -> bool:
        """Give an unstarted call to another process; return False if that is not possible.

        It is possible once per call, unless the call was halted or the pool is closing.
        """
        if self._closing or not self._roster.put_back(call):
            return False
        self._mailbox.post(call.wait)
        if (found := self._roster.take_waiting()) is not None:
            seat, first = found
            seat.send(first.late_order())
            self._mailbox.post(first.begin)
        return True

    def died(self, call: PoolCall, error: TaskbullError) -> None:
        """Raise an error in the task that awaits the call."""
        self._mailbox.post(lambda: call.deliver(error))

    def gone(self, keeper: ProcessMonitor, end: Gone) -> None:
        """Replace a process that has exited, if one is missing."""
        self._mailbox.post(lambda: self._on_gone(keeper, end))

    def _feed(self, keeper: ProcessMonitor) -> None:
        call = self._roster.take(keeper)
        if call is not None:
            keeper.send(call.late_order())
            self._mailbox.post(call.begin)

    def _is_worn(self, keeper: ProcessMonitor, end: Ended) -> bool:
        plan = self._plan
        return (plan.max_jobs is not None and keeper.jobs >= plan.max_jobs) or (
            plan.max_memory is not None and end.megabytes > plan.max_memory
        )

    # The methods below run in the event loop.

    def _spawn_processes(self) -> None:
        self._started = True
        for _ in range(self.size):
            self._spawn_process()

    def _spawn_process(self, delay: float = 0.0) -> None:
        if not self._closing:
            keeper = ProcessMonitor(self, self._hello, self._roster.leave)
            self._members.add(keeper)
            keeper.start(delay)

    def _let_go(self, keeper: ProcessMonitor) -> None:
        """Retire a process that gets no more jobs, and replace it if that has not happened."""
        if keeper not in self._members:  # It has already exited.
            return
        self._members.discard(keeper)
        self._leaving.add(keeper)
        reason = "its job was ended" if keeper.halted else "it has done its share"
        self._told(ProcessEnd(keeper.pid or 0, reason, None, recycled=not keeper.halted))
        keeper.retire(min(LEAVING, self._patience))
        if len(self._members) < self.size:
            self._spawn_process()

    def _on_begun(self) -> None:
        self._failures = 0
        self._announce()
        self._recycle_processes()

    def _recycle_processes(self) -> None:
        """Retire processes that have done their share, if replacements are ready."""
        ready = [one for one in self._members if one.has_begun]
        for keeper in [one for one in ready if one.worn][: max(0, len(ready) - self.size)]:
            if self._roster.dismiss(keeper):
                self._let_go(keeper)

    def _on_gone(self, keeper: ProcessMonitor, end: Gone) -> None:
        self._leaving.discard(keeper)
        was_member = keeper in self._members
        self._members.discard(keeper)
        self._announce()
        if self._closing:
            return
        if end.started and not end.wanted:
            self._told(ProcessEnd(end.pid, end.reason, end.job))
        if not was_member:
            return
        lived = monotonic() - keeper.born
        if end.started and (keeper.jobs or end.job is not None or lived > _SHORT_LIFE):
            if len(self._members) < self.size:
                self._spawn_process()
            return
        self._failures += 1
        self._refusal = end.reason
        if self._first:
            return  # `start` raises, and the worker does not start.
        pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** (self._failures - 1))
        logger.error("Pool process could not start; retrying in %g s: %s", pause, end.reason)
        if not any(one.has_begun for one in self._members):
            self._fail_waiting_calls(end.reason)
        if len(self._members) < self.size:
            self._spawn_process(pause)

    def _fail_waiting_calls(self, reason: str) -> None:
        for call in self._roster.give_up():
            call.deliver(ProcessUnavailable(f"no process of the pool could start: {reason}"))

    def _announce(self) -> None:
        for waiter in self._watchers:
            wake(waiter)
        self._watchers.clear()

    async def _change(self) -> None:
        """Wait until a process has started or exited."""
        self._watchers.append(waiter := self._new_waiter())
        await waiter

    async def _until_empty(self) -> None:
        while self._members or self._leaving:
            await self._change()


@asynccontextmanager
async def pool_running(
    plan: PoolPlan, worker_id: str, told: Callable[[ProcessEnd], None], shutdown: Shutdown
) -> AsyncGenerator[ProcessPool]:
    """Run a pool for the duration of the block.

    At the end of the block the processes have the shutdown's grace to exit.
    """
    pool = ProcessPool(plan, worker_id, told)
    shutdown.when_urgent(pool.hurry)
    try:
        if plan.at_once:
            await pool.start()
        yield pool
    finally:
        await pool.close(shutdown.grace)

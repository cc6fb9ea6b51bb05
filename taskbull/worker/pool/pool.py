"""News from other threads for the event loop: one wake-up for many."""

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
    Result,
    Seat,
    has_value,
    note_halted,
    perform,
    results_of,
)
from taskbull.worker.pool.supervise import LEAVING, Keeper
from taskbull.worker.running_job import RunningJob
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.threads import Stoppable

# News from other threads for the event loop: one wake-up for many.


class Mailbox:
    """Has things done in the event loop in which it was made."""

    def __init__(self) -> None:
        self._actions: deque[Callable[[], object]] = deque()
        self._posted = False
        self._post = poster()

    def post(self, action: Callable[[], object]) -> None:
        """Have something done soon; from any thread. Nothing happens when the loop is over."""
        self._actions.append(action)
        if not self._posted:
            self._posted = True
            with suppress(RuntimeError):  # the event loop is over
                self._post(self._empty)

    def _empty(self) -> None:
        self._posted = False
        while self._actions:
            self._actions.popleft()()


# Which process has which call: decided under one lock, in the event loop and in the threads.


class Roster:
    """Hands calls to idle processes; those that find none wait, and are handed over when one is.

    That is done by the thread whose process has become free, without asking the event loop.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        """Held for moments only: the event loop waits for it, too."""
        self._idle: list[Seat] = []
        self._waiting: deque[PoolCall] = deque()
        self.busy = 0
        """How many processes run a job."""

    def put(self, call: PoolCall) -> Seat | None:
        """Give a call to an idle process, and return its seat; None: the call waits."""
        with self.lock:
            if not self._idle:
                self._waiting.append(call)
                return None
            seat = self._idle.pop()  # the one that was busy last: its caches are warm
            self._give(seat, call)
            return seat

    def put_back(self, call: PoolCall) -> bool:
        """Put a call that was not begun before all that wait; return False if it was halted.

        That is done once: it may be the call that ends processes.
        """
        with self.lock:
            if call.is_halted or call.was_returned:
                return False
            call.was_returned = True
            call.seat = None
            self._waiting.appendleft(call)
            return True

    def take_waiting(self) -> tuple[Seat, PoolCall] | None:
        """Give the first call that waits to an idle process, if there are both."""
        with self.lock:
            if not self._idle or not self._waiting:
                return None
            seat, call = self._idle.pop(), self._waiting.popleft()
            self._give(seat, call)
            return seat, call

    def take(self, seat: Seat) -> PoolCall | None:
        """Return the next call for a process that is free; None: it is idle from now on.

        One that was dismissed gets no other.
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

    def leave(self, seat: Seat) -> PoolCall | None:
        """Give a process no more calls; return the one that it has, which it loses."""
        with self.lock:
            if seat in self._idle:
                self._idle.remove(seat)
            call, seat.call = seat.call, None
            self.busy -= call is not None
            return call

    def dismiss(self, seat: Seat) -> bool:
        """Give a process no more calls; return False if it still has one."""
        with self.lock:
            seat.dismissed = True
            if seat in self._idle:
                self._idle.remove(seat)
            return seat.call is None

    def halt(self, call: PoolCall) -> Seat | None:
        """Return the seat of a call that is to be ended; None: the call is over.

        From now on the process gets no other call, so that a signal can only hit this one.
        """
        with self.lock:
            call.is_halted = True
            seat = call.seat
            if seat is None or seat.call is not call or seat.halted:
                return None
            seat.halted = seat.dismissed = True
            return seat

    def withdraw(self, call: PoolCall) -> bool:
        """Take back a call; return False if a process has it already."""
        with self.lock:
            if call.seat is not None:
                return False
            if call in self._waiting:
                self._waiting.remove(call)
            return True

    def give_up(self) -> list[PoolCall]:
        """Return all calls that wait, and let none of them wait any longer."""
        with self.lock:
            calls = list(self._waiting)
            self._waiting.clear()
            return calls

    def _give(self, seat: Seat, call: PoolCall) -> None:
        call.seat = seat
        seat.call = call
        self.busy += 1


# The process pool of a worker: functions that compute, hang or crash run in it.
#
# The executor awaits it as it awaits a thread. Whatever cancels that await ends the process.


logger = logging.getLogger(__name__)

_HALTED = "the worker ends the job: its time is up, it was cancelled, or the worker stops"

_NOT_KNOWN = Fault(MaybeExecuted.__name__, f"{_HALTED}; this may have been done or not")

_KILLING = 5.0
"""Seconds that the system has to end a process that was killed."""

_MOMENT = 2.0
"""Seconds that a process has when the worker is to stop at once, whatever its task's grace is."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_SHORT_LIFE: Final = 5.0
"""Seconds below which an unhappy life counts as a failed start."""


class ProcessPool:
    """Runs jobs in processes, for one event loop."""

    def __init__(self, plan: PoolPlan, worker_id: str, told: Callable[[ProcessEnd], None]) -> None:
        self._hello = encode(plan.hello(worker_id))
        self._plan = plan
        self._told = told
        self._roster = Roster()
        self._mailbox = Mailbox()
        self._new_waiter = waiters()
        self._numbers = count(1)
        self._members: set[Keeper] = set()  # those that run jobs, or will
        self._leaving: set[Keeper] = set()
        self._failures = 0  # starts that failed in a row
        self._refusal = ""  # what the last of them said
        self._patience = inf  # how long a process may take to end, at the most
        self._closing = False
        self._started = False
        self._first = False  # while the worker waits for the first ones
        self._watchers: list[Waiter] = []  # tasks that wait for processes to start or end

    @property
    def size(self) -> int:
        """How many processes there are meant to be."""
        return self._plan.size

    @property
    def busy(self) -> int:
        """How many of them run a job."""
        return self._roster.busy

    @property
    def pids(self) -> set[int]:
        """The numbers of its processes."""
        return {one.pid for one in (*self._members, *self._leaving) if one.pid is not None}

    async def start(self) -> None:
        """Start all processes; raise `ConfigurationError` if one of them cannot start."""
        self._hire_all()
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
        """Run a job in a process, or those of a batch in one call; return what came of each.

        The clock stands still while it waits for a process. If the caller is cancelled, the process
        has `grace` seconds to end the call, and is killed then; a result that comes first counts.
        """
        if not self._started:  # a job of a task that is at home in another queue
            self._hire_all()
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
        """End all processes: they have so many seconds to leave their lifespans."""
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
        """Let no process have more than a moment to end, from now on."""
        self._patience = _MOMENT
        for keeper in (*self._members, *self._leaving):
            keeper.hurry(_MOMENT)

    async def _follow(self, call: PoolCall) -> End:
        """Do what running jobs ask for, until their call ends."""
        while True:
            while call.inbox:
                message = call.inbox.popleft()
                if not isinstance(message, Ask):
                    return message
                answer = Reply(message.number, fault=_NOT_KNOWN)
                try:
                    answer = await perform(message, call.jobs[message.job])
                finally:  # nobody is left without an answer, also if we are cancelled
                    if call.seat is not None:
                        call.seat.send(encode(answer))
            call.waiter = self._new_waiter()
            await call.waiter

    async def _halt(self, call: PoolCall) -> End | None:
        """End a call, and return how it ended."""
        call.grace = min(call.grace, self._patience)
        seat = self._roster.halt(call)
        if seat is not None:
            seat.halt(call, _HALTED)
        with CancelScope(deadline=current_time() + call.grace + _KILLING, shield=True):
            return await self._follow(call)
        return None

    # What keepers tell, in their threads.

    def began(self, keeper: Keeper) -> None:
        """Give a process that can run jobs its first one."""
        self._mailbox.post(self._on_begun)
        self._feed(keeper)

    def asked(self, call: PoolCall, ask: Ask) -> None:
        """Bring a question to whoever awaits the call."""
        self._mailbox.post(lambda: call.deliver(ask))

    def ended(self, keeper: Keeper, call: PoolCall) -> None:
        """Give the process its next job first, then bring the end to whoever awaits it."""
        self._feed(keeper)
        self._mailbox.post(lambda: call.deliver(call.ends))
        if keeper.dismissed:
            self._mailbox.post(lambda: self._let_go(keeper))
        elif not keeper.worn and self._is_worn(keeper, call.ends[-1]):
            keeper.worn = True
            self._mailbox.post(self._hire)

    def returned(self, call: PoolCall) -> bool:
        """Give a call that was not begun to another process, once."""
        if self._closing or not self._roster.put_back(call):
            return False
        self._mailbox.post(call.wait)
        if (found := self._roster.take_waiting()) is not None:
            seat, first = found
            seat.send(first.late_order())
            self._mailbox.post(first.begin)
        return True

    def died(self, call: PoolCall, error: TaskbullError) -> None:
        """Bring the news to whoever awaits the call."""
        self._mailbox.post(lambda: call.deliver(error))

    def gone(self, keeper: Keeper, end: Gone) -> None:
        """Have another process started, if one is missing."""
        self._mailbox.post(lambda: self._on_gone(keeper, end))

    def _feed(self, keeper: Keeper) -> None:
        call = self._roster.take(keeper)
        if call is not None:
            keeper.send(call.late_order())
            self._mailbox.post(call.begin)

    def _is_worn(self, keeper: Keeper, end: Ended) -> bool:
        plan = self._plan
        return (plan.max_jobs is not None and keeper.jobs >= plan.max_jobs) or (
            plan.max_memory is not None and end.megabytes > plan.max_memory
        )

    # The rest is in the event loop.

    def _hire_all(self) -> None:
        self._started = True
        for _ in range(self.size):
            self._hire()

    def _hire(self, delay: float = 0.0) -> None:
        if not self._closing:
            keeper = Keeper(self, self._hello, self._roster.leave)
            self._members.add(keeper)
            keeper.start(delay)

    def _let_go(self, keeper: Keeper) -> None:
        """End a process that runs no more jobs; another one takes its place, if none has yet."""
        if keeper not in self._members:  # it has died since
            return
        self._members.discard(keeper)
        self._leaving.add(keeper)
        reason = "its job was ended" if keeper.halted else "it has done its share"
        self._told(ProcessEnd(keeper.pid or 0, reason, None, recycled=not keeper.halted))
        keeper.retire(min(LEAVING, self._patience))
        if len(self._members) < self.size:
            self._hire()

    def _on_begun(self) -> None:
        self._failures = 0
        self._announce()
        self._dismiss_worn()

    def _dismiss_worn(self) -> None:
        """Let go of processes that have done their share, as far as others are there for them."""
        ready = [one for one in self._members if one.has_begun]
        for keeper in [one for one in ready if one.worn][: max(0, len(ready) - self.size)]:
            if self._roster.dismiss(keeper):
                self._let_go(keeper)

    def _on_gone(self, keeper: Keeper, end: Gone) -> None:
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
                self._hire()
            return
        self._failures += 1
        self._refusal = end.reason
        if self._first:
            return  # the worker does not start
        pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** (self._failures - 1))
        logger.error("Pool process could not start; retrying in %g s: %s", pause, end.reason)
        if not any(one.has_begun for one in self._members):
            self._let_wait_no_longer(end.reason)
        if len(self._members) < self.size:
            self._hire(pause)

    def _let_wait_no_longer(self, reason: str) -> None:
        for call in self._roster.give_up():
            call.deliver(ProcessUnavailable(f"no process of the pool could start: {reason}"))

    def _announce(self) -> None:
        for waiter in self._watchers:
            wake(waiter)
        self._watchers.clear()

    async def _change(self) -> None:
        """Wait until a process has started or ended."""
        self._watchers.append(waiter := self._new_waiter())
        await waiter

    async def _until_empty(self) -> None:
        while self._members or self._leaving:
            await self._change()


@asynccontextmanager
async def pool_running(
    plan: PoolPlan, worker_id: str, told: Callable[[ProcessEnd], None], shutdown: Shutdown
) -> AsyncGenerator[ProcessPool]:
    """Have a pool during the block; at its end the processes have a shutdown's grace to leave."""
    pool = ProcessPool(plan, worker_id, told)
    shutdown.when_urgent(pool.hurry)
    try:
        if plan.at_once:
            await pool.start()
        yield pool
    finally:
        await pool.close(shutdown.grace)

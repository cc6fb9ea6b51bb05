"""The process pool of a worker, which runs functions that compute, hang or crash.

`ProcessPool` starts and replaces the processes and gives them calls. All of its state belongs to
the event loop. Each process has a thread (`PoolProcess`) that reports to the event loop.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import Final

from anyio import CancelScope, current_time, get_cancelled_exc_class, move_on_after
from msgspec import Struct

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.errors import (
    ConfigurationError,
    LockLost,
    MaybeExecuted,
    ProcessDied,
    ProcessUnavailable,
)
from taskbull.store.backend import Waiter, on_trio, poster, waiters, wake
from taskbull.worker.pool import messages
from taskbull.worker.pool.process import PoolCall, PoolProcess, ProcessEvent
from taskbull.worker.run import Run, Shutdown
from taskbull.worker.running_job import RunningJob, run_of
from taskbull.worker.threads import TimeLimit

logger = logging.getLogger(__name__)

_NOT_KNOWN = MaybeExecuted(
    "the worker ends the job: its time is up, it was cancelled, or the worker stops; "
    "this may have been done or not"
)

LEAVING: Final = 10.0
"""Seconds that a process has to leave its lifespan."""

_KILLING = 5.0
"""Seconds to wait for a killed process to exit."""

_MOMENT = 2.0
"""Maximum grace in seconds during an urgent shutdown, regardless of the task's grace."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_SHORT_LIFE: Final = 5.0
"""A process that exits within this many seconds, without a job, counts as a failed start."""


class PoolPlan(Struct, frozen=True, kw_only=True):
    """The size of a pool, the app that its processes import, and the limits of a process."""

    size: int
    app: str
    modules: list[str]
    script: str | None
    """The worker's program file, as in `Hello`."""
    redis: str | None
    """The server that a test uses, as in `Hello`."""
    tasks: Sequence[str]
    """The names of the tasks that run in the pool."""
    at_once: bool
    """True to start the processes with the worker, False to start them for the first job."""
    max_jobs: int | None = None
    """Maximum number of jobs per process; a process that reaches it is replaced."""
    max_memory: int | None = None
    """Memory in megabytes above which a process is replaced after a job."""
    memory_limit: int | None = None
    """Maximum address space of a process, in megabytes."""
    env: Mapping[str, str] = {}
    """Environment variables of the processes. `{n}` is the number of the process."""

    def hello(self, worker_id: str) -> messages.Hello:
        """Return the first message for a process."""
        return messages.Hello(
            app=self.app,
            modules=self.modules,
            tasks=[*self.tasks],
            script=self.script,
            redis=self.redis,
            path=list(sys.path),
            worker_id=worker_id,
            backend="trio" if on_trio() else "asyncio",
            log_level=logging.getLogger().getEffectiveLevel(),
            log_levels=_log_levels(),
            log_disabled=logging.root.manager.disable,
            memory_limit=self.memory_limit,
            measures=self.max_memory is not None,
        )


def _log_levels() -> dict[str, int]:
    known = logging.root.manager.loggerDict.copy()
    return {
        name: logger.level
        for name, logger in known.items()
        if isinstance(logger, logging.Logger) and logger.level
    }


class ProcessPool:
    """A pool of processes that runs jobs for one event loop.

    `emit` gets an event for each process that exits unexpectedly or is replaced.
    """

    def __init__(
        self, plan: PoolPlan, worker_id: str, emit: Callable[[events.Event], object]
    ) -> None:
        self._hello = messages.encode(plan.hello(worker_id))
        self._plan = plan
        self._worker_id = worker_id
        self._emit = emit
        self._post = poster()
        self._new_waiter = waiters()
        self._numbers = count(1)
        self._members: set[PoolProcess] = set()  # processes that run jobs or are starting
        self._leaving: set[PoolProcess] = set()
        self._idle: list[PoolProcess] = []
        self._waiting: deque[PoolCall] = deque()
        self._failures = 0  # consecutive failed starts
        self._failure = ""  # reason for the last failed start
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
        return sum(one.call is not None for one in (*self._members, *self._leaving))

    @property
    def pids(self) -> set[int]:
        """The process ids of all running processes."""
        return {one.pid for one in (*self._members, *self._leaving) if one.pid}

    async def start(self) -> None:
        """Start all processes and wait until they are ready.

        Raises:
            ConfigurationError: If a process cannot start.
        """
        self._spawn_processes()
        self._first = True
        while not all(process.is_ready for process in self._members):
            await self._change()
            if self._failures:
                reason, _, details = self._failure.partition("\n")
                error = ConfigurationError(f"A process of the pool cannot start: {reason}")
                if details:
                    error.add_note(details)
                raise error
        self._first = False

    async def run(
        self, jobs: Sequence[RunningJob], grace: float, clock: TimeLimit | None = None
    ) -> list[messages.Result]:
        """Run a job, or all jobs of a batch, in one process call; return each job's result.

        The clock is stopped while the call waits for a process. If the caller is cancelled, the
        process has `grace` seconds to finish the call before it is killed. A result that arrives
        before that still counts.
        """
        # The task's home queue may be one that this worker does not serve.
        if not self._started:
            self._spawn_processes()
        call = PoolCall(next(self._numbers), jobs, grace, clock)
        if self._idle:
            self._assign(self._idle.pop(), call)  # The last one used has warm caches.
        else:
            self._waiting.append(call)
            if clock is not None:
                clock.stop()
        try:
            end = await self._follow(call)
        except get_cancelled_exc_class():
            if call.process is None:
                with suppress(ValueError):  # It has failed, because no process could start.
                    self._waiting.remove(call)
                raise
            halted = await self._halt(call, call.process)
            if not messages.has_value(halted):
                messages.note_halted(jobs, halted)
                raise
            end = halted
        return messages.results_of(jobs, end)

    async def stack_of(self, run: Run) -> str | None:
        """Return the stack of a job's call, or None if the job has no call here."""
        running = (one.call for one in (*self._members, *self._leaving))
        for call in (*running, *self._waiting):
            if call is None or all(run_of(job) is not run for job in call.jobs):
                continue
            if call.process is None:
                return "It waits for a free process of the pool."
            waiter = self._new_waiter()
            call.stack_waiters.append(waiter)
            call.process.request_stack(call)
            await waiter
            return call.stack
        return None

    async def close(self, limit: float) -> None:
        """Stop all processes.

        They have `limit` seconds, and at most `LEAVING`, to leave their lifespans. Processes that
        take longer are killed.
        """
        self._closing = True
        with move_on_after(min(limit, LEAVING), shield=True):
            for process in [*self._members]:
                process.retire(min(LEAVING, self._patience))
            await self._until_empty()
        if self._members or self._leaving:
            for process in (*self._members, *self._leaving):
                process.kill()
            with move_on_after(_KILLING, shield=True):
                await self._until_empty()

    def shorten_grace(self) -> None:
        """Limit the time that any process has to exit to `_MOMENT` seconds from now on."""
        self._patience = _MOMENT
        for process in (*self._members, *self._leaving):
            process.shorten_grace(_MOMENT)

    async def _follow(self, call: PoolCall) -> messages.End:
        """Serve requests from the call's jobs until the call finishes."""
        while True:
            while call.inbox:
                message = call.inbox.popleft()
                if not isinstance(message, messages.JobRequest):
                    return message
                reply = messages.error_reply(message.number, _NOT_KNOWN)
                try:
                    reply = await messages.perform(message, call.jobs[message.job])
                finally:  # The job gets a reply even if this task is cancelled.
                    if call.process is not None:
                        call.process.send(messages.encode(reply))
            call.waiter = self._new_waiter()
            await call.waiter

    async def _halt(self, call: PoolCall, process: PoolProcess) -> messages.End | None:
        """Stop a call and return its end, or `None` if it did not finish in time.

        The process gets no other call, so that the signal can only hit this one.
        """
        call.grace = min(call.grace, self._patience)
        if process.call is call and not process.is_halted:
            process.is_halted = process.is_dismissed = True
            process.halt(call)
        with CancelScope(deadline=current_time() + call.grace + _KILLING, shield=True):
            return await self._follow(call)
        return None

    # Assignment of calls to processes. A call waits if no process is idle.

    def _assign(self, process: PoolProcess, call: PoolCall) -> None:
        call.process = process
        process.call = call
        process.send(call.packed())

    def _make_idle(self, process: PoolProcess) -> None:
        self._idle.append(process)
        self._assign_waiting()

    def _assign_waiting(self) -> None:
        while self._idle and self._waiting:
            call = self._waiting.popleft()
            self._assign(self._idle.pop(), call)
            if call.clock is not None:
                call.clock.go_on()

    def _put_back(self, process: PoolProcess, call: PoolCall) -> bool:
        """Give a call to another process if its process has died before it started the call.

        A call gets only one second chance, because it may be the one that kills processes.
        """
        # A task that overwrites arbitrary memory or descriptors may change the shared number, but
        # not to the number of the last finished call.
        was_idle = process.last_started == process.last_finished and not process.is_halted
        if not was_idle or call.was_returned or self._closing:
            return False
        call.was_returned = True
        call.process = None
        self._waiting.appendleft(call)
        if call.clock is not None:
            call.clock.stop()
        self._assign_waiting()
        return True

    # Events of processes.

    def _report(self, process: PoolProcess, event: ProcessEvent) -> None:
        """Handle an event in the event loop. Called in the process's thread."""
        with suppress(RuntimeError):  # The event loop is closed.
            self._post(partial(self._on_event, process, event))

    def _on_event(self, process: PoolProcess, event: ProcessEvent) -> None:
        match event:
            case PoolCall():
                self._on_finished(process, event)
            case messages.JobRequest(number, of):
                call = process.call
                if call is not None and call.number == of:
                    call.deliver(event)
                else:  # The request comes from a thread that an earlier call left behind.
                    process.send(messages.encode(messages.Reply(number, error=LockLost.__name__)))
            case messages.ReportedStack(of, stack):
                call = process.call
                if call is not None and call.number == of:
                    call.stack = stack
                    while call.stack_waiters:
                        wake(call.stack_waiters.pop())
            case messages.Started():
                self._failures = 0
                self._announce()
                self._make_idle(process)
                self._recycle_processes()
            case None:
                self._on_exit(process)

    def _on_finished(self, process: PoolProcess, call: PoolCall) -> None:
        process.call = None
        process.last_finished = call.number
        process.jobs += len(call.jobs)
        if process.is_dismissed:
            self._let_go(process)
        else:
            self._make_idle(process)
            if not process.recycle_due and self._is_recycle_due(process, call.ends[-1]):
                process.recycle_due = True
                self._spawn_process()
        call.deliver(call.ends)

    def _is_recycle_due(self, process: PoolProcess, end: messages.Ended) -> bool:
        plan = self._plan
        return (plan.max_jobs is not None and process.jobs >= plan.max_jobs) or (
            plan.max_memory is not None and end.megabytes > plan.max_memory
        )

    def _on_exit(self, process: PoolProcess) -> None:
        if process in self._idle:
            self._idle.remove(process)
        call, process.call = process.call, None
        if call is not None and self._put_back(process, call):
            call = None
        if call is not None:
            error = ProcessDied(process.reason)
            if process.fault:
                error.add_note(process.fault)
            call.deliver(error)
        self._leaving.discard(process)
        was_member = process in self._members
        self._members.discard(process)
        self._announce()
        if self._closing:
            return
        if process.is_ready and not process.is_unwanted:
            job = None if call is None else call.jobs[0].job
            self._emit_exit(process, process.reason, job)
        if was_member:
            lived = monotonic() - process.started_at
            if process.is_ready and (process.jobs or call is not None or lived > _SHORT_LIFE):
                if len(self._members) < self.size:
                    self._spawn_process()
            else:
                self._retry_start(process.reason)

    def _retry_start(self, reason: str) -> None:
        self._failures += 1
        self._failure = reason
        if self._first:
            return  # `start` raises, and the worker does not start.
        pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** (self._failures - 1))
        logger.error("Pool process could not start; retrying in %g s: %s", pause, reason)
        if not any(one.is_ready for one in self._members):
            while self._waiting:
                error = ProcessUnavailable(f"no process of the pool could start: {reason}")
                self._waiting.popleft().deliver(error)
        if len(self._members) < self.size:
            self._spawn_process(pause)

    # Starting and replacing processes.

    def _spawn_processes(self) -> None:
        self._started = True
        for _ in range(self.size):
            self._spawn_process()

    def _spawn_process(self, delay: float = 0.0) -> None:
        if not self._closing:
            number = self._free_number()
            env = {
                name: value.replace("{n}", str(number)) for name, value in self._plan.env.items()
            }
            process = PoolProcess(self._hello, self._report, number, env)
            self._members.add(process)
            process.start(delay)

    def _free_number(self) -> int:
        """Return a number for a new process. It may be that of a process that it will replace."""
        used = {one.number for one in self._members if not one.recycle_due}
        return next(number for number in count() if number not in used)

    def _recycle_processes(self) -> None:
        """Retire processes that have done their share, if replacements are ready."""
        ready = [one for one in self._members if one.is_ready]
        due = [one for one in ready if one.recycle_due]
        for process in due[: max(0, len(ready) - self.size)]:
            process.is_dismissed = True
            if process.call is None:
                self._idle.remove(process)
                self._let_go(process)

    def _let_go(self, process: PoolProcess) -> None:
        """Retire a process that gets no more jobs, and replace it if that has not happened."""
        self._members.discard(process)
        self._leaving.add(process)
        if process.is_halted:
            self._emit_exit(process, "its job was ended")
        else:
            reason = "it has done its share"
            self._emit(events.ProcessRecycled(self._worker_id, "", pid=process.pid, reason=reason))
        process.retire(min(LEAVING, self._patience))
        if len(self._members) < self.size:
            self._spawn_process()

    def _emit_exit(self, process: PoolProcess, reason: str, job: Job | None = None) -> None:
        self._emit(
            events.ProcessEnded(self._worker_id, "", pid=process.pid, reason=reason, job=job)
        )

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
    plan: PoolPlan,
    worker_id: str,
    emit: Callable[[events.Event], object],
    shutdown: Shutdown,
) -> AsyncGenerator[ProcessPool]:
    """Run a pool for the duration of the block.

    At the end of the block the processes have the shutdown's grace to exit.
    """
    pool = ProcessPool(plan, worker_id, emit)
    shutdown.when_urgent(pool.shorten_grace)
    try:
        if plan.at_once:
            await pool.start()
        yield pool
    finally:
        await pool.close(shutdown.grace)

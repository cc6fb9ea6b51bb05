"""Run one queue of a worker: fetch its jobs, run them, and wait for more."""

from __future__ import annotations

import logging
from contextlib import suppress

from anyio import Event, current_time, sleep
from anyio.abc import TaskGroup

from taskbull.core.breaker import BreakerState
from taskbull.core.options import QueueOptions, WorkerOptions
from taskbull.core.validation import from_ms, to_ms
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.change import StopRequest
from taskbull.scripts.cycle import FetchOptions, has_jobs_to_come, ring, wait_for_marker
from taskbull.store.blocking import SLACK, BlockingConnection
from taskbull.worker.attempt import Resolve
from taskbull.worker.context import PAUSE_PER_QUEUE, QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.demand import CALLS
from taskbull.worker.maintenance import ScheduleWriter, Sweeper, limit_all_workers
from taskbull.worker.runner import Runner

# Waiting for jobs at the marker, a Redis key that BullMQ's producers write to wake workers.


logger = logging.getLogger(__name__)

_PASS_ON_LIMIT = 1.0
"""Seconds that a stopping worker waits for Redis if only a wake-up is left to pass on."""

_MIDDLE = 0.6
"""Point in the wait when the cycle asks Redis without a marker, as a fraction of the wait."""


async def wait_at_marker(
    context: QueueContext, cycle: Cycle, connection: BlockingConnection, drain_delay: float
) -> None:
    """Wake the cycle whenever there may be new jobs, until cancelled.

    Due jobs are awaited with a local alarm, not with the server's timeout, which Redis checks only
    ten times a second. Once per `drain_delay` the cycle asks Redis even if no marker came. It does
    so in the middle of the wait rather than at its end. Both connections of an idle worker thus get
    a reply every few seconds, and a connection that the network dropped is noticed soon.
    """
    wait = wait_for_marker(context.keys, drain_delay)
    try:
        while True:
            await cycle.until(Cycle.should_wait)
            context.alarm.set(context.clock.now() + _MIDDLE * drain_delay)
            asked_at = current_time()
            try:
                due_ms = await connection.run(wait)
            except ServerRefused as error:
                logger.warning(
                    "Redis refused to wait for jobs in queue %s: %s", context.keys.queue, error
                )
                await sleep(drain_delay)
                due_ms = None
            due_in = 0.0 if due_ms is None else from_ms(due_ms - context.clock.wall_ms())
            if due_in > 0:  # a delayed job: nothing to fetch before that time
                context.alarm.set(context.clock.now() + due_in)
            elif due_ms is not None or not _in_time(current_time() - asked_at, drain_delay):
                cycle.wake()
    finally:
        await connection.close()


async def pass_on(context: QueueContext) -> None:
    """Wake another worker if there are jobs: this worker's wait may have consumed their marker.

    Do it twice. The server may notice only after the first time that the waiting connection is
    closed.
    """
    with suppress(TaskbullError):  # Other workers will ask on their own, only later.
        for _ in range(2):
            if await context.store.run(has_jobs_to_come(context.keys), timeout=_PASS_ON_LIMIT):
                await context.store.run(ring(context.keys), timeout=_PASS_ON_LIMIT)


def _in_time(took: float, drain_delay: float) -> bool:
    """Return True if a wait without a marker took the expected time, so that no reply was lost."""
    return drain_delay <= took < drain_delay + SLACK


# The consumer.


class Consumer:
    """Fetches and runs the jobs of one queue."""

    def __init__(
        self,
        context: QueueContext,
        worker: WorkerOptions,
        rules: QueueOptions,
        resolve: Resolve,
        schedules: ScheduleWriter | None = None,
    ) -> None:
        self.context = context
        self._schedules = schedules
        self._options = options = rules.over(worker)
        self._global_concurrency = rules.global_concurrency
        taking = _taking(options, context.worker_id)
        self._cycle = Cycle(context, options.concurrency, taking, _fresh_for(options))
        self._runner = Runner(
            context,
            self._cycle,
            resolve,
            lock_life=options.lock_duration,
            cancel_lost=options.on_lost_lock == "cancel",
        )
        self._sweeper = Sweeper(context, options.stalled_interval, options.max_stalled_count)

    @property
    def circuit_state(self) -> BreakerState | None:
        """The state of the queue's circuit breaker, or None if it has none."""
        return None if self.context.circuit is None else self.context.circuit.state

    def start_upkeep(self, tasks: TaskGroup, is_clock_right: Event) -> None:
        """Start the tasks that must outlive the last job: the cycle, the alarm and the sweeper."""
        tasks.start_soon(self._start_cycle, tasks, is_clock_right)
        tasks.start_soon(self.context.alarm.run, self._ring)

    async def _start_cycle(self, tasks: TaskGroup, is_clock_right: Event) -> None:
        await is_clock_right.wait()
        tasks.start_soon(self._sweeper.run)
        if self._global_concurrency is not None:  # Fetch no job before the limit is in Redis.
            await limit_all_workers(self.context, self._global_concurrency)
        if self._schedules is not None:
            await self._schedules.write()
        for _ in range(CALLS):
            tasks.start_soon(self._cycle.run)
        if self._schedules is not None:
            await self._schedules.keep_trying()
            await self._schedules.log_undeclared()

    def start_slots(self, tasks: TaskGroup) -> None:
        """Start the slots that run jobs."""
        tasks.start_soon(self._runner.occupy_all, self._options.concurrency)

    async def wait_for_jobs(self, queues: int) -> None:
        """Wait for new jobs until cancelled; `queues` is the worker's number of queues."""
        keys = self.context.keys
        connection = self.context.store.blocking(
            keys.marker, keys.connection_name(self.context.worker_id)
        )
        wait = max(self._options.drain_delay, queues * PAUSE_PER_QUEUE)
        await wait_at_marker(self.context, self._cycle, connection, wait)

    def stop_job(self, request: StopRequest) -> None:
        """Stop a cancelled job if it runs in this worker."""
        self._cycle.stop_job(request.job_id, request.token, request.reason)

    def stop_taking(self) -> None:
        """Stop fetching jobs."""
        self._cycle.stop_taking()

    async def flush(self) -> None:
        """Wait until Redis has all outcomes, then wake another worker if there are jobs."""
        await self._cycle.until(Cycle.flushed)
        await pass_on(self.context)

    @property
    def is_idle(self) -> bool:
        """True if no job is running and none is available."""
        return self._cycle.idle()

    async def until_idle(self) -> None:
        """Wait until the queue is idle."""
        await self._cycle.until(Cycle.idle)

    def _ring(self) -> None:
        if self.context.circuit is not None:
            self.context.circuit.check()
        self._cycle.wake()


def _fresh_for(options: WorkerOptions) -> float:
    """Return the maximum age of a lock that safely survives until the next heartbeat."""
    return (options.lock_duration - options.heartbeat_interval) / 2


def _taking(options: WorkerOptions, worker_id: str) -> FetchOptions:
    limiter = options.limiter
    return FetchOptions(
        lock_life_ms=to_ms(options.lock_duration),
        max_starts=0 if limiter is None else limiter.max,
        window_ms=0 if limiter is None else to_ms(limiter.duration),
        worker_name=worker_id,
        data_points=options.metrics_data_points,
    )

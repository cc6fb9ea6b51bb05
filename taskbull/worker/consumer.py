"""All that runs for one queue of a worker."""

from __future__ import annotations

from anyio import Event
from anyio.abc import TaskGroup

from taskbull.core.breaker import BreakerState
from taskbull.core.durations import to_ms
from taskbull.core.worker_options import QueueOptions, WorkerOptions
from taskbull.scripts.cancelling import StopRequest
from taskbull.scripts.cycle import Taking
from taskbull.worker.context import PAUSE_PER_QUEUE, QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.demand import CALLS
from taskbull.worker.global_concurrency import limit_all_workers
from taskbull.worker.marker import pass_on, wait_at_marker
from taskbull.worker.route import Resolve
from taskbull.worker.runner import Runner
from taskbull.worker.schedule_writer import ScheduleWriter
from taskbull.worker.sweeper import Sweeper


class Consumer:
    """Takes the jobs of one queue and runs them."""

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
        """The state of its circuit breaker, if it has one."""
        return None if self.context.circuit is None else self.context.circuit.state

    def start_upkeep(self, tasks: TaskGroup, is_clock_right: Event) -> None:
        """Start what must outlive the last job: what is said to Redis, and the sweep."""
        tasks.start_soon(self._start_cycle, tasks, is_clock_right)
        tasks.start_soon(self.context.alarm.run, self._ring)

    async def _start_cycle(self, tasks: TaskGroup, is_clock_right: Event) -> None:
        await is_clock_right.wait()
        tasks.start_soon(self._sweeper.run)
        if self._global_concurrency is not None:  # no job is taken before the rule stands
            await limit_all_workers(self.context, self._global_concurrency)
        if self._schedules is not None:
            await self._schedules.write()
        for _ in range(CALLS):
            tasks.start_soon(self._cycle.run)
        if self._schedules is not None:
            await self._schedules.insist()
            await self._schedules.tell_undeclared()

    def start_slots(self, tasks: TaskGroup) -> None:
        """Start what runs jobs."""
        tasks.start_soon(self._runner.occupy_all, self._options.concurrency)

    async def wait_for_jobs(self, queues: int) -> None:
        """Wait at the marker, until cancelled; the worker waits for so many queues in all."""
        keys = self.context.keys
        connection = self.context.store.blocking(
            keys.marker, keys.connection_name(self.context.worker_id)
        )
        wait = max(self._options.drain_delay, queues * PAUSE_PER_QUEUE)
        await wait_at_marker(self.context, self._cycle, connection, wait)

    def stop_job(self, request: StopRequest) -> None:
        """Stop a job that was cancelled, if it runs here."""
        self._cycle.stop_job(request.job_id, request.token, request.reason)

    def stop_taking(self) -> None:
        """Take no more jobs."""
        self._cycle.stop_taking()

    async def flush(self) -> None:
        """Wait until Redis knows all that it is to know."""
        await self._cycle.until(Cycle.flushed)
        await pass_on(self.context)

    @property
    def is_idle(self) -> bool:
        """Whether no job runs, and none is to be had."""
        return self._cycle.idle()

    async def until_idle(self) -> None:
        """Wait until that is so."""
        await self._cycle.until(Cycle.idle)

    def _ring(self) -> None:
        if self.context.circuit is not None:
            self.context.circuit.look()
        self._cycle.wake()


def _fresh_for(options: WorkerOptions) -> float:
    """Return the age up to which a lock lives until the next heartbeat, with something to spare."""
    return (options.lock_duration - options.heartbeat_interval) / 2


def _taking(options: WorkerOptions, worker_id: str) -> Taking:
    limiter = options.limiter
    return Taking(
        lock_life_ms=to_ms(options.lock_duration),
        max_starts=0 if limiter is None else limiter.max,
        window_ms=0 if limiter is None else to_ms(limiter.duration),
        worker_name=worker_id,
        data_points=options.metrics_data_points,
    )

"""Run one queue of a worker: its slots, its maintenance, and waiting for more jobs."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from random import random
from time import monotonic
from types import FrameType

from anyio import CancelScope, Event, create_task_group, current_time, sleep
from anyio.abc import TaskGroup

from taskbull.core import events
from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.job import Job
from taskbull.core.options import QueueOptions, WorkerOptions
from taskbull.core.outcome import Outcome, Release, Verdict
from taskbull.core.retry import decide
from taskbull.core.validation import from_ms, instant_from_ms, to_ms
from taskbull.core.wire.schedule import run_id
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    MaybeExecuted,
    ServerRefused,
    TaskbullError,
)
from taskbull.observability.logs import cut, one_line
from taskbull.observability.tracing import describe_outcome, processing
from taskbull.scripts.add import undo_flows
from taskbull.scripts.call import again
from taskbull.scripts.change import (
    cancel_all_children,
    finish_cancelling,
    get_global_concurrency,
    set_global_concurrency,
)
from taskbull.scripts.cycle import (
    FetchOptions,
    Sweep,
    has_jobs_to_come,
    sweep_stalled,
    wait_for_marker,
    wake_worker,
)
from taskbull.scripts.groups import declare_groups, sweep_groups
from taskbull.scripts.read import get_job
from taskbull.scripts.schedulers import advance_scheduler, declare_scheduler, list_schedulers
from taskbull.store.connection import LONGEST_DELAY, SLACK, BlockingConnection, reconnect_delay
from taskbull.worker.attempt import Executor, Resolve
from taskbull.worker.context import PAUSE_PER_QUEUE, QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.demand import CALLS
from taskbull.worker.run import Run, end_child_of, ends_the_slot
from taskbull.worker.running_job import JobEnvironment, enter_slot
from taskbull.worker.threads import ThreadDispatcher
from taskbull.worker.writing import Writing

# Run the jobs of a queue in slots: steps 3 and 4 in the life of a job (see `run`).


logger = logging.getLogger(__name__)


class Runner:
    """Runs a queue's jobs, one per slot."""

    def __init__(
        self,
        context: QueueContext,
        cycle: Cycle,
        resolve: Resolve,
        *,
        lock_life: float,
        cancel_lost: bool,
    ) -> None:
        self._context = context
        self._cycle = cycle
        self._lock_life = lock_life
        self._process = os.getpid()
        environment = JobEnvironment(
            context.keys.queue,
            context.worker_id,
            lambda run: Writing(run, context),
            context.resources_of,
            context.clock.wall_ms,
        )
        self._executor = Executor(
            environment,
            resolve,
            threads=context.threads,
            processes=context.processes,
            batches=context.batches,
            cancel_lost=cancel_lost,
        )
        self._unattended = ThreadDispatcher(
            context.threads,
            settle=self._executor.decider.settle,
            decided=cycle.decided,
            will_collect=cycle.will_collect,
        )
        self._tracing = processing(context.keys.queue, context.worker_id)

    async def run_slots(self, slots: int) -> None:
        """Run jobs in `slots` concurrent slots until there are no more."""
        try:
            async with create_task_group() as tasks:
                for _ in range(slots):
                    tasks.start_soon(self.run_slot)
            await self._unattended.until_over()
        finally:
            self._unattended.give_back()

    async def run_slot(self) -> None:
        """Run one job after another until there are no more. This is one slot."""
        jobs, wait = self._context.ready.jobs, self._context.ready.wait
        tracing, unattended = self._tracing, self._unattended
        enter_slot()
        while True:
            # Share one scope between all jobs of the slot, until one of them is cancelled. Entering
            # a scope for each job would take 5 µs on asyncio and 16 µs on trio.
            with CancelScope() as scope:
                while (run := jobs.popleft() if jobs else await wait()) is not None:
                    if run.lost is not None:  # The loop was blocked; another worker may run it.
                        self._cycle.decided(run, run.lost)
                    elif self._lock_expired(run):  # likewise, but the heartbeat has not noticed
                        self._cycle.decided(run, Release())
                    elif tracing is None:
                        await self._run(run, scope, unattended)
                    else:
                        with tracing.span(run.job) as span:
                            outcome = await self._run(run, scope)
                            if span is not None and outcome is not None:
                                describe_outcome(span, outcome)
                    if run.interrupted:  # Nothing more can be awaited in this scope.
                        break
                else:
                    return

    def _lock_expired(self, run: Run) -> bool:
        """Return True if the lock may have expired. Redis releases the job only if it has not."""
        return monotonic() - run.renewed > self._lock_life

    async def _run(
        self, run: Run, scope: CancelScope, unattended: ThreadDispatcher | None = None
    ) -> Outcome | None:
        """Run a job and queue its outcome. Return None if a detached thread runs it."""
        run.began = began = monotonic()
        self._context.reporter.started(run)
        try:
            # Advance the schedule even if the job itself must not run.
            outcome = None
            if run.job.scheduler_id is not None:
                outcome = await self._add_next(run)
                if self._lock_expired(run):  # Redis may have been slow.
                    outcome = Release()
            if outcome is None:
                outcome = await self._executor.attempt(run, scope, unattended)
                if outcome is None:
                    return None
        except BaseException as error:
            end_child_of(self._process, error)
            if ends_the_slot(error, interrupted=run.interrupted):
                self._cycle.decided(run, Release())
                raise
            if run.interrupted:
                outcome = run.stopped(error)
            else:
                outcome = decide(error, run.job, run.policy, random=random)
        if os.getpid() != self._process:
            end_child_of(self._process)
        run.duration = monotonic() - began
        self._cycle.decided(run, outcome)
        return outcome

    @classmethod
    def runs(cls, frame: FrameType, run: Run) -> bool:
        """Return True if a frame runs this job."""
        return frame.f_code is cls._run.__code__ and frame.f_locals["run"] is run

    @classmethod
    def job_in(cls, frame: FrameType) -> Job | None:
        """Return the job that a frame runs, if any. For the watchdog."""
        if frame.f_code is not cls._run.__code__:
            return None
        run: Run = frame.f_locals["run"]
        return run.job

    async def _add_next(self, run: Run) -> Outcome | None:
        """Add the scheduler's next job. Return an outcome if the current one must not run."""
        job, context = run.job, self._context
        try:
            call = advance_scheduler(context.keys, job, context.clock.wall_ms())
        except ConfigurationError as error:
            logger.error(  # noqa: TRY400 - the traceback does not show who wrote the rule
                "Queue %s: schedule %s stops after job %s, because its rule cannot be read: %s",
                context.keys.queue,
                cut(job.scheduler_id or ""),
                cut(job.id),
                one_line(str(error)),
            )
            return None
        while call is not None:
            try:
                advanced = await context.store.run(call)
            except MaybeExecuted:
                continue  # Repeating it has no effect.
            except ServerRefused as error:
                return self._executor.decider.release_later(
                    job, f"its scheduler's next run was refused: {error}"
                )
            if advanced.passed_ms is None:
                break
            self._warn_of_id_conflict(job, advanced.passed_ms)
            if advanced.job_id is not None:
                break
            now_ms = context.clock.wall_ms()
            call = advance_scheduler(context.keys, job, now_ms, advanced.passed_ms)
        return None

    def _warn_of_id_conflict(self, job: Job, passed_ms: int) -> None:
        schedule = job.scheduler_id or ""
        logger.warning(
            "Queue %s: schedule %s skipped its run at %s, because another job has the id %s",
            self._context.keys.queue,
            cut(schedule),
            instant_from_ms(passed_ms),
            cut(run_id(schedule, passed_ms)),
        )


# Maintain a queue: global concurrency, cancelled parents, declared schedules, and the sweep.


# Limits of the queue that apply to all workers.


async def write_limits(context: QueueContext, rules: QueueOptions) -> None:
    """Write the queue's global concurrency and group rules to Redis. Retry until it succeeds."""
    failures = 0
    limit, groups = rules.global_concurrency, rules.groups
    while True:
        try:
            if (
                limit is not None
                and await context.store.run(get_global_concurrency(context.keys)) != limit
            ):
                await context.store.run(set_global_concurrency(context.keys, limit))
            if groups is not None:
                now_ms = context.clock.wall_ms()
                await context.store.run(declare_groups(context.keys, groups, now_ms))
        except MaybeExecuted:
            continue  # Writing it twice is harmless.
        except ServerRefused as error:
            failures += 1
            delay = reconnect_delay(failures, LONGEST_DELAY, random())  # noqa: S311
            logger.warning(
                "Queue %s: fetching has not started, because Redis refused the limits of the "
                "queue; retrying in %.1f s: %s",
                context.keys.queue,
                delay,
                error,
            )
            await sleep(delay)
        else:
            return


# Cancelled parents. A job in `waiting-children` finishes in the call that cancels it, and the
# caller then cancels its children. A running job may still spawn children, so its worker cancels
# them when it finishes.


class CancelledParents:
    """Cancels the children of jobs that finished as cancelled, in all queues of a worker.

    Redis keeps a record of them, so a later sweep finishes what was not done here.
    """

    def __init__(self) -> None:
        self._ended: deque[events.Failed] = deque()
        self._news: Event | None = None

    def on_event(self, event: events.Failed) -> None:
        """Queue a failed job if it was cancelled."""
        if event.verdict is Verdict.CANCELLED:
            self._ended.append(event)
            if self._news is not None:
                self._news.set()

    async def run(self, contexts: Sequence[QueueContext]) -> None:
        """Cancel the children of queued jobs, until cancelled."""
        while True:
            self._news = Event()
            await self.flush(contexts)
            await self._news.wait()

    async def flush(self, contexts: Sequence[QueueContext]) -> None:
        """Cancel the children of all jobs queued so far."""
        by_queue = {context.keys.queue: context for context in contexts}
        while self._ended:
            event = self._ended.popleft()
            context = by_queue[event.queue]
            steps = cancel_all_children(context.keys, event.job.id, context.clock.wall_ms())
            try:
                await context.store.run(steps)
            except ServerRefused as error:
                logger.warning(
                    "Queue %s: could not cancel the children of cancelled job %s; the next sweep "
                    "will retry: %s",
                    event.queue,
                    cut(event.job.id),
                    one_line(str(error)),
                )


# Declared schedules, written when a worker starts.


_NAMED = 20
"""Maximum number of schedules named in a log line."""


class ScheduleWriter:
    """Writes one queue's declared schedules. Unchanged schedules are left alone."""

    def __init__(
        self, context: QueueContext, app: str, declared: Sequence[DeclaredSchedule]
    ) -> None:
        self._context = context
        self._app = app
        self._declared = {each.id for each in declared}
        self._left = list(declared)
        self._refusal: ServerRefused | None = None

    async def write(self) -> None:
        """Write all schedules before the first job is fetched, and remember the refused ones."""
        refused: list[DeclaredSchedule] = []
        for each in self._left:
            try:
                await self._write(each)
            except ServerRefused as error:
                refused.append(each)
                self._refusal = error
        self._left = refused

    async def keep_trying(self) -> None:
        """Retry the refused schedules until they are written. Jobs do not wait for this."""
        failures = 0
        while self._left:
            failures += 1
            delay = reconnect_delay(failures, LONGEST_DELAY, random())  # noqa: S311
            logger.warning(
                "Queue %s: Redis refused %d declared schedules of this app; retrying in %.1f s: %s",
                self._context.keys.queue,
                len(self._left),
                delay,
                self._refusal,
            )
            await sleep(delay)
            await self.write()

    async def log_undeclared(self) -> None:
        """Log the schedules that this app declared before and no longer does.

        They are not removed, because a worker of an older version that declares them may be
        running.
        """
        keys = self._context.keys
        try:
            found = await self._context.store.run(again(list_schedulers(keys, self._app)))
        except ServerRefused as error:
            logger.warning("Queue %s: cannot read its schedules: %s", keys.queue, error)
            return
        names = [cut(each.id) for each in found if each.id not in self._declared]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            logger.warning(
                "Queue %s: app %s no longer declares %s%s, but they still run; to remove them: "
                "taskbull schedules sync --prune",
                keys.queue,
                self._app,
                ", ".join(names[:_NAMED]),
                more,
            )

    async def _write(self, declared: DeclaredSchedule) -> None:
        context = self._context
        queue, name = context.keys.queue, declared.id
        try:
            call = declare_scheduler(context.keys, self._app, declared, context.clock.wall_ms())
            while call is not None:
                try:
                    written = await context.store.run(call)
                except MaybeExecuted:
                    continue  # Writing it twice is harmless.
                if written.is_changed:
                    logger.info("Queue %s: schedule %s: %s", queue, name, declared.rule.describe())
                return
        except (ServerRefused, ConnectionLost):
            raise
        except TaskbullError as error:
            logger.error("Queue %s: cannot write schedule %s: %s", queue, name, error)  # noqa: TRY400


# The sweep for stalled jobs, and for flows that were only partly added or cancelled.


class Sweeper:
    """Moves stalled jobs back, or marks them to fail after too many stalls.

    The first worker whose sweep is due does it for all workers of the queue.
    """

    def __init__(self, context: QueueContext, interval: float, max_stalls: int) -> None:
        self._context = context
        self._interval = interval
        self._max_stalls = max_stalls
        self._groups_swept = 0  # The next sweep of the groups starts at this position.

    async def run(self) -> None:
        """Sweep now and then at every interval, until cancelled. Late sweeps are skipped."""
        clock = self._context.clock
        due = clock.now()
        while True:
            await self.sweep()
            self._context.reporter.emit(events.Swept)
            due += self._interval
            while due < clock.now():
                due += self._interval
                self._context.reporter.emit(events.SweepSkipped)
            await clock.sleep_until(due)

    async def sweep(self) -> None:
        """Sweep once, unless another worker has just done so."""
        context = self._context
        steps = sweep_stalled(
            context.keys,
            context.clock.wall_ms(),
            interval_ms=to_ms(self._interval),
            max_stalls=self._max_stalls,
        )
        found: Sweep | None = None
        with self._logging_refusal():
            found = await context.store.run(steps)
            if found is not None and found.put_back:
                await self._emit(found)
        if found is not None and found.has_leftovers:  # Most queues of an idle worker have none.
            with self._logging_refusal():
                await self._undo_flows()
            with self._logging_refusal():
                await context.store.run(finish_cancelling(context.keys, context.clock.wall_ms()))
        if found is not None and found.has_groups:
            with self._logging_refusal():
                repair = sweep_groups(context.keys, context.clock.wall_ms(), self._groups_swept)
                self._groups_swept = await context.store.run(repair)

    @contextmanager
    def _logging_refusal(self) -> Generator[None]:
        """Log a refused part of the sweep. The next sweep tries it again."""
        try:
            yield
        except MaybeExecuted:
            pass  # The next sweep continues where this one stopped.
        except ServerRefused as error:
            logger.warning("Queue %s: Redis refused the sweep: %s", self._context.keys.queue, error)

    async def _undo_flows(self) -> None:
        """Remove the partial flows of producers that stopped before adding all jobs."""
        context = self._context
        skipped: list[str] = []
        steps = undo_flows(context.keys, context.clock.wall_ms(), skipped=skipped)
        undone = await context.store.run(steps)
        if skipped:
            logger.warning(
                "Queue %s: skipped %d unfinished flows that cannot be removed, such as %s: a key "
                "has the wrong type, or cannot be accessed",
                context.keys.queue,
                len(skipped),
                cut(skipped[0]),
            )
        for root in undone:
            logger.warning(
                "Queue %s: removed the flow of job %s, because its producer stopped before all of "
                "its jobs were added",
                context.keys.queue,
                cut(root.removeprefix(context.keys.base)),
            )

    async def _emit(self, found: Sweep) -> None:
        context = self._context
        jobs = await context.store.run_all(
            [get_job(context.keys, job_id) for job_id in found.put_back]
        )
        to_fail = set(found.to_fail)
        for job_id, job in zip(found.put_back, jobs, strict=True):
            context.reporter.emit(
                events.Stalled, job=job or Job(id=job_id), doomed=job_id in to_fail
            )


# Run one queue of a worker: fetch its jobs, run them, and wait for more.


# Waiting for jobs at the marker, a Redis key that BullMQ's producers write to wake workers.


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
        # List a worker as connected even if it is busy from its start.
        await connection.open()
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
            if due_ms is not None and context.is_quiet:
                await wake_another_worker(context)
    finally:
        await connection.close()


async def wake_another_worker(context: QueueContext) -> None:
    """Wake another worker if there are jobs: this worker's wait may have consumed their marker.

    Do it twice. The server may notice only after the first time that the waiting connection is
    closed.
    """
    with suppress(TaskbullError):  # Other workers will ask on their own, only later.
        for _ in range(2):
            if await context.store.run(has_jobs_to_come(context.keys), timeout=_PASS_ON_LIMIT):
                await context.store.run(wake_worker(context.keys), timeout=_PASS_ON_LIMIT)


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
        self._rules = rules
        fetch_options = _make_fetch_options(options, context.worker_id)
        self.cycle = Cycle(context, options.concurrency, fetch_options, _fresh_for(options))
        self._runner = Runner(
            context,
            self.cycle,
            resolve,
            lock_life=options.lock_duration,
            cancel_lost=options.on_lost_lock == "cancel",
        )
        self._sweeper = Sweeper(context, options.stalled_interval, options.max_stalled_count)

    def start_upkeep(self, tasks: TaskGroup, is_clock_right: Event) -> None:
        """Start the tasks that must outlive the last job: the cycle, the alarm and the sweeper."""
        tasks.start_soon(self._start_cycle, tasks, is_clock_right)
        tasks.start_soon(self.context.alarm.run, self._wake)

    async def _start_cycle(self, tasks: TaskGroup, is_clock_right: Event) -> None:
        await is_clock_right.wait()
        tasks.start_soon(self._sweeper.run)
        await write_limits(self.context, self._rules)  # Jobs must not start without them.
        if self._schedules is not None:
            await self._schedules.write()
        for _ in range(CALLS):
            tasks.start_soon(self.cycle.run)
        if self._schedules is not None:
            await self._schedules.keep_trying()
            await self._schedules.log_undeclared()

    def start_slots(self, tasks: TaskGroup) -> None:
        """Start the slots that run jobs."""
        tasks.start_soon(self._runner.run_slots, self._options.concurrency)

    async def wait_for_jobs(self, queues: int) -> None:
        """Wait for new jobs until cancelled; `queues` is the worker's number of queues."""
        keys = self.context.keys
        connection = self.context.store.blocking(
            keys.marker, keys.connection_name(self.context.worker_id)
        )
        wait = max(self._options.drain_delay, queues * PAUSE_PER_QUEUE)
        await wait_at_marker(self.context, self.cycle, connection, wait)

    async def flush(self) -> None:
        """Wait until Redis has all outcomes, then wake another worker if there are jobs."""
        await self.cycle.until(Cycle.flushed)
        await wake_another_worker(self.context)

    def _wake(self) -> None:
        if self.context.circuit is not None:
            self.context.circuit.check()
        self.cycle.wake()


def _fresh_for(options: WorkerOptions) -> float:
    """Return the maximum age of a lock that safely survives until the next heartbeat."""
    return (options.lock_duration - options.heartbeat_interval) / 2


def _make_fetch_options(options: WorkerOptions, worker_id: str) -> FetchOptions:
    limiter = options.limiter
    return FetchOptions(
        lock_life_ms=to_ms(options.lock_duration),
        max_starts=0 if limiter is None else limiter.max,
        window_ms=0 if limiter is None else to_ms(limiter.duration),
        worker_name=worker_id,
        data_points=options.metrics_data_points,
    )

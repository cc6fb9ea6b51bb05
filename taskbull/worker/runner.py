"""Run the jobs of a queue in slots: steps 3 and 4 in the life of a job (see `run`)."""

from __future__ import annotations

import logging
import os
from random import random
from time import monotonic
from types import FrameType

from anyio import CancelScope, create_task_group

from taskbull.core.job import Job
from taskbull.core.outcome import Outcome, Release
from taskbull.core.retry import decide
from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.schedule import run_id
from taskbull.errors import ConfigurationError, MaybeExecuted, ServerRefused
from taskbull.observability.logs import cut, one_line
from taskbull.observability.tracing import describe_outcome, processing
from taskbull.scripts.schedulers import advance_scheduler
from taskbull.worker.attempt import Executor, Resolve
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.fork import end_child_of
from taskbull.worker.run import Run, ends_the_slot
from taskbull.worker.running_job import JobEnvironment
from taskbull.worker.threads import ThreadDispatcher
from taskbull.worker.writing import Writing

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

    async def occupy_all(self, slots: int) -> None:
        """Run jobs in `slots` concurrent slots until there are no more."""
        try:
            async with create_task_group() as tasks:
                for _ in range(slots):
                    tasks.start_soon(self.occupy)
            await self._unattended.until_over()
        finally:
            self._unattended.give_back()

    async def occupy(self) -> None:
        """Run one job after another until there are no more. This is one slot."""
        jobs, wait = self._context.ready.jobs, self._context.ready.wait
        tracing, unattended = self._tracing, self._unattended
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
            outcome = None if run.job.scheduler_id is None else await self._advance(run)
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
        end_child_of(self._process)
        run.duration = monotonic() - began
        self._cycle.decided(run, outcome)
        return outcome

    @classmethod
    def job_in(cls, frame: FrameType) -> Job | None:
        """Return the job that a frame runs, if any. For the watchdog."""
        if frame.f_code is not cls._run.__code__:
            return None
        run: Run = frame.f_locals["run"]
        return run.job

    async def _advance(self, run: Run) -> Outcome | None:
        """Add the scheduler's next job. Return an outcome if the current one must not run."""
        outcome = await self._add_next(run)
        return Release() if self._lock_expired(run) else outcome  # Redis may have been slow.

    async def _add_next(self, run: Run) -> Outcome | None:
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
            self._warn_of_stranger(job, advanced.passed_ms)
            if advanced.job_id is not None:
                break
            now_ms = context.clock.wall_ms()
            call = advance_scheduler(context.keys, job, now_ms, advanced.passed_ms)
        return None

    def _warn_of_stranger(self, job: Job, passed_ms: int) -> None:
        schedule = job.scheduler_id or ""
        logger.warning(
            "Queue %s: schedule %s skipped its run at %s, because another job has the id %s",
            self._context.keys.queue,
            cut(schedule),
            instant_from_ms(passed_ms),
            cut(run_id(schedule, passed_ms)),
        )

"""One job, from its start to what becomes of it."""

from __future__ import annotations

import logging
import os
from functools import partial
from random import random
from time import monotonic
from types import FrameType

from taskbull.core.job import Job
from taskbull.core.outcome import GiveBack, Outcome
from taskbull.core.retry import decide
from taskbull.errors import ConfigurationError, MaybeExecuted, ServerRefused
from taskbull.observability.job_filter import cut
from taskbull.observability.tracing import Processing, describe_outcome, processing
from taskbull.scripts.schedulers import advance_scheduler
from taskbull.worker.attempt import Executor
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.fork import end_child_of
from taskbull.worker.interruption import ends_the_slot
from taskbull.worker.lease import Lease
from taskbull.worker.route import Resolve
from taskbull.worker.running_job import Place
from taskbull.worker.writing import Writing

logger = logging.getLogger(__name__)


class Runner:
    """Runs the jobs of a queue, one in each slot."""

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
        place = Place(context.keys.queue, context.worker_id, lambda lease: Writing(lease, context))
        self._executor = Executor(place, resolve, threads=context.threads, cancel_lost=cancel_lost)
        self._tracing = processing(context.keys.queue, context.worker_id)

    async def occupy(self) -> None:
        """Be a slot: run one job after the other, as long as there are any."""
        jobs, wait = self._context.ready.jobs, self._context.ready.wait
        run = self._run if self._tracing is None else partial(self._run_traced, self._tracing)
        while (lease := jobs.popleft() if jobs else await wait()) is not None:
            if lease.lost is not None:  # the loop was held up, and another may run the job by now
                self._cycle.ended(lease, lease.lost)
            elif self._lapsed(lease):  # the same, and nobody has noticed
                self._cycle.ended(lease, GiveBack())
            else:
                await run(lease)

    def _lapsed(self, lease: Lease) -> bool:
        """Return whether the lock may be gone: Redis gives the job back only if it is not."""
        return monotonic() - lease.renewed > self._lock_life

    async def _run_traced(self, tracing: Processing, lease: Lease) -> Outcome:
        with tracing.span(lease.job) as span:
            outcome = await self._run(lease)
            describe_outcome(span, outcome)
        return outcome

    async def _run(self, lease: Lease) -> Outcome:
        lease.began = began = monotonic()
        self._context.reporter.started(lease)
        try:
            outcome: Outcome | None = None
            if (
                lease.job.scheduler_id is not None
            ):  # also if this run is doomed: the schedule goes on
                outcome = await self._advance(lease)
                if self._lapsed(lease):  # Redis let us wait
                    outcome = GiveBack()
            if outcome is None:
                outcome = await self._executor.attempt(lease)
        except BaseException as error:
            end_child_of(self._process, error)
            if ends_the_slot(error):
                self._cycle.ended(lease, GiveBack())
                raise
            outcome = decide(error, lease.job, lease.policy, random=random)
        end_child_of(self._process)
        lease.duration = monotonic() - began
        self._cycle.ended(lease, outcome, lease.policy)
        return outcome

    @classmethod
    def job_in(cls, frame: FrameType) -> Job | None:
        """Return the job that a frame runs, if any: the watchdog asks who blocks the loop."""
        if frame.f_code is not cls._run.__code__:
            return None
        lease: Lease = frame.f_locals["lease"]
        return lease.job

    async def _advance(self, lease: Lease) -> Outcome | None:
        """Add what follows a scheduler's run, before it runs; return an outcome if that fails."""
        job, context = lease.job, self._context
        try:
            call = advance_scheduler(context.keys, job, context.clock.wall_ms())
        except ConfigurationError as error:
            logger.error(  # noqa: TRY400 - whoever wrote the rule is not in our stack
                "Queue %s: scheduler %s ends with job %s, because its rule cannot be read: %s",
                context.keys.queue,
                cut(job.scheduler_id or ""),
                cut(job.id),
                error,
            )
            return None
        while call is not None:
            try:
                await context.store.run(call)
            except MaybeExecuted:
                continue  # doing it again does nothing
            except ServerRefused as error:
                return self._executor.put_off(job, f"its scheduler's next run was refused: {error}")
            break
        return None

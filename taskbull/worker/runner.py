"""One job, from its start to what becomes of it."""

from __future__ import annotations

import logging
import os
from functools import partial
from random import random
from time import monotonic
from typing import Any

from anyio import CancelScope

from taskbull.core.job import Job
from taskbull.core.outcome import Complete, GiveBack, LetGo, Outcome, SnoozeFor
from taskbull.core.retry import NO_POLICY, decide, doomed
from taskbull.core.wire.job import encode_value
from taskbull.errors import ConfigurationError, MaybeExecuted, ServerRefused
from taskbull.observability.job_filter import cut
from taskbull.observability.tracing import Processing, describe_outcome, processing
from taskbull.scripts.schedulers import advance_scheduler
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.fork import end_child_of
from taskbull.worker.interruption import ends_the_slot
from taskbull.worker.lease import Lease
from taskbull.worker.route import Resolve, Route
from taskbull.worker.running_job import RunningJob, enter, leave
from taskbull.worker.time_limit import THREAD_PATIENCE, TimeLimit
from taskbull.worker.writing import RELEASE_PAUSE

logger = logging.getLogger(__name__)

_OUR_SHARE = 0.1
"""The part of a job's time that Redis may take without being blamed when the time is up."""


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
        self._resolve = resolve
        self._lock_life = lock_life
        self._cancel_lost = cancel_lost
        self._process = os.getpid()
        self._tracing = processing(context.keys.queue, context.worker_id)

    async def occupy(self) -> None:
        """Be a slot: run one job after the other, as long as there are any."""
        jobs, wait = self._context.ready.jobs, self._context.ready.wait
        run = self._run if self._tracing is None else partial(self._run_traced, self._tracing)
        while (lease := jobs.popleft() if jobs else await wait()) is not None:
            if lease.lost is not None:  # the loop was held up, and another may run the job by now
                self._cycle.ended(lease, LetGo())
            elif self._lapsed(lease):  # the same, and nobody has noticed
                self._cycle.ended(lease, GiveBack())
            else:
                await run(lease)

    def _lapsed(self, lease: Lease) -> bool:
        """Tell whether the lock may be gone: Redis gives the job back only if it is not."""
        return monotonic() - lease.renewed > self._lock_life

    async def _run_traced(self, tracing: Processing, lease: Lease) -> Outcome:
        with tracing.span(lease.job) as span:
            outcome = await self._run(lease)
            describe_outcome(span, outcome)
        return outcome

    async def _run(self, lease: Lease) -> Outcome:
        job = lease.job
        policy = NO_POLICY
        lease.began = began = monotonic()
        self._context.reporter.started(lease)
        try:
            outcome: Outcome | None = None
            if job.scheduler_id is not None:  # also if this run is doomed: the schedule goes on
                outcome = await self._advance(lease)
                if self._lapsed(lease):  # Redis let us wait
                    outcome = GiveBack()
            outcome = outcome or doomed(job)
            if outcome is None:
                route = self._resolve(job)
                policy = route.policy
                outcome = await self._execute(lease, route)
        except BaseException as error:
            end_child_of(self._process, error)
            if ends_the_slot(error):
                self._cycle.ended(lease, GiveBack())
                raise
            outcome = decide(error, job, policy, random=random)
        end_child_of(self._process)
        lease.duration = monotonic() - began
        self._cycle.ended(lease, outcome, policy)
        return outcome

    async def _execute(self, lease: Lease, route: Route) -> Outcome:
        job = lease.job
        timeout = job.options.timeout or route.timeout
        running = RunningJob(lease, self._context, route.policy)
        token = enter(running)
        try:
            if timeout is None and not self._cancel_lost:
                return _completed(job, await route.handler(running))
            with CancelScope() as lease.scope:
                if timeout is not None:
                    running.time_limit = TimeLimit(lease.scope, timeout)
                return _completed(job, await route.handler(running))
        except Exception as error:
            if running.writing.caused(error):
                return self._put_off(lease, f"Redis did not take what it wrote: {error}")
            raise
        finally:
            leave(token)
            lease.scope = None
        if lease.lost is not None:
            return LetGo()
        if running.time_limit is not None and running.time_limit.stopped:
            return self._put_off(lease, f"no thread was free for it in {THREAD_PATIENCE:g} s")
        if timeout is not None and running.held_up >= timeout * _OUR_SHARE:
            return self._put_off(lease, "its time is up, and Redis has let it wait")
        raise TimeoutError(f"the job took longer than its timeout of {timeout:g} s")

    def _put_off(self, lease: Lease, reason: str) -> SnoozeFor:
        """Give an outcome that spends no attempt, for a job that could not run to its end."""
        job = lease.job
        logger.warning(
            "Job %s (%s) of queue %s is put off for %g s, with no attempt spent: %s",
            cut(job.id),
            cut(job.name),
            self._context.keys.queue,
            RELEASE_PAUSE,
            reason,
        )
        return SnoozeFor(RELEASE_PAUSE)

    async def _advance(self, lease: Lease) -> Outcome | None:
        """Add what follows a scheduler's run, before it runs; give an outcome if that fails."""
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
                return self._put_off(lease, f"its scheduler's next run was refused: {error}")
            break
        return None


_NOTHING = Complete()


def _completed(job: Job, value: Any) -> Complete:
    if value is None:
        return _NOTHING
    return Complete(encode_value(value, job.options.result_limit))

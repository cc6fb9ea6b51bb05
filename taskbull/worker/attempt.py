"""One attempt of a job: its function is called, and what comes of that decides about the job.

A worker and `taskbull.testing` run jobs by it alike. How the function is called is for the route to
say, and for `Executor._call` to do: in the event loop, in a thread, or in a process of the pool.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable
from functools import partial
from random import random
from typing import Any, Final

from anyio import CancelScope
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Job
from taskbull.core.middleware import CallNext, compose
from taskbull.core.outcome import AwaitChildren, Complete, Outcome, SnoozeFor
from taskbull.core.retry import decide, doomed
from taskbull.core.site import Site
from taskbull.core.wire.job import encode_value
from taskbull.errors import ProcessUnavailable
from taskbull.observability.job_filter import cut
from taskbull.worker.fork import end_child_of
from taskbull.worker.pool.fates import outcome_of, told_by
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.route import Resolve, Route, SyncHandler
from taskbull.worker.run import Run
from taskbull.worker.running_job import RunningJob, Workplace, enter, leave
from taskbull.worker.threads import ThreadPool
from taskbull.worker.time_limit import THREAD_PATIENCE, TimeLimit

logger = logging.getLogger(__name__)

RELEASE_PAUSE: Final = 5.0
"""Seconds after which a job runs again that Redis kept from being run to its end."""

_OUR_SHARE = 0.1
"""The part of a job's time that Redis may take without being blamed when the time is up."""


class Executor:
    """Makes attempts of the jobs of one queue.

    Without `threads` there is no event loop either: functions that block are called at once, and
    no time is kept. Without `processes` what belongs there runs in a thread. With `cancel_lost` a
    job whose lock is gone is cancelled.
    """

    def __init__(
        self,
        place: Workplace,
        resolve: Resolve,
        *,
        threads: ThreadPool | None,
        processes: ProcessPool | None = None,
        cancel_lost: bool = False,
    ) -> None:
        self._place = place
        self._resolve = resolve
        self._threads = threads
        self._processes = processes
        self._cancel_lost = cancel_lost
        self._process = os.getpid()

    async def attempt(self, run: Run) -> Outcome:
        """Run a job once, and return what is to become of it.

        It raises only what is not an `Exception`: whose end that is, the job's or that of all that
        runs here, is for the caller to say.
        """
        job = run.job
        if (fate := doomed(job)) is not None:
            return fate
        try:
            route = self._resolve(job)
            run.policy = route.policy
            timeout = job.options.timeout or route.timeout
            running = RunningJob(run, self._place)
            token = enter(running)
            try:
                if (timeout is None and not self._cancel_lost) or self._threads is None:
                    return _completed(job, await self._call(route, running, run))
                return await self._within(timeout, route, running, run)
            finally:
                leave(token)
        except Exception as error:  # noqa: BLE001 - foreign code
            end_child_of(self._process, error)
            return self._decide(error, run)

    def _decide(self, error: Exception, run: Run) -> Outcome:
        """Return what an error means for the job: what a process has decided stands."""
        if (told := told_by(error)) is not None and (outcome := outcome_of(told, run)) is not None:
            return outcome
        if told is not None or (run.port is not None and run.port.caused(error)):
            return self.put_off(run.job, f"Redis did not accept what it wrote: {error}")
        if isinstance(error, ProcessUnavailable):
            return self.put_off(run.job, str(error))
        outcome = decide(error, run.job, run.policy, random=random)
        return run.awaiting_children() if isinstance(outcome, AwaitChildren) else outcome

    def put_off(self, job: Job, reason: str) -> SnoozeFor:
        """Return an outcome that spends no attempt, for a job that could not run to its end."""
        logger.warning(
            "Job %s (%s) of queue %s is delayed by %g s, at no cost of an attempt: %s",
            cut(job.id),
            cut(job.name),
            self._place.queue,
            RELEASE_PAUSE,
            reason,
        )
        return SnoozeFor(RELEASE_PAUSE)

    async def _within(
        self, timeout: float | None, route: Route, running: RunningJob, run: Run
    ) -> Outcome:
        """Call the function in a scope that is cancelled when its time is up, or its lock gone."""
        job = run.job
        limit: TimeLimit | None = None
        try:
            with CancelScope() as run.scope:
                if timeout is not None:
                    limit = TimeLimit(run.scope, timeout)
                return _completed(job, await self._call(route, running, run, limit))
        finally:
            run.scope = None
        if run.lost is not None:
            return run.lost
        if limit is not None and limit.stopped:
            return self.put_off(job, f"no {route.site} was free for it in {THREAD_PATIENCE:g} s")
        if timeout is not None and running.held_up >= timeout * _OUR_SHARE:
            return self.put_off(job, "its timeout passed while it waited for Redis")
        error = TimeoutError(f"the job took longer than its timeout of {timeout:g} s")
        if run.halted_at:
            error.add_note(f"Its process was ended here:\n{run.halted_at}")
        raise error

    def _call(
        self, route: Route, running: RunningJob, run: Run, limit: TimeLimit | None = None
    ) -> Awaitable[Any]:
        """Begin to call the function where its route says; `limit` stands still until it can."""
        call: CallNext[RunningJob] = route.function
        if route.site is Site.PROCESS and self._processes is not None:
            call = partial(self._in_process, self._processes, route, run, limit)
        elif route.site is not Site.LOOP:
            call = partial(self._in_thread, route.function, limit)
        return (compose(route.layers, call) if route.layers else call)(running)

    def _in_thread(
        self, function: SyncHandler, limit: TimeLimit | None, running: RunningJob
    ) -> Awaitable[Any]:
        if self._threads is None:
            return _call_here(function, running)
        return self._threads.run(function, running, clock=limit)

    async def _in_process(
        self,
        processes: ProcessPool,
        route: Route,
        run: Run,
        limit: TimeLimit | None,
        _: RunningJob,
    ) -> Any:
        raw = await processes.run(run, self._place, route.grace, limit)
        if raw is None:
            return None
        return payload.decode(raw) if route.layers else Json(raw)


async def _call_here(function: SyncHandler, running: RunningJob) -> Any:
    return function(running)


_NOTHING = Complete()


class Json(Struct, frozen=True):
    """A result that is JSON already, and was checked where it was made."""

    raw: bytes


def _completed(job: Job, value: Any) -> Complete:
    if value is None:
        return _NOTHING
    if value.__class__ is Json:
        return Complete(value.raw)
    return Complete(encode_value(value, job.options.result_limit))

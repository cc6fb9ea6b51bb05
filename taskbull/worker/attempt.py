"""One attempt of a job: its function is called, and what comes of that decides about the job.

A worker and `taskbull.testing` run jobs by it alike. How the function is called is for the route to
say, and for `Executor._call` to do: in the event loop or in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable
from functools import partial
from random import random
from typing import Any, Final

from anyio import CancelScope

from taskbull.core.job import Job
from taskbull.core.middleware import CallNext, compose
from taskbull.core.outcome import AwaitChildren, Complete, Outcome, SnoozeFor
from taskbull.core.retry import decide, doomed
from taskbull.core.site import Site
from taskbull.core.wire.job import encode_value
from taskbull.observability.job_filter import cut
from taskbull.worker.fork import end_child_of
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
    no time is kept. With `cancel_lost` a job whose lock is gone is cancelled.
    """

    def __init__(
        self,
        place: Workplace,
        resolve: Resolve,
        *,
        threads: ThreadPool | None,
        cancel_lost: bool = False,
    ) -> None:
        self._place = place
        self._resolve = resolve
        self._threads = threads
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
                    return _completed(job, await self._call(route, running))
                return await self._within(timeout, route, running, run)
            finally:
                leave(token)
        except Exception as error:  # noqa: BLE001 - foreign code
            end_child_of(self._process, error)
            if run.port is not None and run.port.caused(error):
                return self.put_off(job, f"Redis did not accept what it wrote: {error}")
            outcome = decide(error, job, run.policy, random=random)
            if isinstance(outcome, AwaitChildren):
                spawned = run.spawned
                return AwaitChildren(spawned.before + spawned.new, spawned.new)
            return outcome

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
                return _completed(job, await self._call(route, running, limit))
        finally:
            run.scope = None
        if run.lost is not None:
            return run.lost
        if limit is not None and limit.stopped:
            return self.put_off(job, f"no thread was free for it in {THREAD_PATIENCE:g} s")
        if timeout is not None and running.held_up >= timeout * _OUR_SHARE:
            return self.put_off(job, "its timeout passed while it waited for Redis")
        raise TimeoutError(f"the job took longer than its timeout of {timeout:g} s")

    def _call(
        self, route: Route, running: RunningJob, limit: TimeLimit | None = None
    ) -> Awaitable[Any]:
        """Begin to call the function where its route says; `limit` stands still until it can."""
        call: CallNext[RunningJob] = route.function
        if route.site is not Site.LOOP:
            call = partial(self._in_thread, route.function, limit)
        return (compose(route.layers, call) if route.layers else call)(running)

    def _in_thread(
        self, function: SyncHandler, limit: TimeLimit | None, running: RunningJob
    ) -> Awaitable[Any]:
        if self._threads is None:
            return _call_here(function, running)
        return self._threads.run(function, running, clock=limit)


async def _call_here(function: SyncHandler, running: RunningJob) -> Any:
    return function(running)


_NOTHING = Complete()


def _completed(job: Job, value: Any) -> Complete:
    if value is None:
        return _NOTHING
    return Complete(encode_value(value, job.options.result_limit))

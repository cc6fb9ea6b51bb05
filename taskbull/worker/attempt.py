"""One attempt of a job: its function is called, and what comes of that decides about the job.

A worker and `taskbull.testing` run jobs by it alike. How the function is called is for the route to
say, and for `Executor._call` to do: in the event loop, in a thread, or in a process of the pool.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, overload

from anyio import CancelScope

from taskbull.core.middleware import CallNext, compose
from taskbull.core.outcome import Outcome
from taskbull.core.site import Site
from taskbull.errors import Snooze
from taskbull.worker.batch import Batch, BatchRules, Gathering
from taskbull.worker.current_job import enter, leave
from taskbull.worker.fork import end_child_of
from taskbull.worker.judge import RELEASE_PAUSE, Judge, returned
from taskbull.worker.pool.call import check_size
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.pool.results import opened
from taskbull.worker.route import Resolve, Route, SyncHandler
from taskbull.worker.run import NotBegun, Run
from taskbull.worker.running_job import RunningJob, Workplace, run_of
from taskbull.worker.threads import ThreadPool
from taskbull.worker.time_limit import THREAD_PATIENCE, TimeLimit
from taskbull.worker.unattended import Unattended

G = TypeVar("G")

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
        batches: Gathering | None = None,
        cancel_lost: bool = False,
    ) -> None:
        self.judge = Judge(place)
        self._place = place
        self._resolve = resolve
        self._threads = threads
        self._processes = processes
        self._batches = batches
        self._cancel_lost = cancel_lost
        self._process = os.getpid()

    @overload
    async def attempt(self, run: Run, scope: CancelScope | None = None) -> Outcome: ...
    @overload
    async def attempt(
        self, run: Run, scope: CancelScope | None, unattended: Unattended | None
    ) -> Outcome | None: ...
    async def attempt(
        self,
        run: Run,
        scope: CancelScope | None = None,
        unattended: Unattended | None = None,
    ) -> Outcome | None:
        """Run a job once, and return what is to become of it.

        A plain function with nothing around it is left to `unattended`, if there is one: then this
        returns None at once.

        `scope` is what the caller runs in: it is cancelled if the job is while its function runs,
        unless that is in a thread. The caller must leave it then, before it awaits anything.

        It raises only what is not an `Exception`: whose end that is, the job's or that of all that
        runs here, is for the caller to say.
        """
        job = run.job
        if (
            run.cancelled is not None
            or job.deferred_failure is not None
            or job.corrupt is not None
            or job.options.expires_ms is not None
        ) and (fate := self.judge.fate(run)) is not None:
            return fate
        try:
            route = self._resolve(job)
            run.policy = route.policy
            # The time of a batch is that of its call, which begins later.
            timeout = None if route.batch else job.options.timeout or route.timeout
            running = RunningJob(run, self._place)
            token = enter(running)
            try:
                if (timeout is not None or self._cancel_lost) and self._threads is not None:
                    return await self._within(timeout, route, running, run)
                run.scope = scope
                if route.is_awaited:  # asked first: most are, and it saves them a call (2 %)
                    return returned(run, await route.function(running))
                if unattended is not None and route.is_threaded:
                    unattended.start(run, _begin, route.function, running)
                    return None
                return returned(run, await self._call(route, run, running))
            finally:
                leave(token)
        except Exception as error:  # noqa: BLE001 - foreign code
            end_child_of(self._process, error)
            return self.judge.raised(run, error)

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
                return returned(run, await self._call(route, run, running, limit))
        finally:
            run.scope = None
        if run.lost is not None:
            return run.lost
        if run.interrupted:
            return run.stopped()
        if limit is not None and limit.stopped:
            return self.judge.put_off(
                job, f"no {route.site} was free for it in {THREAD_PATIENCE:g} s"
            )
        if timeout is not None and running.held_up >= timeout * _OUR_SHARE:
            return self.judge.put_off(job, "its timeout passed while it waited for Redis")
        raise _timed_out(f"the job took longer than its timeout of {timeout:g} s", run)

    def _call(
        self, route: Route, run: Run, running: RunningJob, limit: TimeLimit | None = None
    ) -> Awaitable[Any]:
        """Begin to call the function where its route says; `limit` stands still until it can."""
        call: CallNext[RunningJob] = route.function
        if route.batch is not None:
            call = partial(self._join, route, route.batch)
        elif route.site is not Site.LOOP:
            if route.site is Site.PROCESS and self._processes is not None:
                call = partial(self._in_process, self._processes, route, running, limit)
            else:
                call = partial(self._in_thread, route.function, limit, run)
        return (compose(route.layers, call) if route.layers else call)(running)

    def _join(self, route: Route, rules: BatchRules, running: RunningJob) -> Awaitable[Any]:
        """Wait with other jobs for the call of their function."""
        timeout = running.job.options.timeout or route.timeout
        if self._batches is None:
            raise TypeError("an executor without batches cannot run jobs that are gathered")
        item: Any = None
        if route.site is Site.PROCESS and self._processes is not None:
            check_size(running)  # the process reads it
        else:
            item = rules.read(running.job.raw_data)
        gatherer = self._batches.of(running.name, rules)
        return gatherer.join(running, item, timeout, partial(self._call_batch, route))

    async def _call_batch(self, route: Route, batch: Batch, timeout: float | None) -> Any:
        """Call the function with a batch where its route says; return what it returns."""
        limit: TimeLimit | None = None
        try:
            if timeout is None or self._threads is None:
                return await self._perform(route, batch, None)
            with CancelScope() as scope:
                limit = TimeLimit(scope, timeout)
                return await self._perform(route, batch, limit)
        except BaseException as error:
            end_child_of(self._process, error)
            raise
        finally:
            end_child_of(self._process)
        reason = "its timeout passed while its batch waited for Redis"
        if limit is not None and limit.stopped:
            reason = f"no {route.site} was free for its batch in {THREAD_PATIENCE:g} s"
        elif sum(job.held_up for job in batch.jobs) < timeout * _OUR_SHARE:
            raise _timed_out(
                f"the batch took longer than {timeout:g} s, the shortest timeout of its jobs",
                run_of(batch.jobs[0]),
            )
        for job in batch.jobs:
            self.judge.put_off(job.job, reason)
        raise Snooze(RELEASE_PAUSE)

    def _perform(self, route: Route, batch: Batch, limit: TimeLimit | None) -> Awaitable[Any]:
        call: Callable[[Batch], Any] = route.function
        if route.site is Site.PROCESS and self._processes is not None:
            return self._batch_in_process(self._processes, route, batch, limit)
        if route.site is not Site.LOOP:
            if self._threads is None:
                return _call_here(call, batch)
            return self._threads.run(call, batch, clock=limit)
        awaited: Awaitable[Any] = call(batch)
        return awaited

    def _in_thread(
        self, function: SyncHandler, limit: TimeLimit | None, run: Run, running: RunningJob
    ) -> Awaitable[Any]:
        if self._threads is None:
            return _call_here(function, running)
        return self._threads.run(_begin, function, running, clock=limit, owner=run)

    async def _in_process(
        self,
        processes: ProcessPool,
        route: Route,
        running: RunningJob,
        limit: TimeLimit | None,
        _: RunningJob,
    ) -> Any:
        [result] = await processes.run([running], route.grace, limit)
        if isinstance(result, Exception):
            raise result
        return opened(result, read=bool(route.layers))

    async def _batch_in_process(
        self, processes: ProcessPool, route: Route, batch: Batch, limit: TimeLimit | None
    ) -> list[Any]:
        results = await processes.run(batch.jobs, route.grace, limit)
        return [opened(result, read=bool(route.layers)) for result in results]


def _timed_out(reason: str, run: Run) -> TimeoutError:
    error = TimeoutError(reason)
    if run.halted_at:
        error.add_note(f"Its process was ended here:\n{run.halted_at}")
    return error


def _begin(function: SyncHandler, running: RunningJob) -> Any:
    """Call a function, in its thread, if it is not too late by now."""
    if (late := running.too_late()) is not None:
        raise NotBegun(late)
    return function(running)


async def _call_here(function: Callable[[G], Any], given: G) -> Any:
    return function(given)

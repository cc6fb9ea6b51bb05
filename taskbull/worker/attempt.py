"""What becomes of a job: before its function is called, and by what came of the call."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from random import random
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar, overload

from anyio import CancelScope
from msgspec import Struct

from taskbull.core.job import Job, Site
from taskbull.core.middleware import CallNext, Middleware, compose
from taskbull.core.outcome import (
    AwaitChildren,
    Complete,
    Fail,
    Outcome,
    SnoozeFor,
    expired,
    in_time,
)
from taskbull.core.retry import NO_POLICY, RetryPolicy, decide, doomed
from taskbull.core.validation import refusal
from taskbull.core.wire.job import encode_value
from taskbull.errors import ProcessUnavailable, Snooze
from taskbull.observability.logs import cut, one_line
from taskbull.worker.batch import Batch, BatchRules, Gathering
from taskbull.worker.clock import loop_offset
from taskbull.worker.fork import end_child_of
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.pool.results import Json, check_size, opened, outcome_of, told_by
from taskbull.worker.run import NotBegun, Run
from taskbull.worker.running_job import RunningJob, Workplace, enter, leave, run_of
from taskbull.worker.threads import ThreadPool, Unattended

# What becomes of a job: before its function is called, and by what came of the call.


logger = logging.getLogger(__name__)

RELEASE_PAUSE: Final = 5.0
"""Seconds after which a job runs again that Redis kept from being run to its end."""

_NOTHING = Complete()


def returned(run: Run, value: Any) -> Complete | Fail:
    """Return what is to become of a job whose function returned something."""
    if run.heeded:
        return run.stopped()
    if value is None:
        return _NOTHING
    if value.__class__ is Json:
        return Complete(value.raw)
    return Complete(encode_value(value, run.job.options.result_limit))


class Judge:
    """Decides about the jobs of one queue."""

    def __init__(self, place: Workplace) -> None:
        self._place = place

    def fate(self, run: Run) -> Fail | None:
        """Return the outcome of a job that is not to be run; None: it is."""
        job = run.job
        if (fate := doomed(job)) is not None:
            return fate
        return expired(job, self._place.wall_ms()) if run.cancelled is None else run.stopped()

    def raised(self, run: Run, error: BaseException) -> Outcome:
        """Return the outcome of a job whose function raised something; never raise.

        An error that cannot be examined, or a log filter that raises, fails the attempt instead.
        """
        try:
            return self._raised(run, error)
        except BaseException as fault:  # noqa: BLE001 - foreign code: the error's own class
            return decide(fault, run.job, run.policy, random=random)

    def _raised(self, run: Run, error: BaseException) -> Outcome:
        if isinstance(error, NotBegun):
            return error.outcome
        job = run.job
        if run.interrupted or run.heeded:
            return run.stopped(error)
        told = told_by(error)  # what a process has decided stands
        outcome = None if told is None else outcome_of(told, run)
        if outcome is None:
            if told is not None or (run.port is not None and run.port.caused(error)):
                return self.put_off(job, f"Redis did not accept what it wrote: {error}")
            if isinstance(error, ProcessUnavailable):
                return self.put_off(job, str(error))
            outcome = decide(error, job, run.policy, random=random)
        if isinstance(outcome, AwaitChildren):
            return run.awaiting_children()
        return in_time(job, outcome, self._place.wall_ms())

    def settle(self, run: Run, value: Any, error: BaseException | None) -> Outcome:
        """Return the outcome of a job whose function was left to others; never raise."""
        if error is None:
            try:
                return returned(run, value)
            except BaseException as unfit:  # noqa: BLE001 - foreign code
                error = unfit
        return self.raised(run, error)

    def put_off(self, job: Job, reason: str) -> Outcome:
        """Return an outcome that spends no attempt, for a job that could not run to its end."""
        logger.warning(
            "Job %s (%s) of queue %s is delayed by %g s, at no cost of an attempt: %s",
            cut(job.id),
            cut(job.name),
            self._place.queue,
            RELEASE_PAUSE,
            one_line(reason),
        )
        return in_time(job, SnoozeFor(RELEASE_PAUSE), self._place.wall_ms())


# How a worker runs a job: which function, called where, and by which rules for its errors.


Handler: TypeAlias = Callable[[RunningJob], Awaitable[Any]]
"""Runs a job and returns its result, which must be JSON."""

SyncHandler: TypeAlias = Callable[[RunningJob], Any]


class Route(Struct, frozen=True, dict=True):
    """How the jobs of a task are run."""

    function: Callable[[Any], Any]
    """Called with the job; a `Handler` or `SyncHandler`."""
    policy: RetryPolicy = NO_POLICY
    timeout: float | None = None
    """Seconds that one attempt may take; a job's own time wins."""
    site: Site = Site.LOOP
    """Where the function is called: one that blocks must not be called in the event loop."""
    grace: float = 5.0
    """Seconds that the function has to end when its process is told to."""
    layers: Sequence[Middleware[RunningJob]] = ()
    """What surrounds the call, in the event loop; the first one is outermost."""
    batch: BatchRules | None = None
    """How jobs are gathered for one call, if that takes many: then the function is called with a
    `Batch`, and returns one result for each job. The layers surround each job nevertheless."""

    @cached_property
    def is_awaited(self) -> bool:
        """Whether the function is awaited as it is: in the event loop, with nothing around it."""
        return self.site is Site.LOOP and self.batch is None and not self.layers

    @cached_property
    def is_threaded(self) -> bool:
        """Whether the function is called in a thread, with nothing around it."""
        return self.site is Site.THREAD and self.batch is None and not self.layers


Resolve: TypeAlias = Callable[[Job], Route]
"""Returns how a job is to be run; what it raises is the job's failure."""


def always(handler: Handler | SyncHandler | None, policy: RetryPolicy) -> Resolve:
    """Resolve every job to one function, which runs in a thread unless it is an `async def`."""
    if not callable(handler):
        raise refusal("handler", "be a function that takes the job", handler)
    # An object with an `async def __call__` is as good as a function.
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    )
    route = Route(handler, policy, site=Site.LOOP if is_async else Site.THREAD)
    return lambda _: route


# The time that an attempt has.


THREAD_PATIENCE: Final = 60.0
"""Seconds for which a job with a timeout waits for a thread before it is put off."""


class TimeLimit:
    """Cancels a scope when an attempt has had its time; to wait for a thread costs none of it."""

    __slots__ = ("_left", "_loop_offset", "_scope", "stopped")

    def __init__(self, scope: CancelScope, seconds: float) -> None:
        self._scope = scope
        self._left = seconds
        self._loop_offset = loop_offset()
        self.stopped = False
        """Whether the attempt waits for a thread."""
        scope.deadline = self._now() + seconds

    def stop(self) -> None:
        """Stop the clock."""
        now = self._now()
        self._left = self._scope.deadline - now
        self._scope.deadline = now + THREAD_PATIENCE
        self.stopped = True

    def go_on(self) -> None:
        """Start the clock again."""
        self._scope.deadline = self._now() + self._left
        self.stopped = False

    def _now(self) -> float:
        """Return the event loop's time, also in a callback."""
        return monotonic() + self._loop_offset


# One attempt of a job: its function is called, and what comes of that decides about the job.
#
# A worker and `taskbull.testing` run jobs by it alike. How the function is called is for the route
# to say, and for `Executor._call` to do: in the event loop, in a thread, or in a process of the
# pool.


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

"""Run one attempt of a job and decide its outcome.

`Executor` calls the job's function as its `Route` says: in the event loop, in a thread, or in a
pool process. `OutcomeDecider` turns the result or the error into an outcome. Workers and
`taskbull.testing` share this code.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from random import random
from types import FrameType
from typing import Any, Final, TypeAlias, TypeVar, overload

import msgspec
from anyio import CancelScope, move_on_after
from msgspec import Struct

from taskbull.core.job import CallNext, ExecutionMode, Job, Middleware, compose
from taskbull.core.outcome import (
    AwaitChildren,
    Complete,
    Fail,
    Outcome,
    SnoozeFor,
    expired,
    format_stack,
    frames_of,
    in_time,
)
from taskbull.core.retry import NO_POLICY, RetryPolicy, decide, failure_before_run
from taskbull.core.steps import SIGNAL_JOB, WAIT_JOB, check_signal_name
from taskbull.core.validation import refusal
from taskbull.core.wire.job import encode_value
from taskbull.errors import (
    ConfigurationError,
    JobNotFound,
    PermanentError,
    ProcessUnavailable,
    Snooze,
    TaskbullError,
    WrongState,
)
from taskbull.observability.logs import cut, one_line
from taskbull.scripts.change import encode_signal
from taskbull.worker.batch import Batch, BatchRules, Gathering
from taskbull.worker.pool.messages import Json, check_size, opened, outcome_of, remote_error_of
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.run import NotStarted, ResultCheck, Run, end_child_of
from taskbull.worker.running_job import (
    JobEnvironment,
    RunningJob,
    ending_of,
    enter,
    leave,
    port_of,
    run_of,
    stopped_by,
)
from taskbull.worker.threads import (
    THREAD_PATIENCE,
    ThreadCall,
    ThreadDispatcher,
    ThreadPool,
    TimeLimit,
    current_frames,
)

# Outcomes.


logger = logging.getLogger(__name__)

RELEASE_PAUSE: Final = 5.0
"""Delay in seconds for a job that could not finish for reasons outside its own code."""

_NOTHING = Complete()


def returned(run: Run, value: Any) -> Complete | Fail:
    """Return the outcome of a job whose function returned a value."""
    if run.cancel_seen:
        return run.stopped()
    if run.steps is not None and (stopped := stopped_by(run)) is not None:
        raise stopped  # The function has caught it.
    check = run.check_result
    if value is None and (check is None or value.__class__ in check[0]):
        return _NOTHING
    limit = run.job.options.result_limit
    raw: bytes = value.raw if isinstance(value, Json) else encode_value(value, limit)
    if check is not None and value.__class__ not in check[0]:
        check[1](raw)
    return Complete(raw)


class OutcomeDecider:
    """Decides the outcomes of one queue's jobs."""

    def __init__(self, environment: JobEnvironment) -> None:
        self._environment = environment

    def outcome_before_run(self, run: Run) -> Fail | None:
        """Return the outcome of a job that must not run, or None if it may run."""
        job = run.job
        if (outcome := failure_before_run(job)) is not None:
            return outcome
        return expired(job, self._environment.wall_ms()) if run.cancelled is None else run.stopped()

    def raised(self, run: Run, error: BaseException) -> Outcome:
        """Return the outcome of a job whose function raised an error. Never raise.

        If the error cannot be examined, or a log filter raises, the attempt fails with that second
        error.
        """
        try:
            return self._raised(run, error)
        except BaseException as fault:  # noqa: BLE001 - the error's class is user code
            return decide(fault, run.job, run.policy, random=random)

    def _raised(self, run: Run, error: BaseException) -> Outcome:
        if isinstance(error, NotStarted):
            return error.outcome
        job = run.job
        if run.interrupted or run.cancel_seen:
            return run.stopped(error)
        error = ending_of(run, error)
        remote = remote_error_of(error)  # A pool process has already decided.
        outcome = None if remote is None else outcome_of(remote, run)
        if outcome is None:
            if remote is not None or (run.port is not None and run.port.caused(error)):
                return self.release_later(job, f"Redis did not accept what it wrote: {error}")
            if isinstance(error, ProcessUnavailable):
                return self.release_later(job, str(error))
            outcome = decide(error, job, run.policy, random=random)
        if isinstance(outcome, AwaitChildren):
            return run.awaiting_children()
        return in_time(job, outcome, self._environment.wall_ms())

    def settle(self, run: Run, value: Any, error: BaseException | None) -> Outcome:
        """Return the outcome of a job whose function ran in a detached thread. Never raise."""
        if error is None:
            try:
                return returned(run, value)
            except BaseException as unfit:  # noqa: BLE001 - user code may raise anything
                error = unfit
        return self.raised(run, error)

    def release_later(self, job: Job, reason: str) -> Outcome:
        """Return an outcome that delays a job without using an attempt, and log the reason."""
        logger.warning(
            "Job %s (%s) in queue %s is delayed by %g s, without using an attempt: %s",
            cut(job.id),
            cut(job.name),
            self._environment.queue,
            RELEASE_PAUSE,
            one_line(reason),
        )
        return in_time(job, SnoozeFor(RELEASE_PAUSE), self._environment.wall_ms())


# Routes: the function to call, the place to call it in, and the retry policy.


Handler: TypeAlias = Callable[[RunningJob], Awaitable[Any]]
"""An async function that runs a job and returns its result, which must be JSON-serializable."""

SyncHandler: TypeAlias = Callable[[RunningJob], Any]


class Route(Struct, frozen=True, dict=True):
    """The way a worker runs a task's jobs."""

    function: Callable[[Any], Any]
    """The `Handler` or `SyncHandler` to call with the job."""
    policy: RetryPolicy = NO_POLICY
    timeout: float | None = None
    """Time limit of one attempt in seconds. A timeout set on the job takes precedence."""
    execution_mode: ExecutionMode = ExecutionMode.LOOP
    """The place to call the function in. A blocking function must not run in the event loop."""
    grace: float = 5.0
    """Seconds that the function has to finish after its process is asked to stop it."""
    layers: Sequence[Middleware[RunningJob]] = ()
    """Middleware around the call, outermost first. It runs in the event loop."""
    batch: BatchRules | None = None
    """Rules for a batch task. The function is then called with a `Batch` and returns one result per
    job. Middleware still wraps each job separately."""
    check_result: ResultCheck | None = None
    """The check for results. None accepts all results."""

    @cached_property
    def is_awaited(self) -> bool:
        """True if the function runs in the event loop without batching or middleware."""
        return self.execution_mode is ExecutionMode.LOOP and self.batch is None and not self.layers

    @cached_property
    def is_threaded(self) -> bool:
        """True if the function runs in a thread without batching or middleware."""
        return (
            self.execution_mode is ExecutionMode.THREAD and self.batch is None and not self.layers
        )


Resolve: TypeAlias = Callable[[Job], Route]
"""A function that returns the route for a job. If it raises, the job fails with that error."""


def always(handler: Handler | SyncHandler | None, policy: RetryPolicy) -> Resolve:
    """Return a resolver that sends every job to one function.

    The function runs in a thread unless it is an `async def`. Raises `ConfigurationError` if it is
    not callable.
    """
    if not callable(handler):
        raise refusal("handler", "be a function that takes the job", handler)
    # An object with an `async def __call__` also counts as async.
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - checks its kind, not its presence
    )
    route = Route(
        handler, policy, execution_mode=ExecutionMode.LOOP if is_async else ExecutionMode.THREAD
    )
    return lambda job: _SYSTEM_ROUTES.get(job.name, route)


# Jobs that taskbull adds, or that Node adds for it: the ends of waits, and signals.


async def _end_wait(job: RunningJob) -> dict[str, Any] | None:
    """Return the value that another client has stored in a wait's job. None means a timeout."""
    data = job.data
    return {"value": data["value"]} if isinstance(data, dict) and "value" in data else None


class _Signal(Struct):
    job: str
    name: str
    value: Any = None


async def _send_signal(job: RunningJob) -> None:
    try:
        signal = msgspec.convert(job.data, _Signal)
        name, raw = check_signal_name(signal.name), encode_signal(signal.value)
        await port_of(job).acall("send_signal", signal.job, name, raw)
    except (msgspec.ValidationError, ConfigurationError, JobNotFound, WrongState) as error:
        raise PermanentError(str(error)) from error


_SYSTEM_ROUTES: Final = {WAIT_JOB: Route(_end_wait), SIGNAL_JOB: Route(_send_signal)}


def system_route(name: str) -> Route | None:
    """Return the route of a job that every worker can run, whatever its tasks."""
    return _SYSTEM_ROUTES.get(name)


# Attempts.


G = TypeVar("G")

_FLUSH_LIMIT = 1.0
"""Seconds to write the last items of a process."""

_OUR_SHARE = 0.1
"""Share of a timeout that a job may spend waiting for Redis and still be failed for the timeout."""


class Executor:
    """Runs attempts of one queue's jobs.

    Without `threads` there is no event loop (`taskbull.testing`): blocking functions are called
    directly, and timeouts are ignored. Without `processes`, functions meant for a process run in a
    thread. With `cancel_lost`, a job that loses its lock is cancelled.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        resolve: Resolve,
        *,
        threads: ThreadPool | None,
        processes: ProcessPool | None = None,
        batches: Gathering | None = None,
        cancel_lost: bool = False,
    ) -> None:
        self.decider = OutcomeDecider(environment)
        self._environment = environment
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
        self, run: Run, scope: CancelScope | None, unattended: ThreadDispatcher | None
    ) -> Outcome | None: ...
    async def attempt(
        self,
        run: Run,
        scope: CancelScope | None = None,
        unattended: ThreadDispatcher | None = None,
    ) -> Outcome | None:
        """Run a job once and return its outcome.

        A sync function without middleware is handed to `unattended`, if given, unless a timeout or
        `cancel_lost` applies. In that case this method returns None immediately.

        `scope` is the scope that the caller runs in. It is cancelled if the job is cancelled while
        its function runs outside a thread. The caller must then leave it before awaiting anything.

        Every `Exception` becomes an outcome. Other exceptions propagate, and the caller decides
        whether they stop only the job or the whole slot.
        """
        job = run.job
        if (
            run.cancelled is not None
            or job.deferred_failure is not None
            or job.corrupt is not None
            or job.options.expires_ms is not None
        ) and (outcome := self.decider.outcome_before_run(run)) is not None:
            return outcome
        try:
            route = self._resolve(job)
            run.policy = route.policy
            run.check_result = route.check_result
            # The timeout of a batch applies to its call, which starts later.
            timeout = None if route.batch else job.options.timeout or route.timeout
            running = RunningJob(run, self._environment)
            token = enter(running)
            try:
                if (timeout is not None or self._cancel_lost) and self._threads is not None:
                    return await self._within(timeout, route, running, run)
                run.scope = scope
                if route.is_awaited:  # Check the common case first; saves a function call (2 %).
                    return returned(run, await route.function(running))
                if unattended is not None and route.is_threaded:
                    unattended.start(run, _begin, route.function, running)
                    return None
                return returned(run, await self._call(route, run, running))
            finally:
                leave(token)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            end_child_of(self._process, error)
            return self.decider.raised(run, error)

    async def _within(
        self, timeout: float | None, route: Route, running: RunningJob, run: Run
    ) -> Outcome:
        """Call the function in a scope that is cancelled on timeout or when the lock is lost."""
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
            return self.decider.release_later(
                job, f"no {route.execution_mode} was free for it in {THREAD_PATIENCE:g} s"
            )
        if timeout is not None and running.redis_wait_seconds >= timeout * _OUR_SHARE:
            return self.decider.release_later(job, "its timeout passed while it waited for Redis")
        raise _timed_out(f"the job took longer than its timeout of {timeout:g} s", run)

    def _call(
        self, route: Route, run: Run, running: RunningJob, limit: TimeLimit | None = None
    ) -> Awaitable[Any]:
        """Start the call where the route says. `limit` is paused until it can begin."""
        call: CallNext[RunningJob] = route.function
        if route.batch is not None:
            call = partial(self._join, route, route.batch)
        elif route.execution_mode is not ExecutionMode.LOOP:
            if route.execution_mode is ExecutionMode.PROCESS and self._processes is not None:
                call = partial(self._in_process, self._processes, route, running, limit)
            else:
                call = partial(self._in_thread, route.function, limit, run)
        return (compose(route.layers, call) if route.layers else call)(running)

    def _join(self, route: Route, rules: BatchRules, running: RunningJob) -> Awaitable[Any]:
        timeout = running.job.options.timeout or route.timeout
        if self._batches is None:
            raise TypeError("this executor does not support batches")
        item: Any = None
        if route.execution_mode is ExecutionMode.PROCESS and self._processes is not None:
            check_size(running)  # The pool process decodes the item.
        else:
            item = rules.read(running.job.raw_data)
        gatherer = self._batches.of(running.name, rules)
        return gatherer.join(running, item, timeout, partial(self._call_batch, route))

    async def _call_batch(self, route: Route, batch: Batch, timeout: float | None) -> Any:
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
            reason = f"no {route.execution_mode} was free for its batch in {THREAD_PATIENCE:g} s"
        elif sum(job.redis_wait_seconds for job in batch.jobs) < timeout * _OUR_SHARE:
            raise _timed_out(
                f"the batch took longer than {timeout:g} s, the shortest timeout of its jobs",
                run_of(batch.jobs[0]),
            )
        for job in batch.jobs:
            self.decider.release_later(job.job, reason)
        raise Snooze(RELEASE_PAUSE)

    def _perform(self, route: Route, batch: Batch, limit: TimeLimit | None) -> Awaitable[Any]:
        call: Callable[[Batch], Any] = route.function
        if route.execution_mode is ExecutionMode.PROCESS and self._processes is not None:
            return self._batch_in_process(self._processes, route, batch, limit)
        if route.execution_mode is not ExecutionMode.LOOP:
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
        try:
            [result] = await processes.run([running], route.grace, limit)
        finally:
            await _flush_stream(running)
        if isinstance(result, Exception):
            raise result
        return opened(result, read=bool(route.layers))

    async def _batch_in_process(
        self, processes: ProcessPool, route: Route, batch: Batch, limit: TimeLimit | None
    ) -> list[Any]:
        results = await processes.run(batch.jobs, route.grace, limit)
        return [opened(result, read=bool(route.layers)) for result in results]


async def _flush_stream(running: RunningJob) -> None:
    """Write the last items of a process that died or was stopped."""
    port = run_of(running).port
    if port is not None and port.has_stream:
        with move_on_after(_FLUSH_LIMIT, shield=True), suppress(TaskbullError):
            await port.acall("flush_stream")


def _timed_out(reason: str, run: Run) -> TimeoutError:
    error = TimeoutError(reason)
    if run.halted_at:
        error.add_note(f"Its process was ended here:\n{run.halted_at}")
    elif (frames := thread_frames(run)) is not None:
        error.add_note(f"Its thread is here:\n{format_stack(frames)}")
    return error


def thread_frames(run: Run) -> list[FrameType] | None:
    """Return the frames of the thread that runs the job's function, or None if none does."""
    for innermost in current_frames().values():
        frames = frames_of(innermost)
        for place, frame in enumerate(frames):
            if frame.f_code is ThreadPool.run_calls.__code__:
                call = frame.f_locals.get("call")
                if isinstance(call, ThreadCall) and _is_for(run, call.args):
                    return frames[place + 1 :]
    return None


def _is_for(run: Run, args: tuple[Any, ...]) -> bool:
    """Return True if a function is called with the job, or with a batch that contains it."""
    for each in args:
        if isinstance(each, RunningJob) and run_of(each) is run:
            return True
        if isinstance(each, Batch) and any(run_of(job) is run for job in each.jobs):
            return True
    return False


def _begin(function: SyncHandler, running: RunningJob) -> Any:
    """Call a function in its thread, unless the job expired while it waited."""
    if (late := running.too_late()) is not None:
        raise NotStarted(late)
    return function(running)


async def _call_here(function: Callable[[G], Any], given: G) -> Any:
    return function(given)

"""Execution of a box's jobs: batches, event loops, lifespans and virtual schedules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import anyio
from anyio import CancelScope, Event, create_task_group
from anyio.from_thread import start_blocking_portal

from taskbull.app.app import App
from taskbull.app.group import Resources
from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.job import ExecutionMode, Job, current
from taskbull.core.outcome import Complete, Discard, Fail, Outcome
from taskbull.core.schedule import Cron, Every
from taskbull.core.validation import is_async
from taskbull.errors import ConfigurationError
from taskbull.queue.handle import in_event_loop
from taskbull.store.backend import Waiter, waiters
from taskbull.testing.recorded_job import WORKER_ID, BoxPort, RecordedJob
from taskbull.worker import running_job
from taskbull.worker.attempt import Executor, Route
from taskbull.worker.batch import BatchCall, BatchMember, BatchRules, Perform, is_called_alone
from taskbull.worker.run import Run
from taskbull.worker.threads import ThreadPool

# Batches. A box has all due jobs of a batch available, so nothing waits for more.


Attempt = Coroutine[Any, Any, Outcome]


class Rendezvous:
    """A gathering point for the jobs of one batch.

    The batch is called when every job has either joined or finished.
    """

    def __init__(self, new_waiter: Callable[[], Waiter], on_change: Callable[[], None]) -> None:
        self._new_waiter = new_waiter
        self._on_change = on_change
        self.members: list[BatchMember] = []
        self.order: list[str] = []
        """The ids of all jobs that may join, which set the order of the items."""

    def of(self, task: str, rules: BatchRules) -> Rendezvous:
        """Return itself, because a box runs one task at a time."""
        return self

    async def join(
        self, job: running_job.RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any:
        """Join the batch, wait for its call, and return the job's result."""
        member = BatchMember(job, item, timeout, perform, self._new_waiter())
        self.members.append(member)
        self._on_change()
        await member.waiter
        return member.result()

    async def call(self) -> None:
        """Call the function with the gathered jobs; those that need it are called alone.

        See `is_called_alone`.
        """
        members = sorted(self.members, key=lambda member: self.order.index(member.job.id))
        self.members = []
        alone = [member for member in members if is_called_alone(member.job)]
        together = [member for member in members if member not in alone]
        for some in ([together] if together else []) + [[member] for member in alone]:
            await _perform(BatchCall(some))


async def _perform(call: BatchCall) -> None:
    batch = call.batch()
    token = running_job.enter_batch(batch.jobs)
    try:
        results = await call.members[0].perform(batch, call.timeout)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the task's code may raise anything
        call.end(None, error)
    else:
        call.end(results)
    finally:
        running_job.leave_batch(token)


async def run_together(make: Callable[[Rendezvous], Sequence[Attempt]]) -> list[Outcome]:
    """Run the attempts of a batch in this event loop; return their outcomes in order."""
    something = Event()

    def notify() -> None:
        something.set()

    rendezvous = Rendezvous(waiters(), notify)
    outcomes: dict[int, Outcome] = {}

    async def finish(number: int, attempt: Attempt) -> None:
        outcomes[number] = await attempt
        notify()

    attempts = make(rendezvous)
    async with create_task_group() as tasks:
        for number, attempt in enumerate(attempts):
            tasks.start_soon(finish, number, attempt)
        while len(outcomes) < len(attempts):
            if rendezvous.members and len(rendezvous.members) + len(outcomes) == len(attempts):
                await rendezvous.call()
            else:
                await something.wait()
            something = Event()
    return [outcomes[number] for number in range(len(attempts))]


class HandWaiter:
    """A waiter for coroutines that are driven by hand, without an event loop."""

    def __init__(self) -> None:
        self._done = False

    def __await__(self) -> Generator[Any, Any, Any]:
        while not self._done:
            yield

    def done(self) -> bool:
        return self._done

    def set_result(self, value: Any, /) -> None:
        self._done = True

    def set_exception(self, error: BaseException, /) -> None:
        raise error

    def cancel(self) -> None:
        self._done = True


def run_together_plainly(make: Callable[[Rendezvous], Sequence[Attempt]]) -> list[Outcome]:
    """Run the attempts of a batch with a sync function in this thread, without an event loop."""
    rendezvous = Rendezvous(HandWaiter, lambda: None)
    # Each attempt has its own context, as in a task, because the attempts are interleaved.
    running = {number: (copy_context(), one) for number, one in enumerate(make(rendezvous))}
    outcomes: dict[int, Outcome] = {}
    while running:
        for number, (context, attempt) in [*running.items()]:
            try:
                context.run(attempt.send, None)
            except StopIteration as end:
                outcomes[number] = end.value
                del running[number]
        if rendezvous.members:
            finish(rendezvous.call())
    return [outcomes[number] for number in sorted(outcomes)]


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends; return its value.

    Raises:
        RuntimeError: If the coroutine suspends.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a sync function cannot wait for an event loop")


# Attempts, in this thread or in an event loop, with the app's lifespans.


ResourcesOf: TypeAlias = Callable[[str], Any]
"""A function that returns the resources for the jobs of a task."""

Resolve: TypeAlias = Callable[[Job], Route]
"""A function that returns the route for a job."""

InLoop: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, list[Outcome]]]], list[Outcome]]
"""A function that runs an async function in an event loop, for sync code."""


def _refuse_to_run(_: object) -> list[Outcome]:
    raise RuntimeError("this stage is in an event loop already")


class Stage:
    """A runner for recorded jobs, which makes one attempt at each job or batch."""

    def __init__(
        self,
        resources_of: ResourcesOf,
        now: Callable[[], float],
        resolve: Resolve,
        in_loop: InLoop = _refuse_to_run,
    ) -> None:
        self._resolve = resolve
        self._resources_of = resources_of
        self._now = now
        self._in_loop = in_loop

    def run(self, jobs: Sequence[RecordedJob]) -> list[Outcome]:
        """Run jobs of one task. Sync functions run in this thread without an event loop."""
        if not self._is_plain(jobs[0]):
            return self._in_loop(partial(self.arun, jobs))
        if len(jobs) > 1 or self._is_batch(jobs[0]):
            return run_together_plainly(partial(self._attempts, jobs, None))
        return [finish(self._attempt(jobs[0], None, None))]

    def call_hook(self, hook: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Call a hook in this thread, or in an event loop if it is an `async def`."""
        if not is_async(hook):
            hook(*args)
            return

        async def call() -> list[Outcome]:
            await hook(*args)
            return []

        self._in_loop(call)

    async def acall_hook(self, hook: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Await a hook, or call it in a thread if it is a sync function."""
        if is_async(hook):
            await hook(*args)
        else:
            await anyio.to_thread.run_sync(partial(hook, *args))

    async def arun(self, jobs: Sequence[RecordedJob]) -> list[Outcome]:
        """Run jobs of one task in this event loop, and sync functions in threads."""
        threads = ThreadPool(1)
        try:
            if len(jobs) > 1 or self._is_batch(jobs[0]):
                return await run_together(partial(self._attempts, jobs, threads))
            return [await self._attempt(jobs[0], threads, None)]
        finally:
            threads.close()

    def _attempts(
        self, jobs: Sequence[RecordedJob], threads: ThreadPool | None, rendezvous: Rendezvous
    ) -> list[Coroutine[Any, Any, Outcome]]:
        rendezvous.order = [job.id for job in jobs]
        return [self._attempt(job, threads, rendezvous) for job in jobs]

    async def _attempt(
        self, recorded: RecordedJob, threads: ThreadPool | None, batches: Rendezvous | None
    ) -> Outcome:
        def wall_ms() -> int:
            return recorded.wall_ms(self._now())

        record = BoxPort(recorded, wall_ms)
        recorded.awaited, recorded.has_awaited = {}, False
        environment = running_job.JobEnvironment(
            recorded.queue, WORKER_ID, lambda _: record, self._resources_of, wall_ms
        )
        executor = Executor(environment, self._resolve, threads=threads, batches=batches)
        with _running(recorded, wall_ms()) as run:
            try:
                if threads is None:  # Without threads there is no event loop, so no cancel scope.
                    with running_job.job_thread():
                        return _with_cancellation(run, await executor.attempt(run))
                running_job.enter_slot()
                with CancelScope() as scope:
                    return _with_cancellation(run, await executor.attempt(run, scope))
            except SystemExit as error:  # Others, such as `pytest.fail`, end the test.
                return _with_cancellation(run, executor.decider.raised(run, error))
            return run.stopped()  # The scope was cancelled.

    def _is_plain(self, recorded: RecordedJob) -> bool:
        """Return True if a job needs no event loop: a sync function without async middleware."""
        try:
            route = self._resolve(recorded.as_job())
        except ConfigurationError:  # The job fails with this error when it runs.
            return False
        return route.execution_mode is not ExecutionMode.LOOP and not route.layers

    def _is_batch(self, recorded: RecordedJob) -> bool:
        try:
            return self._resolve(recorded.as_job()).batch is not None
        except ConfigurationError:
            return False


@contextmanager
def _running(recorded: RecordedJob, now_ms: int) -> Generator[Run]:
    recorded.started_ms = now_ms
    recorded.starts += 1
    recorded.run = run = Run(recorded.as_job(), token="", renewed=0.0)
    try:
        yield run
    finally:
        recorded.run = None


def _with_cancellation(run: Run, outcome: Outcome) -> Outcome:
    """Return the outcome, or the cancellation if a cancelled job would run again."""
    if run.cancelled is None or isinstance(outcome, Complete | Fail | Discard):
        return outcome
    failure = outcome.failure
    return run.stopped(None if failure is None else failure.error)


class Given(NamedTuple):
    """Resources that replace those of the app's lifespans, which then do not run."""

    value: Any


@asynccontextmanager
async def open_resources(app: App, given: Given | None) -> AsyncGenerator[ResourcesOf, None]:
    """Run the app's lifespans around the block, unless resources are given.

    Yield a function that returns the resources for the jobs of a task.
    """
    if given is not None:
        yield lambda _: given.value
        return
    async with AsyncExitStack() as stack:
        givers: dict[bool, Callable[[str], Any]] = {}  # by `in_process`
        for in_process, resources in _resources(app).items():
            yielded = await stack.enter_async_context(resources.open())
            givers[in_process] = partial(resources.of, yielded)

        def resources_of(name: str) -> Any:
            task = app.tasks.get(name)
            return givers[task is not None and task.execution_mode is ExecutionMode.PROCESS](name)

        yield resources_of


def _resources(app: App) -> dict[bool, Resources]:
    """Return the app's resources by `in_process`, because processes have their own lifespans."""
    has_processes = any(task.execution_mode is ExecutionMode.PROCESS for task in app.tasks.values())
    sites = (False, True) if has_processes else (False,)
    return {in_process: Resources(app.registry, in_process=in_process) for in_process in sites}


@contextmanager
def stage_for(
    app: App, given: Given | None, now: Callable[[], float], resolve: Resolve, backend: str
) -> Generator[Stage]:
    """Provide a stage for sync code.

    Each async job runs in its own event loop. If the app has lifespans, all async jobs run in
    the lifespans' event loop, in another thread.
    """
    if given is not None or not any(_resources(app).values()):
        value = None if given is None else given.value
        yield Stage(lambda _: value, now, resolve, partial(_run_in_new_loop, backend))
        return
    with start_blocking_portal(backend) as portal:
        opened = portal.wrap_async_context_manager(open_resources(app, given))
        with opened as resources_of:
            yield Stage(resources_of, now, resolve, portal.call)


def _run_in_new_loop(
    backend: str, run: Callable[[], Coroutine[Any, Any, list[Outcome]]]
) -> list[Outcome]:
    if not in_event_loop() and current.get(None) is None:
        return anyio.run(run, backend=backend)
    # This thread runs an event loop, or a job with the context of one.
    with start_blocking_portal(backend) as portal:
        return portal.call(run)


class VirtualSchedule:
    """A declared schedule in virtual time, created at `began`.

    It computes the next run as workers and Redis do.
    """

    def __init__(self, declared: DeclaredSchedule, began: datetime) -> None:
        self.declared = declared
        self._runs = 0
        self.due = self._bounded(self._first(began))
        """Time of the next run, or `None` if the schedule has ended."""

    def run(self, now: datetime) -> None:
        """Advance to the next run, skipping missed slots."""
        rule = self.declared.rule
        self._runs += 1
        if self.due is None or self._runs == rule.limit:
            self.due = None
        elif isinstance(rule, Cron):
            self.due = self._bounded(rule.next(max(self.due, now)))
        else:
            interval = timedelta(milliseconds=rule.interval_ms)
            missed = max(0, (now - self.due) // interval)
            self.due = self._bounded(self.due + interval * (missed + 1))

    def _first(self, began: datetime) -> datetime | None:
        match self.declared.rule:
            case Cron() as rule:
                return began if rule.immediately else rule.next(began)
            case Every() as rule if rule.offset is None:
                return began if rule.start is None else max(began, rule.start)
            case rule:
                return rule.next(began - timedelta(milliseconds=1))

    def _bounded(self, due: datetime | None) -> datetime | None:
        end = self.declared.rule.end
        return None if due is None or (end is not None and due > end) else due

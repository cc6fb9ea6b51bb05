"""Where the jobs of a box run: in this thread, or in an event loop; with the app's lifespans."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
from anyio import CancelScope
from anyio.from_thread import start_blocking_portal

from taskbull.app.app import App
from taskbull.app.resources import Resources
from taskbull.core.outcome import Complete, Fail, LetGo, Outcome
from taskbull.core.site import Site
from taskbull.errors import ConfigurationError
from taskbull.testing.record import WORKER_ID, BoxPort
from taskbull.testing.recorded_job import RecordedJob
from taskbull.testing.rendezvous import Rendezvous, finish, run_together, run_together_plainly
from taskbull.worker.attempt import Executor
from taskbull.worker.run import Run
from taskbull.worker.running_job import Workplace
from taskbull.worker.threads import ThreadPool

ResourcesOf: TypeAlias = Callable[[str], Any]
"""Returns what the jobs of a task are given."""

InLoop: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, list[Outcome]]]], list[Outcome]]
"""Runs an async function in an event loop, from code that has none."""


def _nowhere(_: object) -> list[Outcome]:
    raise RuntimeError("this stage is in an event loop already")


class Stage:
    """Runs recorded jobs, one attempt of each; those of a batch together."""

    def __init__(
        self,
        app: App,
        resources_of: ResourcesOf,
        now: Callable[[], float],
        in_loop: InLoop = _nowhere,
    ) -> None:
        self._app = app
        self._resources_of = resources_of
        self._now = now
        self._in_loop = in_loop

    def run(self, jobs: Sequence[RecordedJob]) -> list[Outcome]:
        """Run jobs of one task; plain functions in this thread, without an event loop."""
        if not self._is_plain(jobs[0]):
            return self._in_loop(partial(self.arun, jobs))
        if len(jobs) > 1 or self._is_batch(jobs[0]):
            return run_together_plainly(partial(self._attempts, jobs, None))
        return [finish(self._attempt(jobs[0], None, None))]

    async def arun(self, jobs: Sequence[RecordedJob]) -> list[Outcome]:
        """Run jobs of one task in this event loop, plain functions in threads."""
        threads = ThreadPool(1)
        try:
            if len(jobs) > 1 or self._is_batch(jobs[0]):
                return await run_together(partial(self._attempts, jobs, threads))
            return [await self._attempt(jobs[0], threads, None)]
        finally:
            threads.close()

    def _attempts(
        self, jobs: Sequence[RecordedJob], threads: ThreadPool | None, place: Rendezvous
    ) -> list[Coroutine[Any, Any, Outcome]]:
        place.order = [job.id for job in jobs]
        return [self._attempt(job, threads, place) for job in jobs]

    async def _attempt(
        self, recorded: RecordedJob, threads: ThreadPool | None, batches: Rendezvous | None
    ) -> Outcome:
        record = BoxPort(recorded)
        place = Workplace(
            recorded.queue,
            WORKER_ID,
            lambda _: record,
            self._resources_of,
            lambda: recorded.wall_ms(self._now()),
        )
        executor = Executor(place, self._app.resolve, threads=threads, batches=batches)
        with _running(recorded) as run:
            if threads is None:  # there is no event loop either
                return _heeding(run, await executor.attempt(run))
            with CancelScope() as scope:
                return _heeding(run, await executor.attempt(run, scope))
            return run.stopped()  # the scope was cancelled

    def _is_plain(self, recorded: RecordedJob) -> bool:
        """Return whether a job needs no event loop: a plain function, nothing async around it."""
        try:
            route = self._app.resolve(recorded.as_job())
        except ConfigurationError:  # that is the job's failure, when it is run
            return False
        return route.site is not Site.LOOP and not route.layers

    def _is_batch(self, recorded: RecordedJob) -> bool:
        try:
            return self._app.resolve(recorded.as_job()).batch is not None
        except ConfigurationError:
            return False


@contextmanager
def _running(recorded: RecordedJob) -> Generator[Run]:
    recorded.run = run = Run(recorded.as_job(), token="", renewed=0.0)
    try:
        yield run
    finally:
        recorded.run = None


def _heeding(run: Run, outcome: Outcome) -> Outcome:
    """Return the outcome; a job that was cancelled does not run again."""
    if run.cancelled is None or isinstance(outcome, Complete | Fail | LetGo):
        return outcome
    failure = outcome.failure
    return run.stopped(None if failure is None else failure.error)


class Given:
    """What tasks are given instead of what lifespans yield, which do not run then."""

    def __init__(self, value: Any) -> None:
        self.value = value


@asynccontextmanager
async def open_resources(app: App, given: Given | None) -> AsyncGenerator[ResourcesOf, None]:
    """Run the lifespans of the app around the block, or give what is given."""
    if given is not None:
        yield lambda _: given.value
        return
    async with AsyncExitStack() as stack:
        givers: dict[bool, Callable[[str], Any]] = {}  # by whether a task runs in a process
        for in_process, resources in _resources(app).items():
            yielded = await stack.enter_async_context(resources.open())
            givers[in_process] = partial(resources.of, yielded)

        def resources_of(name: str) -> Any:
            task = app.tasks.get(name)
            return givers[task is not None and task.site is Site.PROCESS](name)

        yield resources_of


def _resources(app: App) -> dict[bool, Resources]:
    """Return what lifespans yield, by whether that is in a process: each has its own."""
    has_processes = any(task.site is Site.PROCESS for task in app.tasks.values())
    sites = (False, True) if has_processes else (False,)
    return {in_process: Resources(app.registry, in_process=in_process) for in_process in sites}


@contextmanager
def stage_for(
    app: App, given: Given | None, now: Callable[[], float], backend: str
) -> Generator[Stage]:
    """Return a stage for code without an event loop.

    Each async job has a loop of its own; but where there are lifespans, all run in that of theirs,
    in another thread.
    """
    if given is not None or not any(_resources(app).values()):
        value = None if given is None else given.value
        yield Stage(app, lambda _: value, now, lambda run: anyio.run(run, backend=backend))
        return
    with start_blocking_portal(backend) as portal:
        opened = portal.wrap_async_context_manager(open_resources(app, given))
        with opened as resources_of:
            yield Stage(app, resources_of, now, portal.call)

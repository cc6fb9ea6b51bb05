"""Running one recorded job here and now, as a worker would."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from anyio import CancelScope

from taskbull.app.app import App
from taskbull.core import payload
from taskbull.core.flow import Children
from taskbull.core.outcome import Complete, Fail, LetGo, Outcome
from taskbull.core.site import Site
from taskbull.errors import ConfigurationError
from taskbull.testing.recorded_flow import spawn
from taskbull.testing.recorded_job import RecordedJob
from taskbull.worker.attempt import Executor
from taskbull.worker.run import Run
from taskbull.worker.running_job import Workplace
from taskbull.worker.threads import ThreadPool

WORKER_ID = "taskbull.testing"


class _Record:
    """Keeps what a job writes in the job that was recorded."""

    held_up = 0.0

    def __init__(self, recorded: RecordedJob) -> None:
        self._recorded = recorded

    def caused(self, error: BaseException) -> bool:
        return False

    def progress(self, raw: bytes) -> None:
        self._recorded.progress = payload.decode(raw)

    async def aprogress(self, raw: bytes) -> None:
        self.progress(raw)

    def log(self, line: str) -> None:
        self._recorded.logs.append(line)

    async def alog(self, line: str) -> None:
        self.log(line)

    def update_data(self, raw: bytes) -> None:
        self._recorded.raw_data = raw

    async def aupdate_data(self, raw: bytes) -> None:
        self.update_data(raw)

    def child_results(self, name: str) -> list[bytes]:
        return self._recorded.child_results(name)

    async def achild_results(self, name: str) -> list[bytes]:
        return self.child_results(name)

    def child_failures(self) -> dict[tuple[str, str], str]:
        return self._recorded.child_failures()

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        return self.child_failures()

    def spawn(self, children: Children) -> list[str]:
        return spawn(self._recorded, children)

    async def aspawn(self, children: Children) -> list[str]:
        return self.spawn(children)

    def drop_children(self) -> int:
        return self._recorded.drop_children()

    async def adrop_children(self) -> int:
        return self.drop_children()

    async def aunclaimed(self, patience: float) -> float:
        return patience  # no other worker will come


def is_plain(app: App, recorded: RecordedJob) -> bool:
    """Return whether a job needs no event loop: its function is plain, with nothing around it."""
    try:
        route = app.resolve(recorded.as_job())
    except ConfigurationError:  # that is the job's failure, when it is run
        return False
    return route.site is not Site.LOOP and not route.layers


async def run_recorded(app: App, recorded: RecordedJob, now: float) -> Outcome:
    """Run one attempt of a job in this event loop, and return what is to become of it."""
    threads = ThreadPool(1)
    try:
        with _running(recorded) as run, CancelScope() as scope:
            executor = _executor(app, recorded, now, threads)
            return _heeding(run, await executor.attempt(run, scope))
        return run.stopped()  # the scope was cancelled
    finally:
        threads.close()


def run_plain(app: App, recorded: RecordedJob, now: float) -> Outcome:
    """Run one attempt of a plain function in this thread, without an event loop."""
    with _running(recorded) as run:
        executor = _executor(app, recorded, now, None)
        return _heeding(run, _finish(executor.attempt(run)))


@contextmanager
def _running(recorded: RecordedJob) -> Generator[Run]:
    recorded.run = run = Run(recorded.as_job(), token="", renewed=0.0)
    try:
        yield run
    finally:
        recorded.run = None


def _executor(app: App, recorded: RecordedJob, now: float, threads: ThreadPool | None) -> Executor:
    place = Workplace(
        recorded.queue,
        WORKER_ID,
        lambda _: _Record(recorded),
        wall_ms=lambda: recorded.wall_ms(now),
    )
    return Executor(place, app.resolve, threads=threads)


def _heeding(run: Run, outcome: Outcome) -> Outcome:
    """Return the outcome; a job that was cancelled does not run again."""
    if run.cancelled is None or isinstance(outcome, Complete | Fail | LetGo):
        return outcome
    failure = outcome.failure
    return run.stopped(None if failure is None else failure.error)


def _finish(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine that awaits nothing that has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    coroutine.close()
    raise RuntimeError("a plain function cannot wait for an event loop")

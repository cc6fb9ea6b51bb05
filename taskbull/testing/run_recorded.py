"""Running one recorded job here and now, as a worker would."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from taskbull.app.app import App
from taskbull.core import payload
from taskbull.core.flow import Children
from taskbull.core.outcome import Outcome
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


async def run_recorded(app: App, recorded: RecordedJob) -> Outcome:
    """Run one attempt of a job in this event loop, and return what is to become of it."""
    threads = ThreadPool(1)
    try:
        return await _attempt(app, recorded, threads)
    finally:
        threads.close()


def run_plain(app: App, recorded: RecordedJob) -> Outcome:
    """Run one attempt of a plain function in this thread, without an event loop."""
    return _finish(_attempt(app, recorded, None))


def _attempt(
    app: App, recorded: RecordedJob, threads: ThreadPool | None
) -> Coroutine[Any, Any, Outcome]:
    place = Workplace(recorded.queue, WORKER_ID, lambda _: _Record(recorded))
    run = Run(recorded.as_job(), token="", renewed=0.0)
    return Executor(place, app.resolve, threads=threads).attempt(run)


def _finish(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine that awaits nothing that has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    coroutine.close()
    raise RuntimeError("a plain function cannot wait for an event loop")

"""The job that a handler is given: what it may read, and what it may tell while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.celery import JOB, no_attribute
from taskbull.core.flow import Growing, Source, children_of
from taskbull.core.job import Job
from taskbull.core.middleware import current
from taskbull.core.options import OnFailure
from taskbull.core.outcome import Fail, expired
from taskbull.core.retry import attempts_of
from taskbull.core.wire.job import encode_data, encode_progress
from taskbull.errors import CancelRequested, TaskbullError
from taskbull.worker.clock import Clock
from taskbull.worker.run import JobPort, Run

# The job that a handler is given: what it may read, and what it may tell while it runs.


R = TypeVar("R")


def no_resources(_: str) -> None:
    """Return what jobs are given where no lifespan yields anything."""


class Workplace(Struct, frozen=True):
    """Where jobs run: a queue, and a worker of it."""

    queue: str
    worker_id: str
    open_port: Callable[[Run], JobPort]
    """Makes what a job writes to, when it writes for the first time."""
    resources_of: Callable[[str], Any] = no_resources
    """Returns what the lifespan yields to the jobs of a name."""
    wall_ms: Callable[[], int] = Clock().wall_ms
    """Tells the time by which jobs expire, in ms since 1970."""


class RunningJob:
    """The job that is running, as its task sees it.

    Of each pair of methods the one that begins with `a` is awaited; the other is for plain
    functions, and would block the event loop in an `async def`. They raise `LockLost` when the job
    is no longer this worker's, or the attempt is over.
    """

    __slots__ = ("_place", "_run", "job")

    def __init__(self, run: Run, place: Workplace) -> None:
        self._run = run
        self._place = place
        self.job: Job = run.job
        """Everything that was read when the job was taken."""

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, JOB, name)

    def __repr__(self) -> str:
        return f"<RunningJob {self.name} {self.id} in {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def name(self) -> str:
        """The name under which it was added: the task's."""
        return self.job.name

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._place.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self.job.attempt

    @property
    def attempts(self) -> int:
        """How many attempts the job has in all."""
        return attempts_of(self.job, self._run.policy)

    @property
    def data(self) -> Any:
        """The payload, as it was when the job was taken."""
        return self.job.data

    @property
    def timestamp(self) -> datetime | None:
        """When the job was added."""
        return self.job.timestamp

    @property
    def worker_id(self) -> str:
        """The worker that runs it."""
        return self._place.worker_id

    @property
    def resources(self) -> Any:
        """What the lifespan of the task's app yields; None if there is none."""
        return self._place.resources_of(self.job.name)

    @property
    def lost(self) -> bool:
        """Whether the lock is gone, so that another worker may be running the job, too."""
        return self._run.lost is not None

    def too_late(self) -> Fail | None:
        """Return what becomes of the job because it should have begun before; None: it may."""
        if self.job.options.expires_ms is None:
            return None
        return expired(self.job, self._place.wall_ms())

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the job: a plain function asks, and ends soon.

        Once this was True the job ends as cancelled, whatever the function returns.
        """
        run = self._run
        if run.cancelled is None:
            return False
        run.heeded = True
        return True

    def check(self) -> None:
        """Raise `CancelRequested` if somebody has cancelled the job."""
        if self.cancelled:
            raise CancelRequested(self._run.cancelled or "")

    def progress(self, value: Any) -> None:
        """Tell how far the job has come: a number or anything else that is JSON.

        While Redis is full or away it is lost, and the job goes on.
        """
        raw = encode_progress(value)
        self._port.progress(raw)
        self._run.raw_progress = raw

    async def aprogress(self, value: Any) -> None:
        """Tell how far the job has come: a number or anything else that is JSON.

        While Redis is full or away it is lost, and the job goes on.
        """
        raw = encode_progress(value)
        await self._port.aprogress(raw)
        self._run.raw_progress = raw

    def log(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        While Redis is full or away it is lost, and the job goes on.
        """
        self._port.log(line)

    async def alog(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        While Redis is full or away it is lost, and the job goes on.
        """
        await self._port.alog(line)

    def update_data(self, data: Any) -> None:
        """Replace the payload in Redis: the next attempt gets the new one.

        If Redis does not take it for 10 s, this raises, and the job runs again without an attempt
        being spent.
        """
        self._port.update_data(encode_data(data))

    async def aupdate_data(self, data: Any) -> None:
        """Replace the payload in Redis: the next attempt gets the new one.

        If Redis does not take it for 10 s, this raises, and the job runs again without an attempt
        being spent.
        """
        await self._port.aupdate_data(encode_data(data))

    @overload
    def children(self, task: Source[R]) -> list[R]: ...
    @overload
    def children(self, task: str) -> list[Any]: ...
    def children(self, task: Source[Any] | str) -> list[Any]:
        """Return what the job's children of a task, or of a name, returned: in their order.

        Children that failed are left out.
        """
        return _read(task, self._port.child_results(_name(task)))

    @overload
    async def achildren(self, task: Source[R]) -> list[R]: ...
    @overload
    async def achildren(self, task: str) -> list[Any]: ...
    async def achildren(self, task: Source[Any] | str) -> list[Any]:
        """Return what the job's children of a task, or of a name, returned. See `children`."""
        return _read(task, await self._port.achild_results(_name(task)))

    def failed_children(self) -> dict[tuple[str, str], str]:
        """Return why children failed, by queue and id: with `on_failure` "ignore" or "continue"."""
        return self._port.child_failures()

    async def afailed_children(self) -> dict[tuple[str, str], str]:
        """Return why children failed, by queue and id: with `on_failure` "ignore" or "continue"."""
        return await self._port.achild_failures()

    def spawn(self, jobs: Iterable[Growing], *, on_failure: OnFailure = "fail") -> list[str]:
        """Add children to the running job, and return their ids; see `Task.after`.

        Raise `WaitForChildren` then, to be run again when they have ended. Their ids are made from
        the job's and their number: if the job is run again because its worker died, spawning the
        same children again adds none twice.
        """
        children = children_of("spawn()", [jobs], on_failure)
        return self._port.spawn(children) if children.jobs else []

    async def aspawn(self, jobs: Iterable[Growing], *, on_failure: OnFailure = "fail") -> list[str]:
        """Add children to the running job, and return their ids. See `spawn`."""
        children = children_of("aspawn()", [jobs], on_failure)
        return await self._port.aspawn(children) if children.jobs else []

    def drop_pending_children(self) -> int:
        """Remove the children that have not started, so that the job can end; return how many.

        Those that run are not stopped, and the job cannot end before them.
        """
        return self._port.drop_children()

    async def adrop_pending_children(self) -> int:
        """Remove the children that have not started. See `drop_pending_children`."""
        return await self._port.adrop_children()

    def child_results(self, name: str) -> list[bytes]:
        """Return what the children of a name returned, as JSON."""
        return self._port.child_results(name)

    async def achild_results(self, name: str) -> list[bytes]:
        """Return what the children of a name returned, as JSON."""
        return await self._port.achild_results(name)

    @property
    def held_up(self) -> float:
        """The seconds for which Redis has let the job wait with what it writes."""
        port = self._run.port
        return 0.0 if port is None else port.held_up

    async def aunclaimed(self, patience: float) -> float:
        """Note that nobody here can run the job; return for how many seconds that is known.

        When that is longer than `patience`, it is forgotten: then the job is to fail.
        """
        return await self._port.aunclaimed(patience)

    @property
    def _port(self) -> JobPort:
        run = self._run
        if run.port is None:
            run.port = self._place.open_port(run)
        return run.port


# What the process pool needs to know of a job, and tasks do not.


def run_of(job: RunningJob) -> Run:
    """Return the run of a job."""
    return job._run  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def clock_ahead_ms(job: RunningJob) -> int:
    """Return how far the clock by which a job expires is ahead of this machine's; 0: it cannot."""
    if job.job.options.expires_ms is None:
        return 0
    wall_ms = job._place.wall_ms  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return wall_ms() - int(time.time() * 1000)


def port_of(job: RunningJob) -> JobPort:
    """Return what a job writes to."""
    return job._port  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _name(task: Source[Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _read(task: Source[Any] | str, results: list[bytes]) -> list[Any]:
    read = payload.decode if isinstance(task, str) else task.read_result
    return [read(raw) for raw in results]


# Which job runs here: known in its function, in what that calls, and in its threads.


_current = cast("ContextVar[RunningJob]", current)

enter = _current.set
leave = _current.reset


_current_batch: ContextVar[list[RunningJob]] = ContextVar("taskbull_current_batch")
"""Set while the function of a batch task runs, for which there is no one job."""

enter_batch = _current_batch.set
leave_batch = _current_batch.reset


def job_of(context: Context) -> RunningJob | None:
    """Return the job in which a context was taken; of a batch the first one."""
    batch = context.get(_current_batch)
    return context.get(_current) if batch is None else batch[0]


def current_job() -> RunningJob:
    """Return the job that is running here: in its task, in what that calls, and in its threads."""
    try:
        return _current.get()
    except LookupError:
        if _current_batch.get(None) is not None:
            raise TaskbullError(
                "current_job() was called in a batch task, which runs for several jobs at once: "
                "current_batch() gives them, in the order of the items"
            ) from None
        raise TaskbullError(
            "current_job() was called outside of a job: there is one only while a worker runs a "
            "task"
        ) from None


def current_batch() -> list[RunningJob]:
    """Return the jobs for which a batch task runs here, in the order of its items."""
    try:
        return [*_current_batch.get()]
    except LookupError:
        raise TaskbullError(
            "current_batch() was called outside of a batch: there is one only while a worker runs "
            "a task made by @app.batch_task"
        ) from None

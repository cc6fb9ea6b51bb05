"""Provide the running job to its handler: its data, and the methods to report and add children."""

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
from taskbull.core.keys import job_ref
from taskbull.core.middleware import current
from taskbull.core.options import OnFailure
from taskbull.core.outcome import Fail, expired
from taskbull.core.retry import attempts_of
from taskbull.core.wire.job import encode_data, encode_progress
from taskbull.errors import CancelRequested, TaskbullError
from taskbull.worker.clock import Clock
from taskbull.worker.run import JobPort, Run

# The running job.


R = TypeVar("R")
T = TypeVar("T")


def no_resources(_: str) -> None:
    """Return the resources of jobs without a lifespan, which is None."""


class JobEnvironment(Struct, frozen=True):
    """The queue and worker that jobs run in."""

    queue: str
    worker_id: str
    open_port: Callable[[Run], JobPort]
    """Factory for a job's storage, called when the job first needs it."""
    resources_of: Callable[[str], Any] = no_resources
    """Function that returns the lifespan's resources for jobs of a name."""
    wall_ms: Callable[[], int] = Clock().wall_ms
    """Clock for job expiry, in ms since 1970."""


class RunningJob:
    """The running job, as its task sees it.

    Methods that begin with `a` are async. Their counterparts are for sync functions, and would
    block the event loop in an `async def`. Both raise `LockLost` if this worker no longer holds the
    job, or if the attempt is over.
    """

    __slots__ = ("_environment", "_run", "job")

    def __init__(self, run: Run, environment: JobEnvironment) -> None:
        self._run = run
        self._environment = environment
        self.job: Job = run.job
        """The job as read when it was fetched."""

    if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

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
        """The job's name, which is the task's name."""
        return self.job.name

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self._environment.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self.job.attempt

    @property
    def attempts(self) -> int:
        """The maximum number of attempts."""
        return attempts_of(self.job, self._run.policy)

    @property
    def data(self) -> Any:
        """The payload as read when the job was fetched."""
        return self.job.data

    @property
    def headers(self) -> dict[str, str]:
        """The job's headers, as set with `options(headers=…)`."""
        return self.job.headers

    @property
    def ref(self) -> str:
        """Queue and id in one string, for `app.job(ref)`."""
        return job_ref(self.queue, self.id)

    @property
    def timestamp(self) -> datetime | None:
        """The time when the job was added."""
        return self.job.timestamp

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs the job."""
        return self._environment.worker_id

    @property
    def resources(self) -> Any:
        """The value that the app's lifespan yields, or None without a lifespan."""
        return self._environment.resources_of(self.job.name)

    @property
    def lost(self) -> bool:
        """True if the lock is lost, so that another worker may also be running the job."""
        return self._run.lost is not None

    def too_late(self) -> Fail | None:
        """Return the failure if the job has expired, otherwise None."""
        if self.job.options.expires_ms is None:
            return None
        return expired(self.job, self._environment.wall_ms())

    @property
    def cancelled(self) -> bool:
        """True if the job was cancelled. A sync function should check this and return soon.

        Once this has returned True, the job finishes as cancelled, whatever the function returns.
        """
        run = self._run
        if run.cancelled is None:
            return False
        run.cancel_seen = True
        return True

    def check(self) -> None:
        """Raise `CancelRequested` if the job was cancelled."""
        if self.cancelled:
            raise CancelRequested(self._run.cancelled or "")

    def progress(self, value: Any) -> None:
        """Report the job's progress as a number or any other JSON value.

        If Redis is full or unavailable, the value is lost and the job continues.
        """
        raw = encode_progress(value)
        self._port.progress(raw)
        self._run.raw_progress = raw

    async def aprogress(self, value: Any) -> None:
        """Report the job's progress as a number or any other JSON value.

        If Redis is full or unavailable, the value is lost and the job continues.
        """
        raw = encode_progress(value)
        await self._port.aprogress(raw)
        self._run.raw_progress = raw

    def log(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        If Redis is full or unavailable, the line is lost and the job continues.
        """
        self._port.log(line)

    async def alog(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        If Redis is full or unavailable, the line is lost and the job continues.
        """
        await self._port.alog(line)

    def update_data(self, data: Any) -> None:
        """Replace the payload in Redis. The next attempt gets the new one.

        If Redis does not accept it within 10 s, this raises an error. The job then runs again
        without spending an attempt.
        """
        self._port.update_data(encode_data(data))

    async def aupdate_data(self, data: Any) -> None:
        """Replace the payload in Redis. The next attempt gets the new one.

        If Redis does not accept it within 10 s, this raises an error. The job then runs again
        without spending an attempt.
        """
        await self._port.aupdate_data(encode_data(data))

    @overload
    def children(self, task: Source[R]) -> list[R]: ...
    @overload
    def children(self, task: str) -> list[Any]: ...
    def children(self, task: Source[Any] | str) -> list[Any]:
        """Return the results of the job's children by task or name, in the order of the children.

        Children that failed are left out.
        """
        return _read(task, self._port.child_results(_name(task)))

    @overload
    async def achildren(self, task: Source[R]) -> list[R]: ...
    @overload
    async def achildren(self, task: str) -> list[Any]: ...
    async def achildren(self, task: Source[Any] | str) -> list[Any]:
        """Return the results of the job's children by task or name. See `children`."""
        return _read(task, await self._port.achild_results(_name(task)))

    def failed_children(self) -> dict[tuple[str, str], str]:
        """Return the errors of failed children, by queue and id.

        It contains children added with `on_failure` "ignore" or "continue".
        """
        return self._port.child_failures()

    async def afailed_children(self) -> dict[tuple[str, str], str]:
        """Return the errors of failed children, by queue and id.

        It contains children added with `on_failure` "ignore" or "continue".
        """
        return await self._port.achild_failures()

    def spawn(self, jobs: Iterable[Growing], *, on_failure: OnFailure = "fail") -> list[str]:
        """Add children to the running job, and return their ids. See `Task.after`.

        To run the job again when they have finished, raise `WaitForChildren` afterwards. The ids
        are derived from the job's id and the child's number. If the worker dies and the job runs
        again, adding the same children again creates no duplicates.
        """
        children = children_of("spawn()", [jobs], on_failure)
        return self._port.spawn(children) if children.jobs else []

    async def aspawn(self, jobs: Iterable[Growing], *, on_failure: OnFailure = "fail") -> list[str]:
        """Add children to the running job, and return their ids. See `spawn`."""
        children = children_of("aspawn()", [jobs], on_failure)
        return await self._port.aspawn(children) if children.jobs else []

    def drop_pending_children(self) -> int:
        """Remove the children that have not started, and return their number.

        Running children are not stopped, and the job cannot finish before them.
        """
        return self._port.drop_children()

    async def adrop_pending_children(self) -> int:
        """Remove the children that have not started. See `drop_pending_children`."""
        return await self._port.adrop_children()

    def child_results(self, name: str) -> list[bytes]:
        """Return the results of the children of a name, as JSON."""
        return self._port.child_results(name)

    async def achild_results(self, name: str) -> list[bytes]:
        """Return the results of the children of a name, as JSON."""
        return await self._port.achild_results(name)

    @property
    def redis_wait_seconds(self) -> float:
        """Seconds that the job had to wait for Redis to accept its writes."""
        port = self._run.port
        return 0.0 if port is None else port.redis_wait_seconds

    async def arecord_unknown_task(self, patience: float) -> float:
        """Record that this worker cannot run the job.

        Return for how many seconds that has been known. When that reaches `patience`, the record is
        removed, and the job should fail.
        """
        return await self._port.arecord_unknown_task(patience)

    @property
    def _port(self) -> JobPort:
        run = self._run
        if run.port is None:
            run.port = self._environment.open_port(run)
        return run.port


# Access for the process pool.


def run_of(job: RunningJob) -> Run:
    """Return the job's run."""
    return job._run  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def clock_ahead_ms(job: RunningJob) -> int:
    """Return how far the expiry clock is ahead of this machine's in ms, or 0 without an expiry."""
    if job.job.options.expires_ms is None:
        return 0
    wall_ms = job._environment.wall_ms  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return wall_ms() - int(time.time() * 1000)


def port_of(job: RunningJob) -> JobPort:
    """Return the job's storage."""
    return job._port  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _name(task: Source[Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _read(task: Source[Any] | str, results: list[bytes]) -> list[Any]:
    read = payload.decode if isinstance(task, str) else task.read_result
    return [read(raw) for raw in results]


# The current job, visible to its function, the code that it calls, and its threads.


_current = cast("ContextVar[RunningJob]", current)

enter = _current.set
leave = _current.reset


_current_batch: ContextVar[list[RunningJob]] = ContextVar("taskbull_current_batch")
"""The jobs of a running batch task, which has no single current job."""

enter_batch = _current_batch.set
leave_batch = _current_batch.reset


def job_of(context: Context) -> RunningJob | None:
    """Return the current job of a context. For a batch, return its first job."""
    batch = context.get(_current_batch)
    return context.get(_current) if batch is None else batch[0]


class _Missing:
    """Type of the default of `current_job`, which a caller cannot pass by accident."""


_MISSING = _Missing()


@overload
def current_job() -> RunningJob: ...
@overload
def current_job(default: T) -> RunningJob | T: ...
def current_job(default: Any = _MISSING) -> Any:
    """Return the current job. Works in a task, in code that it calls, and in its threads.

    Args:
        default: Value to return outside a job, and in a batch task.

    Raises:
        TaskbullError: Outside a job, and in a batch task, if there is no default.

    Example:
        >>> job = current_job(None)
        >>> if job is not None:
        ...     job.log("Started")
    """
    try:
        return _current.get()
    except LookupError:
        if default is not _MISSING:
            return default
        if _current_batch.get(None) is not None:
            raise TaskbullError(
                "current_job() called in a batch task, which runs for several jobs: use "
                "current_batch(), which returns them in the order of the items"
            ) from None
        raise TaskbullError("current_job() called outside a running task") from None


def current_batch() -> list[RunningJob]:
    """Return the jobs of the current batch task, in the order of its items.

    Raises `TaskbullError` outside a batch task.
    """
    try:
        return [*_current_batch.get()]
    except LookupError:
        raise TaskbullError("current_batch() called outside a running batch task") from None

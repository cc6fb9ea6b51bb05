"""The job that a handler is given: what it may read, and what it may tell while it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from taskbull.core.celery import JOB, no_attribute
from taskbull.core.current import current
from taskbull.core.job import Job
from taskbull.core.retry import attempts_of
from taskbull.core.wire.job import encode_data, encode_progress
from taskbull.errors import TaskbullError
from taskbull.worker.run import JobPort, Run


class Workplace(Struct, frozen=True):
    """Where jobs run: a queue, and a worker of it."""

    queue: str
    worker_id: str
    open_port: Callable[[Run], JobPort]
    """Makes what a job writes to, when it writes for the first time."""


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
    def lost(self) -> bool:
        """Whether the lock is gone, so that another worker may be running the job, too."""
        return self._run.lost is not None

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


_current = cast("ContextVar[RunningJob]", current)

enter = _current.set
leave = _current.reset


def job_of(context: Context) -> RunningJob | None:
    """Return the job in which a context was taken."""
    return context.get(_current)


def current_job() -> RunningJob:
    """Return the job that is running here: in its task, in what that calls, and in its threads."""
    try:
        return _current.get()
    except LookupError:
        raise TaskbullError(
            "current_job() was called outside of a job: there is one only while a worker runs a "
            "task"
        ) from None

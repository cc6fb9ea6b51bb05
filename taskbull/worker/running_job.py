"""The job that a handler is given: what it may read, and what it may tell while it runs."""

from __future__ import annotations

import time
from contextvars import Context, ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from taskbull.core.celery import JOB, no_attribute
from taskbull.core.current import current
from taskbull.core.durations import from_ms, to_ms
from taskbull.core.job import Job
from taskbull.core.options import KEEP_LOGS
from taskbull.core.retry import RetryPolicy, attempts_of
from taskbull.core.wire.job import encode_data, encode_progress
from taskbull.errors import TaskbullError
from taskbull.scripts.call import Request
from taskbull.scripts.changes import add_log, note_unclaimed, update_data, update_progress
from taskbull.worker.context import QueueContext
from taskbull.worker.lease import Lease
from taskbull.worker.threads import ThreadPool
from taskbull.worker.time_limit import TimeLimit
from taskbull.worker.writing import DATA, LOG_LINE, PROGRESS, Writing


class RunningJob:
    """The job that is running, as its task sees it.

    Of each pair of methods the one that begins with `a` is awaited; the other is for plain
    functions, and would block the event loop in an `async def`. They raise `LockLost` when the job
    is no longer this worker's, or the attempt is over.
    """

    __slots__ = ("_context", "_lease", "_policy", "_writing", "job", "time_limit")

    def __init__(self, lease: Lease, context: QueueContext, policy: RetryPolicy) -> None:
        self._lease = lease
        self._context = context
        self._policy = policy
        self._writing: Writing | None = None
        self.time_limit: TimeLimit | None = None
        """The time that this attempt has, if it is limited."""
        self.job: Job = lease.job
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
        return self._context.keys.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self.job.attempt

    @property
    def attempts(self) -> int:
        """How many attempts the job has in all."""
        return attempts_of(self.job, self._policy)

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
        return self._context.worker_id

    @property
    def lost(self) -> bool:
        """Whether the lock is gone, so that another worker may be running the job, too."""
        return self._lease.lost is not None

    @property
    def threads(self) -> ThreadPool:
        """The worker's threads for functions that block."""
        return self._context.threads

    def progress(self, value: Any) -> None:
        """Tell how far the job has come: a number or anything else that is JSON.

        While Redis is full or away it is lost, and the job goes on.
        """
        raw = encode_progress(value)
        self.writing.run(self._progress(raw), PROGRESS)
        self._lease.raw_progress = raw

    async def aprogress(self, value: Any) -> None:
        """Tell how far the job has come: a number or anything else that is JSON.

        While Redis is full or away it is lost, and the job goes on.
        """
        raw = encode_progress(value)
        await self.writing.arun(self._progress(raw), PROGRESS)
        self._lease.raw_progress = raw

    def log(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        While Redis is full or away it is lost, and the job goes on.
        """
        self.writing.run(self._log(line), LOG_LINE)

    async def alog(self, line: str) -> None:
        """Append a line to the job's log in Redis.

        While Redis is full or away it is lost, and the job goes on.
        """
        await self.writing.arun(self._log(line), LOG_LINE)

    def update_data(self, data: Any) -> None:
        """Replace the payload in Redis: the next attempt gets the new one.

        If Redis does not take it for 10 s, this raises, and the job runs again without an attempt
        being spent.
        """
        self.writing.run(self._data(data), DATA)

    async def aupdate_data(self, data: Any) -> None:
        """Replace the payload in Redis: the next attempt gets the new one.

        If Redis does not take it for 10 s, this raises, and the job runs again without an attempt
        being spent.
        """
        await self.writing.arun(self._data(data), DATA)

    @property
    def writing(self) -> Writing:
        """What brings all this to Redis."""
        if self._writing is None:
            self._writing = Writing(self._lease, self._context)
        return self._writing

    @property
    def held_up(self) -> float:
        """The seconds for which Redis has let the job wait with what it writes."""
        return 0.0 if self._writing is None else self._writing.held_up

    def _progress(self, raw: bytes) -> Request[None]:
        return update_progress(self._context.keys, self.id, raw, token=self._lease.token)

    async def aunclaimed(self, patience: float) -> float:
        """Note that nobody here can run the job; give for how many seconds that is known.

        When that is longer than `patience`, it is forgotten: then the job is to fail.
        """
        now_ms = int(time.time() * 1000)
        note = note_unclaimed(self._context.keys, self.id, now_ms, to_ms(patience))
        return from_ms(await self._context.store.run(note, timeout=1.0))

    def _log(self, line: str) -> Request[int]:
        kept = self.job.options.keep_logs
        keep = KEEP_LOGS if kept is None else int(kept)
        # A name from the file system may have bytes that are no UTF-8: no line is worth the job.
        text = str(line).encode("utf-8", "backslashreplace").decode()
        return add_log(self._context.keys, self.id, text, keep=keep, token=self._lease.token)

    def _data(self, data: Any) -> Request[None]:
        return update_data(self._context.keys, self.id, encode_data(data), token=self._lease.token)


_current = cast("ContextVar[RunningJob]", current)

enter = _current.set
leave = _current.reset


def job_of(context: Context) -> RunningJob | None:
    """Give the job in which a context was taken."""
    return context.get(_current)


def current_job() -> RunningJob:
    """Give the job that is running here: in its task, in what that calls, and in its threads."""
    try:
        return _current.get()
    except LookupError:
        raise TaskbullError(
            "current_job() was called outside of a job: there is one only while a worker runs a "
            "task"
        ) from None

"""Refusing arguments, and noticing calls that hold up an event loop or their own queue's slots."""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from msgspec import Struct, field

from taskbull.core import payload
from taskbull.core.cancelling import Cancelled, cancel_reason
from taskbull.core.celery import RESULT, no_attribute
from taskbull.core.job import Ending, Job
from taskbull.core.keys import QueueKeys
from taskbull.core.middleware import current
from taskbull.core.states import JobState
from taskbull.core.validation import Duration, refusal, seconds
from taskbull.errors import BlockingCallWarning, SerializationError, TaskbullError
from taskbull.observability.logs import cut
from taskbull.queue.add import Adder
from taskbull.queue.results import gone
from taskbull.queue.stores import Stores, stripped
from taskbull.scripts.add import Added, Result
from taskbull.scripts.call import REFUSALS, Steps, again
from taskbull.scripts.change import cancel
from taskbull.scripts.read import Logs, get_job, get_logs, get_state

# Refusing arguments, and noticing calls that hold up an event loop or their own queue's slots.


logger = logging.getLogger(__name__)

_TASKS = 1000
"""So many tasks are warned of at the most."""


def check_last_id(last_id: str) -> str:
    """Refuse what is not the id of an event; `$` is the end of the stream."""
    if not re.fullmatch(r"\$|\d+(-\d+)?", last_id):
        raise refusal("last_id", "be '$' or an event's id such as '1700000000000-0'", last_id)
    return last_id


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread; nothing is imported to find out.

    Who has not imported asyncio runs none of its loops; to import it takes four times as long as
    to start Python. And not to be told by an exception that there is none spares 0.5 µs per call.
    """
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


class BlockingCheck:
    """Warns, once, of a call that blocks an event loop."""

    def __init__(self, what: str, instead: str) -> None:
        self._message = f"{what} was called in an event loop, and blocks it: use {instead}"
        self._given = False

    def check(self, stacklevel: int = 3) -> None:
        """Warn if this thread runs an event loop and nobody was warned yet."""
        if not self._given and in_event_loop():
            self._given = True
            warnings.warn(self._message, BlockingCallWarning, stacklevel=stacklevel)


class OwnQueueCheck:
    """Warns, once for each task, of a job that waits for another one in its own queue."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, queue: str, job_id: str, name: str) -> None:
        """Warn if the caller is a job of the queue in which the other one is to run."""
        job = current.get(None)
        if job is None or job.queue != queue or job.name in self._told or len(self._told) >= _TASKS:
            return
        self._told.add(job.name)
        logger.warning(
            "Task %s (job %s) waits for the result of %s (job %s) in its own queue %s, and keeps "
            "its slot meanwhile: as soon as there are as many such jobs as slots, none of them "
            "ever ends. Put %s in another queue, or do not wait for it",
            cut(job.name),
            cut(job.id),
            cut(name),
            cut(job_id),
            queue,
            cut(name),
            extra={"queue": queue, "task": cut(job.name), "job_id": cut(job.id)},
        )


# What adding a job gives: enough to find it again, and to wait for its result.


R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

ENQUEUE_TIMEOUT = 5.0
"""Seconds that adding may take without getting on, unless somebody says otherwise."""

CALL_TIMEOUT = 10.0
"""Seconds that a call of a queue or a handle may take, unless somebody says otherwise."""

DataCheck: TypeAlias = Callable[[str, bytes], None]
"""Raises `InvalidArguments` for data, as JSON, that the task of a name does not take."""


def _takes_anything(name: str, data: bytes) -> None:
    """Check nothing: no app is known."""


ReadResult: TypeAlias = Callable[[bytes], Any]
"""Makes a result of its JSON; raises ValueError for what does not fit."""


class QueueClient(Struct, frozen=True, eq=False):
    """What a program has of one queue: its keys, the way to its server, and what adds to it.

    Tasks, both queues and all handles of an app share one.
    """

    keys: QueueKeys
    stores: Stores
    adder: Adder
    call_timeout: float | None = CALL_TIMEOUT
    blocking: BlockingCheck = field(
        default_factory=lambda: BlockingCheck("job.result()", "await job.aresult()")
    )
    own_queue: OwnQueueCheck = field(default_factory=OwnQueueCheck)
    check: DataCheck = _takes_anything


class JobHandle(Struct, Generic[R_co], frozen=True, repr_omit_defaults=True, gc=False):
    """A job in a queue. Of each pair of methods the one that begins with `a` is awaited.

    The result of a task's job has the type of the task's return annotation, where JSON can be
    converted to that; otherwise it is the JSON value.
    """

    queue: str
    id: str
    name: str
    """The name under which the job was added; empty where only its id is known."""
    deduplicated: bool = False
    """Another job stands for the one that was to be added: it has the same dedup key or id."""
    _client: QueueClient | None = None
    _read: ReadResult = payload.decode

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, RESULT, name)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<JobHandle{name} {self.id} in {self.queue}>"

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job to end; give its value, or raise `JobFailed`.

        Raises `TimeoutError` if it has not ended in time, and `JobNotFound` if there is no such
        job. A job that is not kept gives its value while the queue's event stream remembers it.
        """
        limit = _limit(timeout)
        client = self._where
        client.blocking.check()
        self._check_own_queue(client)
        try:
            ending = client.stores.sync_result_watch(client.keys).ending(self.id, limit)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        return self._value(ending)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job to end; give its value, or raise `JobFailed`. See `result`."""
        limit = _limit(timeout)
        client = self._where
        self._check_own_queue(client)
        try:
            ending = await client.stores.loop.ending(client.keys, self.id, limit)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        return self._value(ending)

    def cancel(self, reason: str = "") -> Cancelled:
        """Cancel the job: end it as failed if it does not run, else ask its worker to stop it.

        What it came to is returned; `JobNotFound` is raised if there is no such job.
        """
        return self._run(self._cancelling(reason))

    async def acancel(self, reason: str = "") -> Cancelled:
        """Cancel the job. See `cancel`."""
        return await self._arun(self._cancelling(reason))

    def state(self) -> JobState:
        """Return the state of the job; `unknown` if there is no such job."""
        return self._run(again(get_state(self._where.keys, self.id)))

    async def astate(self) -> JobState:
        """Return the state of the job; `unknown` if there is no such job."""
        return await self._arun(again(get_state(self._where.keys, self.id)))

    def info(self) -> Job:
        """Return all that is stored about the job; raise `JobNotFound` if there is no such job."""
        return self._there(self._run(again(get_job(self._where.keys, self.id))))

    async def ainfo(self) -> Job:
        """Return all that is stored about the job; raise `JobNotFound` if there is no such job."""
        return self._there(await self._arun(again(get_job(self._where.keys, self.id))))

    def logs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines, oldest first."""
        return self._run(again(get_logs(self._where.keys, self.id, start, end)))

    async def alogs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines, oldest first."""
        return await self._arun(again(get_logs(self._where.keys, self.id, start, end)))

    def _check_own_queue(self, client: QueueClient) -> None:
        if self.name:  # else it was not added here, and may have ended long ago
            client.own_queue.check(self.queue, self.id, self.name)

    @property
    def _where(self) -> QueueClient:
        if self._client is None:
            raise TypeError("a JobHandle is made by adding a job or by app.job(queue, id)")
        return self._client

    def _value(self, ending: Ending) -> R_co:
        try:
            return cast("R_co", self._read(ending.raw_value or b"null"))
        except ValueError as error:
            raise SerializationError(
                f"The result of job {self.id} in queue {self.queue}: {error}"
            ) from error

    def _there(self, job: Job | None) -> Job:
        if job is None:
            raise gone(self._where.keys, self.id)
        return job

    def _cancelling(self, reason: str) -> Steps[Cancelled]:
        now_ms = int(time.time() * 1000)
        return cancel(self._where.keys, self.id, cancel_reason(reason), now_ms)

    def _run(self, steps: Steps[T]) -> T:
        client = self._where
        try:
            return client.stores.sync_store().run(steps, timeout=client.call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def _arun(self, steps: Steps[T]) -> T:
        client = self._where
        try:
            return await client.stores.async_store().run(steps, timeout=client.call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__


def handle(client: QueueClient, name: str, added: Added, read: ReadResult) -> JobHandle[Any]:
    """Return the handle of a job that was added; raise what kept it from being added."""
    queue = client.keys.queue
    if added.result < 0:
        raise REFUSALS[added.result](queue, added.id)
    return JobHandle(queue, added.id, name, added.result is not Result.ADDED, client, read)


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds("timeout", timeout)

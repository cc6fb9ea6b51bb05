"""Job handles: find a job again, wait for its result, cancel it.

The module also warns about calls that block an event loop, or that wait for a job in their own
queue.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct, field

from taskbull.core import payload
from taskbull.core.cancelling import Cancelled, cancel_reason
from taskbull.core.celery import RESULT, no_attribute
from taskbull.core.job import Ending, Job, NewJob
from taskbull.core.keys import QueueKeys, job_ref
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

# Argument checks and warnings


logger = logging.getLogger(__name__)

_TASKS = 1000
"""Maximum number of tasks to warn about."""


def check_last_id(last_id: str) -> str:
    """Return a valid event id. `$` is the end of the stream.

    Raises:
        ConfigurationError: If it is not an event id.
    """
    if not re.fullmatch(r"\$|\d+(-\d+)?", last_id):
        raise refusal("last_id", "be '$' or an event's id such as '1700000000000-0'", last_id)
    return last_id


def in_event_loop() -> bool:
    """Return True if an event loop runs in this thread, without importing anything.

    A program that has not imported asyncio runs no asyncio loop. Importing asyncio takes four times
    as long as starting Python. Avoiding the exception of `asyncio.get_running_loop` saves 0.5 µs
    per call.
    """
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


class BlockingCheck:
    """Warns once about a call that blocks an event loop."""

    def __init__(self, what: str, instead: str) -> None:
        self._message = f"{what} blocks the running event loop; use {instead}"
        self._given = False

    def check(self, stacklevel: int = 3) -> None:
        """Warn if this thread runs an event loop, unless a warning was given before."""
        if not self._given and in_event_loop():
            self._given = True
            warnings.warn(self._message, BlockingCallWarning, stacklevel=stacklevel)


class OwnQueueCheck:
    """Warns once per task about a job that waits for another job in its own queue."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def check(self, queue: str, job_id: str, name: str) -> None:
        """Warn if the caller is a job of the same queue."""
        job = current.get(None)
        if (
            job is None
            or job.queue != queue
            or job.name in self._warned
            or len(self._warned) >= _TASKS
        ):
            return
        self._warned.add(job.name)
        logger.warning(
            "Task %s (job %s) waits for the result of %s (job %s) in its own queue %s and occupies "
            "a slot while it waits. If such jobs occupy all slots, none of them can finish. Put %s "
            "in another queue, or do not wait for it",
            cut(job.name),
            cut(job.id),
            cut(name),
            cut(job_id),
            queue,
            cut(name),
            extra={"queue": queue, "task": cut(job.name), "job_id": cut(job.id)},
        )


# Handles


R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

ENQUEUE_TIMEOUT = 5.0
"""Default for the seconds without progress before adding jobs fails."""

CALL_TIMEOUT = 10.0
"""Default time limit for a call of a queue or a handle, in seconds."""

DataCheck: TypeAlias = Callable[[str, bytes], None]
"""Raises `InvalidArguments` if JSON data does not match the task with this name."""


def _takes_anything(name: str, data: bytes) -> None:
    """Accept all data, because no app is known."""


J = TypeVar("J", bound=NewJob)


class Prepare(Protocol):
    """Returns a job as the app's `on_enqueue` functions leave it."""

    def __call__(self, queue: str, job: J, /) -> J: ...


def _as_it_is(_: str, job: J, /) -> J:
    return job


ReadResult: TypeAlias = Callable[[bytes], Any]
"""Decodes a result from JSON. Raises ValueError if it does not match the type."""


class QueueClient(Struct, frozen=True, eq=False):
    """Keys, connections and adder of one queue.

    Tasks, queues and handles of an app share one client per queue.
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
    prepare: Prepare = _as_it_is
    """Applies the app's `on_enqueue` functions to a job of the queue."""


class JobHandle(Struct, Generic[R_co], frozen=True, repr_omit_defaults=True, gc=False):
    """A handle for a job in a queue.

    Each method has an async version with the prefix `a`, such as `aresult`. The result of a task's
    job has the type of the return annotation, if JSON can represent it. Otherwise it is the JSON
    value.

    Attributes:
        queue: Name of the job's queue.
        id: The job's id.

    Example:
        >>> job = greet.delay("Ann")
        >>> job.result(timeout=10)
        'Hello, Ann'
    """

    queue: str
    id: str
    name: str
    """Name that the job was added with. Empty if only the id is known."""
    deduplicated: bool = False
    """True if the job was not added because another job has the same dedup key or id.

    The handle then refers to that other job.
    """
    _client: QueueClient | None = None
    _read: ReadResult = payload.decode

    if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, RESULT, name)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<JobHandle{name} {self.id} in {self.queue}>"

    @property
    def ref(self) -> str:
        """Queue and id in one string, such as `emails:42`. `app.job(ref)` finds the job again."""
        return job_ref(self.queue, self.id)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job finishes and return its result. Blocks.

        The result of a job that is not kept is available while the queue's event stream contains
        it.

        Args:
            timeout: Maximum seconds to wait. None waits without a limit.

        Raises:
            JobFailed: If the job failed. `JobCancelled` and `JobExpired` are subclasses.
            JobNotFound: If the job does not exist.
            TimeoutError: If the job did not finish in time.
            SerializationError: If the result does not match the return annotation.
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
        """Wait until the job finishes and return its result. See `result`."""
        limit = _limit(timeout)
        client = self._where
        self._check_own_queue(client)
        try:
            ending = await client.stores.loop.ending(client.keys, self.id, limit)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        return self._value(ending)

    def cancel(self, reason: str = "") -> Cancelled:
        """Cancel the job.

        A job that is not running fails immediately. The worker of a running job is asked to stop
        it. Children that have not started are cancelled as well.

        Args:
            reason: Text stored with the job.

        Returns:
            The result of the request.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return self._run(self._cancelling(reason))

    async def acancel(self, reason: str = "") -> Cancelled:
        """Cancel the job. See `cancel`."""
        return await self._arun(self._cancelling(reason))

    def state(self) -> JobState:
        """Return the job's state, or `unknown` if the job does not exist."""
        return self._run(again(get_state(self._where.keys, self.id)))

    async def astate(self) -> JobState:
        """Return the job's state, or `unknown` if the job does not exist."""
        return await self._arun(again(get_state(self._where.keys, self.id)))

    def info(self) -> Job:
        """Return everything that is stored about the job.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return self._there(self._run(again(get_job(self._where.keys, self.id))))

    async def ainfo(self) -> Job:
        """Return everything that is stored about the job.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return self._there(await self._arun(again(get_job(self._where.keys, self.id))))

    def logs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines, oldest first.

        Args:
            start: Index of the first line.
            end: Index of the last line. -1 is the last one.
        """
        return self._run(again(get_logs(self._where.keys, self.id, start, end)))

    async def alogs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines, oldest first. See `logs`."""
        return await self._arun(again(get_logs(self._where.keys, self.id, start, end)))

    def _check_own_queue(self, client: QueueClient) -> None:
        if self.name:  # Otherwise it was not added here and may have finished long ago.
            client.own_queue.check(self.queue, self.id, self.name)

    @property
    def _where(self) -> QueueClient:
        if self._client is None:
            raise TypeError("JobHandle cannot be created directly: use app.job(queue, id)")
        return self._client

    def _value(self, ending: Ending) -> R_co:
        try:
            return cast("R_co", self._read(ending.raw_value or b"null"))
        except ValueError as error:
            raise SerializationError(
                f"Cannot read the result of job '{self.id}' in queue '{self.queue}': {error}"
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
        return client.stores.run(steps, client.call_timeout)

    async def _arun(self, steps: Steps[T]) -> T:
        client = self._where
        return await client.stores.arun(steps, client.call_timeout)


def handle(client: QueueClient, name: str, added: Added, read: ReadResult) -> JobHandle[Any]:
    """Return the handle of an added job, or raise the error that prevented adding it."""
    queue = client.keys.queue
    if added.result < 0:
        raise REFUSALS[added.result](queue, added.id)
    return JobHandle(queue, added.id, name, added.result is not Result.ADDED, client, read)


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds("timeout", timeout)

"""The async and the sync server: access to all queues under one prefix of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from time import sleep as blocking_sleep
from typing import Final, TypeVar
from uuid import uuid4

import msgspec

from taskbull.core.job import Job, JobStack
from taskbull.core.retry import attempts_of
from taskbull.core.validation import Duration, check_text, limit_of
from taskbull.core.wire.job import QueueEvent
from taskbull.core.worker_record import WorkerRecord
from taskbull.errors import ConfigurationError, ServerRefused, TaskbullError, WorkerNotFound
from taskbull.monitor.audit import BoardOperations
from taskbull.monitor.inspect import Node
from taskbull.monitor.overview import ServerOverview
from taskbull.queue import questions
from taskbull.queue.handle import CALL_TIMEOUT
from taskbull.queue.queue import AnyQueue, Queue, SyncQueue
from taskbull.queue.stores import Stores
from taskbull.queue.streams import Cursor, follow
from taskbull.scripts.browse import escape_pattern
from taskbull.scripts.call import AnySteps, again
from taskbull.scripts.change import QuietRequest, read_stack, request_quiet, request_stack
from taskbull.scripts.read import read_events
from taskbull.scripts.streams import Entry
from taskbull.store.address import Namespace, Where

# The common base of both servers.

STACK_TIMEOUT: Final = 5.0
"""Seconds that a worker has to report the stack of a job."""

_POLL = 0.02
"""Seconds between checks for a worker's reply."""


def _no_reply(queue: str, job_id: str, timeout: float) -> TaskbullError:
    return TaskbullError(
        f"The worker of job '{job_id}' in queue '{queue}' did not report its stack within "
        f"{timeout:g} s: the job has finished, its worker has died, or the worker's event loop is "
        "blocked (its log then names the line)"
    )


_LARGEST_STACK: Final = 1_000_000


def _read_stack(queue: str, job_id: str, raw: bytes) -> JobStack:
    try:
        if len(raw) <= _LARGEST_STACK:
            return msgspec.json.decode(raw, type=JobStack)
    except (ValueError, RecursionError):  # Any program that may write to the queue can reply.
        pass
    raise TaskbullError(f"The stack of job '{job_id}' in queue '{queue}' cannot be read")


T = TypeVar("T")
Q = TypeVar("Q", bound=AnyQueue)

__all__ = ["AnyServer", "Namespace", "Node", "Where"]


class AnyServer(ServerOverview, BoardOperations):
    """All queues under one prefix of a Redis server, Sentinel or Cluster, from any producer.

    Most calls read a bounded amount of data. If Redis is unavailable, a call fails within
    `call_timeout` seconds. An operation that works in chunks may take longer in total, as long as
    each chunk is answered in time.

    Args:
        redis: Redis URL or client, as for a queue.
        prefix: Prefix of all Redis keys, as for a queue.
        hash_tag: Hash tag setting, as for a queue.
        call_timeout: Time limit for each call, in seconds. None disables it.
        queues: Queues that are listed even if Redis does not have them yet.
        attempts_of: Function that returns the maximum number of attempts of a job.
    """

    def __init__(
        self,
        redis: Where | Stores | None = None,
        *,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        call_timeout: Duration | None = CALL_TIMEOUT,
        queues: Iterable[str] = (),
        attempts_of: Callable[[Job], int] = attempts_of,
    ) -> None:
        self._stores = redis if isinstance(redis, Stores) else Stores(redis)
        self._call_timeout = limit_of("call_timeout", call_timeout)
        self.namespace = Namespace(self._stores.address, prefix, hash_tag)
        self._known = frozenset(queues)
        self._attempts_of = attempts_of
        self._rights = questions.Rights()
        self._outages = questions.Outages()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}, prefix {self.prefix}>"

    @property
    def address(self) -> str:
        """The address of Redis, without the password."""
        return str(self.namespace.address)

    @property
    def known_queues(self) -> frozenset[str]:
        """The queues that are listed even if Redis does not have them yet."""
        return self._known

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        return self.namespace.prefix

    def key_pattern(self, queue: str | None = None) -> str:
        """Return the glob pattern for all keys of a queue, or of all queues."""
        if queue is None:
            return f"{escape_pattern(self.namespace.prefix)}:*"
        return f"{escape_pattern(self.namespace.keys(queue).base)}*"

    @property
    def shared_key_pattern(self) -> str:
        """The glob pattern for the keys that all queues share, such as the list of queues."""
        return f"{escape_pattern(self.namespace.prefix)}::tb:*"

    def _queue(self, kind: type[Q], name: str) -> Q:
        where, limit = self.namespace, self._call_timeout
        return kind(
            name,
            redis=self._stores,
            prefix=where.prefix,
            hash_tag=where.hash_tag,
            call_timeout=limit,
        )

    @questions.server_operation
    def quiet_worker(self, worker_id: str) -> AnySteps[WorkerRecord]:
        """Ask a taskbull worker to stop fetching jobs. Its running jobs continue.

        It stays quiet until `resume_worker` or until it ends. Use `queue.pause()` to stop all
        workers of a queue.

        Args:
            worker_id: Id of the worker, as `worker_records` and `taskbull workers` show it.

        Returns:
            The worker's last record, with its number of running jobs.

        Raises:
            WorkerNotFound: If no taskbull worker with this id is running.

        Example:
            >>> await Server("redis://localhost").quiet_worker("host-4711-5c1f0e")
        """
        return self._set_quiet(worker_id, is_quiet=True)

    @questions.server_operation
    def resume_worker(self, worker_id: str) -> AnySteps[WorkerRecord]:
        """Ask a worker to fetch jobs again after `quiet_worker`.

        Raises:
            WorkerNotFound: If no taskbull worker with this id is running.
        """
        return self._set_quiet(worker_id, is_quiet=False)

    def _set_quiet(self, worker_id: str, *, is_quiet: bool) -> AnySteps[WorkerRecord]:
        check_text("worker_id", worker_id)
        asked: WorkerRecord | None = None
        refused: TaskbullError | None = None
        # A request concerns its own queue only. Otherwise, a user who may write to one queue could
        # stop all queues of its workers.
        for queue, found in sorted((yield from self._worker_records()).items()):
            for record in found:
                if record.id == worker_id:
                    request = QuietRequest(record.id, str(record.started_ms), is_quiet)
                    try:
                        yield from request_quiet(self.namespace.keys(queue), request)
                    except (ServerRefused, ConfigurationError) as error:
                        refused = refused or error
                    else:
                        asked = asked or record
        if refused is not None:
            raise refused
        if asked is None:
            raise WorkerNotFound(worker_id)
        return asked

    @questions.server_operation
    def _request_stack(self, queue: str, job_id: str) -> AnySteps[str]:
        return request_stack(self.namespace.keys(queue), job_id, uuid4().hex)

    @questions.server_operation
    def _read_stack(self, reply_to: str) -> AnySteps[bytes | None]:
        return again(read_stack(reply_to))

    def _with_rules(self, operation: AnySteps[T]) -> AnySteps[T]:
        skip, fall_back = self._outages.skip_lost_nodes, self._rights.fall_back_to_reading
        return questions.with_rules(operation, skip, fall_back, questions.repeat_calls)


# The async server.


class Server(AnyServer, questions.Awaited):
    """All queues of a Redis server, for asyncio and trio: every operation is awaited."""

    def queue(self, name: str) -> Queue:
        """Return a queue to add or change jobs. This sends nothing to Redis."""
        return self._queue(Queue, name)

    async def stack(self, queue: str, job_id: str, *, timeout: float = STACK_TIMEOUT) -> JobStack:
        """Return the stack of a running job. See `SyncServer.stack`."""
        from anyio import sleep  # noqa: PLC0415 - sync code does not import it

        reply_to = await self._request_stack(queue, job_id)
        deadline = monotonic() + timeout
        while monotonic() < deadline:
            if (raw := await self._read_stack(reply_to)) is not None:
                return _read_stack(queue, job_id, raw)
            await sleep(_POLL)
        raise _no_reply(queue, job_id, timeout)

    async def _run(self, operation: AnySteps[T]) -> T:
        return await self._stores.arun(self._with_rules(operation), self._call_timeout)


# The sync server.


class SyncServer(AnyServer, questions.Blocking):
    """All queues of a Redis server, for code without an event loop: operations block."""

    def queue(self, name: str) -> SyncQueue:
        """Return a queue to add or change jobs. This sends nothing to Redis."""
        return self._queue(SyncQueue, name)

    def follow_items(self, queue: str, job_id: str) -> Iterator[list[Entry]]:
        """Yield the entries of a job's stream until the job has ended. See `JobHandle.stream`."""
        return follow(self._stores, Cursor(self.namespace.keys(queue), job_id))

    def wait_for_events(self, queue: str, after: str) -> list[QueueEvent]:
        """Return the next events of a queue after an id. Wait up to 5 s for the first one.

        Unlike `SyncQueue.events`, this raises an error if the connection is lost.
        """
        read = read_events(self.namespace.keys(queue), after)
        limit = None if self._call_timeout is None else self._call_timeout + read.held
        return self._stores.run(read, limit)

    def stack(self, queue: str, job_id: str, *, timeout: float = STACK_TIMEOUT) -> JobStack:
        """Ask the worker that runs a job for the stack of its coroutine, thread or process.

        Args:
            queue: Name of the job's queue.
            job_id: Id of the job.
            timeout: Seconds to wait for the worker.

        Raises:
            JobNotFound: If there is no such job.
            WrongState: If the job is not running, or not in a taskbull worker.
            TaskbullError: If the worker does not reply in time.
        """
        reply_to = self._request_stack(queue, job_id)
        deadline = monotonic() + timeout
        while monotonic() < deadline:
            if (raw := self._read_stack(reply_to)) is not None:
                return _read_stack(queue, job_id, raw)
            blocking_sleep(_POLL)
        raise _no_reply(queue, job_id, timeout)

    def close(self) -> None:
        """Close all idle connections."""
        self._stores.close()

    def _run(self, operation: AnySteps[T]) -> T:
        return self._stores.run(self._with_rules(operation), self._call_timeout)

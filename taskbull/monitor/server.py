"""The async and the sync server: access to all queues under one prefix of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from taskbull.core.job import Job
from taskbull.core.retry import attempts_of
from taskbull.core.validation import Duration, limit_of
from taskbull.core.wire.events import QueueEvent
from taskbull.monitor.audit import BoardOperations
from taskbull.monitor.browse import JobLooks
from taskbull.monitor.failures import HiddenLooks
from taskbull.monitor.inspect import Node, ServerOperations
from taskbull.monitor.overview import ServerOverview
from taskbull.monitor.schedules import ScheduleLooks
from taskbull.queue.handle import CALL_TIMEOUT
from taskbull.queue.methods import Awaited, Blocking
from taskbull.queue.questions import Outages, Rights, repeat_calls, with_rules
from taskbull.queue.queue import Queue, SyncQueue
from taskbull.queue.stores import Stores
from taskbull.scripts.call import AnySteps
from taskbull.scripts.events import read_events
from taskbull.scripts.servers import escape_pattern
from taskbull.store.address import Namespace, Where

# The common base of both servers.

T = TypeVar("T")

__all__ = ["AnyServer", "Namespace", "Node", "Where"]


class AnyServer(
    ServerOperations, ServerOverview, JobLooks, HiddenLooks, ScheduleLooks, BoardOperations
):
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
        self._rights = Rights()
        self._outages = Outages()

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

    def _with_rules(self, operation: AnySteps[T]) -> AnySteps[T]:
        skip, fall_back = self._outages.skip_lost_nodes, self._rights.fall_back_to_reading
        return with_rules(operation, skip, fall_back, repeat_calls)


# The async server.


class Server(AnyServer, Awaited):
    """All queues of a Redis server, for asyncio and trio: every operation is awaited."""

    def queue(self, name: str) -> Queue:
        """Return a queue to add or change jobs. This sends nothing to Redis."""
        return Queue(
            name,
            redis=self._stores,
            prefix=self.namespace.prefix,
            hash_tag=self.namespace.hash_tag,
            call_timeout=self._call_timeout,
        )

    async def _run(self, operation: AnySteps[T]) -> T:
        return await self._stores.arun(self._with_rules(operation), self._call_timeout)


# The sync server.


class SyncServer(AnyServer, Blocking):
    """All queues of a Redis server, for code without an event loop: operations block."""

    def queue(self, name: str) -> SyncQueue:
        """Return a queue to add or change jobs. This sends nothing to Redis."""
        return SyncQueue(
            name,
            redis=self._stores,
            prefix=self.namespace.prefix,
            hash_tag=self.namespace.hash_tag,
            call_timeout=self._call_timeout,
        )

    def wait_for_events(self, queue: str, after: str) -> list[QueueEvent]:
        """Return the next events of a queue after an id. Wait up to 5 s for the first one.

        Unlike `SyncQueue.events`, this raises an error if the connection is lost.
        """
        read = read_events(self.namespace.keys(queue), after)
        limit = None if self._call_timeout is None else self._call_timeout + read.held
        return self._stores.run(read, limit)

    def close(self) -> None:
        """Close all idle connections."""
        self._stores.close()

    def _run(self, operation: AnySteps[T]) -> T:
        return self._stores.run(self._with_rules(operation), self._call_timeout)

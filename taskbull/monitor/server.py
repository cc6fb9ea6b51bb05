"""The async and the sync server: access to all queues under one prefix of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, TypeVar

from taskbull.core.job import Job
from taskbull.core.retry import attempts_of
from taskbull.core.validation import Duration, limit_of
from taskbull.core.wire.events import QueueEvent
from taskbull.errors import ConnectionLost, MaybeExecuted, ServerUnavailable, TaskbullError
from taskbull.monitor.audit import BoardOperations
from taskbull.monitor.browse import JobLooks
from taskbull.monitor.failures import HiddenLooks
from taskbull.monitor.inspect import Node, ServerOperations
from taskbull.monitor.overview import ServerOverview
from taskbull.monitor.schedules import ScheduleLooks
from taskbull.queue.handle import CALL_TIMEOUT
from taskbull.queue.methods import Awaited, Blocking
from taskbull.queue.questions import (
    Look,
    On,
    Outages,
    Question,
    Rights,
    ServerOf,
    Servers,
    Together,
)
from taskbull.queue.queue import Queue, SyncQueue
from taskbull.queue.stores import Driver, Stores, stripped
from taskbull.scripts.call import Request, again, none_failed
from taskbull.scripts.events import read_events
from taskbull.scripts.servers import escape_pattern
from taskbull.store.address import Namespace, Where
from taskbull.store.delivery import Deadline

# The common base of both servers.

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


# The async server.

T = TypeVar("T")


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

    async def _run(self, operation: Look[T]) -> T:
        try:
            driver = Driver(self._rights.within(self._outages.within(operation)))
            while driver.asks:
                with driver:
                    driver.answer = await self._answer(driver.question)
            return driver.result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def _answer(self, question: Question) -> Any:
        store, limit = self._stores.async_store(), self._call_timeout
        match question:
            case Together(calls, each):
                answers = await self._each(calls)
                return answers if each else none_failed(answers)
            case On(server, call):
                return await store.run_on(server, call, timeout=limit)
            case Servers():
                return await store.servers(timeout=limit)
            case ServerOf(key):
                return await store.server_of(key, timeout=limit)
            case _:  # All questions can be repeated safely.
                return await store.run(again(question), timeout=limit)

    async def _each(self, calls: Sequence[Request[Any]]) -> list[Any]:
        """Run calls in one round trip. Return an error in place of each result that failed.

        Calls that may not have been executed are repeated, because they only read.
        """
        store, deadline = self._stores.async_store(), Deadline(self._call_timeout, monotonic)
        answers: list[Any] = await store.run_each(calls, timeout=self._call_timeout)

        async def repeat(place: int) -> None:
            try:
                answers[place] = await store.run(again(calls[place]), timeout=deadline.timeout)
            except TaskbullError as error:
                answers[place] = error

        from anyio import create_task_group  # noqa: PLC0415 - sync programs need no event loop

        async with create_task_group() as tasks:
            for place, answer in enumerate(answers):
                if not isinstance(answer, MaybeExecuted | ServerUnavailable):
                    continue
                if deadline.too_late_after(answer):
                    answers[place] = ConnectionLost(str(answer))
                else:
                    tasks.start_soon(repeat, place)
        return answers


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
        try:
            return self._stores.sync_store().run(read, timeout=limit)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def close(self) -> None:
        """Close all idle connections."""
        self._stores.close()

    def _run(self, operation: Look[T]) -> T:
        try:
            driver = Driver(self._rights.within(self._outages.within(operation)))
            while driver.asks:
                with driver:
                    driver.answer = self._answer(driver.question)
            return driver.result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def _answer(self, question: Question) -> Any:
        store, limit = self._stores.sync_store(), self._call_timeout
        match question:
            case Together(calls, each):
                answers = store.run_each(calls, timeout=limit)
                return answers if each else none_failed(answers)
            case On(server, call):
                return store.run_on(server, call, timeout=limit)
            case Servers():
                return store.servers(timeout=limit)
            case ServerOf(key):
                return store.server_of(key, timeout=limit)
            case _:  # All questions can be repeated safely.
                return store.run(again(question), timeout=limit)

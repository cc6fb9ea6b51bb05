"""What both queues are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any, Self, TypeAlias, TypeVar, Unpack

from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.flow import Branch, Children, branches_of
from taskbull.core.job import NewJob
from taskbull.core.keys import PREFIX, QueueKeys
from taskbull.core.options import JobKeywords, JobOptions
from taskbull.core.validation import Duration, check_keywords, limit_of, refusal
from taskbull.core.wire.events import QueueEvent
from taskbull.errors import ConfigurationError, TaskbullError
from taskbull.observability.provider import in_this_span
from taskbull.queue.add import Adder
from taskbull.queue.add_bulk import Bulk, Entry, Flow, Progress, add_at_once
from taskbull.queue.copies import CopyOperations
from taskbull.queue.handle import (
    CALL_TIMEOUT,
    ENQUEUE_TIMEOUT,
    JobHandle,
    QueueClient,
    check_last_id,
)
from taskbull.queue.methods import Awaited, Blocking
from taskbull.queue.operations import QueueOperations
from taskbull.queue.schedules import ScheduleOperations
from taskbull.queue.stores import Stores, stripped
from taskbull.scripts.call import Operation, Stages, again
from taskbull.scripts.events import last_event_id, read_events
from taskbull.store.address import Namespace, Where

# What both queues are made of.


JobEntry: TypeAlias = NewJob | tuple[str, Any] | tuple[str, Any, dict[str, Any]]
"""A job for `add_bulk`: what `queue.job` makes, or (name, data) or (name, data, options)."""

_DEFAULT = JobOptions()


class QueueJob(NewJob, frozen=True, kw_only=True):
    """A job that knows its queue, whoever runs it: `queue.job(…)` makes it."""

    keys: QueueKeys
    children: tuple[Children, ...] = ()
    """The jobs that it waits for, in a chain."""

    def branch(self) -> Branch:
        """Return the job as a part of a flow, with all below it."""
        return Branch(self.keys, self, branches_of(self.children))

    def after(self, children: Children) -> Self:
        """Return the job as one that waits for these, too."""
        return replace(self, children=(*self.children, children))


class AnyQueue(QueueOperations, ScheduleOperations, CopyOperations):
    """A BullMQ queue, to be filled and looked after.

    `redis` is a URL, or a client of redis-py whose settings are read; without one, the environment
    (`TASKBULL_REDIS_URL`, `REDIS_URL`) or the server on this machine is used. `enqueue_timeout` is
    how long an `add` may take, or an `add_bulk` without getting on; `call_timeout` is for every
    other call: seconds in which Redis must answer, over all tries. None: no limit. What works in
    pieces, such as `clean`, may take longer in all, as long as the pieces are answered in time.
    """

    def __init__(
        self,
        name: str,
        *,
        redis: Where | Stores | None = None,
        prefix: str = PREFIX,
        hash_tag: bool | None = None,
        enqueue_timeout: Duration | None = ENQUEUE_TIMEOUT,
        call_timeout: Duration | None = CALL_TIMEOUT,
    ) -> None:
        stores = redis if isinstance(redis, Stores) else Stores(redis)
        keys = Namespace(stores.address, prefix, hash_tag).keys(name)
        limit = limit_of("call_timeout", call_timeout)
        client = QueueClient(keys, stores, Adder(keys), limit)
        self._use(client, limit_of("enqueue_timeout", enqueue_timeout))

    @classmethod
    def of(cls, client: QueueClient, enqueue_timeout: float | None) -> Self:
        """Return the queue of a client that others use, too."""
        queue = cls.__new__(cls)
        queue._use(client, enqueue_timeout)  # noqa: SLF001 - its own
        return queue

    def _use(self, client: QueueClient, enqueue_timeout: float | None) -> None:
        self.keys = client.keys
        self._client = client
        self._stores = client.stores
        self._call_timeout = client.call_timeout
        self._enqueue_timeout = enqueue_timeout

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, keys {self.keys.base}*>"

    @property
    def name(self) -> str:
        """The queue's name, as it was given."""
        return self.keys.queue

    def job(self, name: str, data: Any = None, **options: Unpack[JobKeywords]) -> QueueJob:
        """Return a job for `add_bulk`, or for a flow, with the options of `add`."""
        new = _new_job(name, data, **options)
        return in_this_span(QueueJob(new.name, new.data, new.options, keys=self.keys))

    def _bulk(
        self, jobs: Iterable[JobEntry], progress: Progress | None = None
    ) -> Stages[list[JobHandle[Any]]]:
        return Bulk(jobs, self._entry, progress).run()

    def _entry(self, place: int, job: JobEntry) -> Entry:
        new = _read_entry(place, job)
        entry = Entry(self._client, new, new, payload.decode)
        if not isinstance(new, QueueJob):
            return entry
        if new.keys != self.keys:
            raise ConfigurationError(
                f"jobs[{place}] is a job of queue {new.keys.queue}, and cannot be added to queue "
                f"{self.name}: add it there, or make it a child of one here"
            )
        if not new.children:
            return entry
        return replace(entry, flow=Flow(self._client.adder, new.branch(), new.ticket))

    def _single(self, name: str, data: Any, **options: Unpack[JobKeywords]) -> Entry:
        new = _new_job(name, data, **options)
        return Entry(self._client, new, new, payload.decode)


def _new_job(name: str, data: Any = None, **options: Unpack[JobKeywords]) -> NewJob:
    """Make a job to be added later, checked in full; without `data` it has an empty object."""
    # One object for all jobs without options: what stands in Redis for it is made once.
    chosen = _DEFAULT
    if options:
        check_keywords("queue.add", options, JobKeywords)
        chosen = JobOptions(**options)
    return NewJob(name, {} if data is None else data, chosen)


def _read_entry(place: int, job: JobEntry) -> NewJob:
    match job:
        case NewJob():
            return job
        case (name, data):
            return _new_job(name, data)
        case (name, data, dict(options)):
            return _new_job(name, data, **options)
        case _:
            raise refusal(f"jobs[{place}]", "be queue.job(…) or (name, data, options)", job)


# The async queue: every operation awaited, on asyncio and trio.


T = TypeVar("T")


class Queue(AnyQueue, Awaited):
    """The queue for asyncio and trio: every operation is awaited."""

    async def add(
        self, name: str, data: Any = None, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Add a job. Never twice, whatever happens to the connection; `EnqueueError` if not."""
        entry = self._single(name, data, **options)
        return await self._stores.loop.group(self._client, self._enqueue_timeout).add(entry)

    async def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs, in order; return their handles. `EnqueueError` tells what was not added.

        Of a list, nothing is written unless all jobs are valid. Any other iterable is streamed:
        its jobs are checked and sent as they come, and few are in memory at once. `progress` is
        called with the number of jobs added so far, after every 250 at the latest.
        """
        bulk = self._bulk(jobs, progress)
        return await self._stores.aperform(bulk, self._enqueue_timeout)

    async def events(self, last_id: str = "$") -> AsyncGenerator[QueueEvent, None]:
        """Follow what happens in the queue, from now on or from an event's id on."""
        check_last_id(last_id)
        store = self._stores.async_store()
        if last_id == "$":
            last_id = await store.run(again(last_event_id(self.keys)))
        connection = store.blocking(self.keys.events)
        try:
            while True:
                for event in await connection.run(read_events(self.keys, last_id)):
                    last_id = event.id
                    yield event
        finally:
            await connection.close()

    async def _run(self, operation: Operation[T]) -> T:
        try:
            return await self._stores.async_store().run(operation, timeout=self._call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__


# The sync queue: the same operations for code without an event loop.


class SyncQueue(AnyQueue, Blocking):
    """The queue for code without an event loop, from any thread."""

    def add(self, name: str, data: Any = None, **options: Unpack[JobKeywords]) -> JobHandle[Any]:
        """Add a job. Never twice, whatever happens to the connection; `EnqueueError` if not."""
        entry = self._single(name, data, **options)
        return add_at_once(entry, self._enqueue_timeout)

    def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs, in order; return their handles. `EnqueueError` tells what was not added.

        Of a list, nothing is written unless all jobs are valid. Any other iterable is streamed:
        its jobs are checked and sent as they come, and few are in memory at once. `progress` is
        called with the number of jobs added so far, after every 250 at the latest.
        """
        bulk = self._bulk(jobs, progress)
        return self._stores.perform(bulk, self._enqueue_timeout)

    def events(self, last_id: str = "$") -> Generator[QueueEvent, None, None]:
        """Follow what happens in the queue, from now on or from an event's id on."""
        check_last_id(last_id)
        store = self._stores.sync_store()  # without a limit: a reader waits until Redis is back
        if last_id == "$":
            last_id = store.run(again(last_event_id(self.keys)))
        while True:
            for event in store.run(again(read_events(self.keys, last_id))):
                last_id = event.id
                yield event

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._stores.close()

    def _run(self, operation: Operation[T]) -> T:
        try:
            return self._stores.sync_store().run(operation, timeout=self._call_timeout)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

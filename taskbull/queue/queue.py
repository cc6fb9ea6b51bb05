"""The async and the sync queue: add jobs, follow events and manage a queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any, Self, TypeAlias, TypeGuard, TypeVar, Unpack, cast

from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.groups import check_cost
from taskbull.core.job import Branch, Children, Growing, NewJob, branches_of, children_of
from taskbull.core.keys import PREFIX, QueueKeys
from taskbull.core.options import JobKeywords, JobOptions, OnFailure
from taskbull.core.validation import Duration, check_keywords, limit_of, refusal
from taskbull.core.wire.job import QueueEvent
from taskbull.errors import ConfigurationError
from taskbull.observability.provider import in_this_span
from taskbull.queue.add_bulk import Bulk, Entry, Flow, Progress, add_at_once
from taskbull.queue.handle import (
    CALL_TIMEOUT,
    ENQUEUE_TIMEOUT,
    Adder,
    JobHandle,
    Prepare,
    QueueClient,
    check_last_id,
)
from taskbull.queue.operations import QueueOperations
from taskbull.queue.questions import Awaited, Blocking
from taskbull.queue.stores import Stores
from taskbull.scripts.call import AnySteps, Operation, again
from taskbull.scripts.read import last_event_id, read_events
from taskbull.store.address import Namespace, Where
from taskbull.store.credentials import AskCredentials

# Shared by both queues


JobEntry: TypeAlias = NewJob | tuple[str, Any] | tuple[str, Any, dict[str, Any]]
"""A job for `add_bulk`: the result of `queue.job`, (name, data) or (name, data, options)."""

_DEFAULT = JobOptions()


class QueueJob(NewJob, frozen=True, kw_only=True):
    """A job bound to its queue, made by `queue.job(…)`."""

    keys: QueueKeys
    children: tuple[Children, ...] = ()
    """Jobs that this job waits for, in a chain."""
    prepare: Prepare | None = None
    """Applies the app's `on_enqueue` functions. None once that has happened."""

    def prepared(self) -> Self:
        """Return the job and its children as the app's `on_enqueue` functions leave them."""
        if self.prepare is None:
            return self
        children = tuple(
            replace(group, jobs=tuple(job.prepared() for job in group.jobs))
            for group in self.children
        )
        job = self.prepare(self.keys.queue, self)
        return replace(job, children=children, prepare=None)

    def template(self) -> Self:
        """Return the job for a schedule."""
        return self

    def branch(self) -> Branch:
        """Return the job and everything below it as a part of a flow."""
        job = self.prepared()
        return Branch(job.keys, job, branches_of(job.children))

    def after(
        self, *jobs: Growing | Iterable[Growing] | Children, on_failure: OnFailure = "fail"
    ) -> Self:
        """Return the job with additional children, which it waits for.

        Args:
            *jobs: Jobs made with `task.job(…)` or `queue.job(…)`, or iterables of such jobs.
            on_failure: How the job reacts if one of these children fails. See `Task.after`.

        Raises:
            ConfigurationError: If an argument is not a job, or `on_failure` is invalid.

        Example:
            >>> await queue.add_bulk([queue.job("sum").after(embed.job("a"), embed.job("b"))])
        """
        groups = [each for each in jobs if isinstance(each, Children)]
        others = [each for each in jobs if not isinstance(each, Children)]
        if others or not groups:
            groups.append(children_of(f"{self.name}.after()", others, on_failure))
        return replace(self, children=(*self.children, *groups))


class AnyQueue(QueueOperations):
    """A BullMQ queue: base class of `Queue` and `SyncQueue`.

    Operations that work in chunks, such as `clean`, may take longer than `call_timeout` in total.
    The limit then applies to each chunk.

    Args:
        name: Name of the queue.
        redis: Redis URL, or a redis-py client whose settings are copied. Defaults to
            `TASKBULL_REDIS_URL`, then `REDIS_URL`, then the server on this machine.
        prefix: Prefix of all Redis keys. It must match the prefix that Node services use.
        hash_tag: Whether keys get a Redis Cluster hash tag. None adds one in a Cluster only.
        credentials: Function that returns a password or (user, password), or a redis-py
            `CredentialProvider`. It is called for each new connection.
        enqueue_timeout: Time limit in seconds for `add`, and for `add_bulk` without progress. None
            disables it.
        call_timeout: Time limit in seconds for all other calls, including retries. None disables
            it.

    Raises:
        ConfigurationError: If an argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - users pass them by name
        self,
        name: str,
        *,
        redis: Where | Stores | None = None,
        prefix: str = PREFIX,
        hash_tag: bool | None = None,
        credentials: AskCredentials | None = None,
        enqueue_timeout: Duration | None = ENQUEUE_TIMEOUT,
        call_timeout: Duration | None = CALL_TIMEOUT,
    ) -> None:
        stores = redis if isinstance(redis, Stores) else Stores(redis, credentials)
        keys = Namespace(stores.address, prefix, hash_tag).keys(name)
        limit = limit_of("call_timeout", call_timeout)
        client = QueueClient(keys, stores, Adder(keys), limit)
        self._use(client, limit_of("enqueue_timeout", enqueue_timeout))

    @classmethod
    def of(cls, client: QueueClient, enqueue_timeout: float | None) -> Self:
        """Return a queue that shares an existing client."""
        queue = cls.__new__(cls)
        queue._use(client, enqueue_timeout)  # noqa: SLF001 - own class
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
        """The name of the queue."""
        return self.keys.queue

    def job(self, name: str, data: Any = None, **options: Unpack[JobKeywords]) -> QueueJob:
        """Return a job for `add_bulk` or for a flow. Nothing is sent.

        Args:
            name: Name of the task.
            data: JSON data of the job. None means an empty object.
            **options: Job options, as for `add`.
        """
        new = _new_job(name, data, **options)
        prepare = self._client.prepare
        job = QueueJob(new.name, new.data, new.options, keys=self.keys, prepare=prepare)
        return in_this_span(job)

    def _bulk(
        self, jobs: Iterable[JobEntry], progress: Progress | None = None
    ) -> AnySteps[list[JobHandle[Any]]]:
        return Bulk(jobs, self._entry, progress).run()

    def _entry(self, place: int, job: JobEntry) -> Entry:
        new = _read_entry(place, job)
        new = new.prepared() if isinstance(new, QueueJob) else self._client.prepare(self.name, new)
        entry = Entry(self._client, new, new, payload.decode)
        if not isinstance(new, QueueJob):
            return entry
        if new.keys != self.keys:
            raise ConfigurationError(
                f"jobs[{place}] belongs to queue '{new.keys.queue}', not to '{self.name}': add it "
                "there, or make it a child of a job here"
            )
        if not new.children:
            return entry
        return replace(entry, flow=Flow(self._client.adder, new.branch(), new.ticket))

    def _read_all(self, jobs: Iterable[JobEntry]) -> list[NewJob]:
        return [self._entry(*each).job for each in enumerate(jobs)]

    def _single(self, name: str, data: Any, **options: Unpack[JobKeywords]) -> Entry:
        new = self._client.prepare(self.name, _new_job(name, data, **options))
        return Entry(self._client, new, new, payload.decode)


def _new_job(name: str, data: Any = None, **options: Unpack[JobKeywords]) -> NewJob:
    """Return a validated job. None as `data` means an empty object."""
    # One object for all jobs without options, so that its Redis form is encoded only once.
    chosen = _DEFAULT
    if options:
        check_keywords("queue.add", options, JobKeywords)
        chosen = JobOptions(**options)
        if "cost" in options:
            check_cost(options["cost"])  # Only tasks have parameters that a rule can use.
    return NewJob(name, {} if data is None else data, chosen)


def _read_entry(place: int, job: JobEntry) -> NewJob:
    match job:
        case NewJob():
            return job
        case (name, data):
            return _new_job(name, data)
        case (name, data, options) if _are_keywords(options):
            return _new_job(name, data, **options)
        case _:
            raise refusal(f"jobs[{place}]", "be queue.job(…) or (name, data, options)", job)


def _are_keywords(value: object) -> TypeGuard[JobKeywords]:
    names = cast("dict[object, Any]", value) if isinstance(value, dict) else (None,)
    return all(isinstance(name, str) for name in names)


# The async queue


T = TypeVar("T")


class Queue(AnyQueue, Awaited):
    """A queue for asyncio and trio. All operations are coroutines.

    See `AnyQueue` for the arguments.

    Example:
        >>> queue = Queue("emails", redis="redis://localhost:6379/0")
        >>> job = await queue.add("send", {"to": "ann@example.com"}, attempts=5)
        >>> await job.aresult(timeout=10)
    """

    async def add(
        self, name: str, data: Any = None, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Add a job. It is never added twice, even if the connection is lost.

        Args:
            name: Name of the task.
            data: JSON data of the job. None means an empty object.
            **options: Job options, such as `attempts`, `delay`, `priority` or `job_id`.

        Raises:
            ConfigurationError: If an option is invalid.
            SerializationError: If the data cannot be stored as JSON.
            EnqueueError: If the job could not be added in time.
        """
        entry = self._single(name, data, **options)
        if self._stores.detour is not None:
            [handle] = await self._stores.detour.aadd(self.keys, [entry.job])
            return cast("JobHandle[Any]", handle)
        return await self._stores.loop.group(self._client, self._enqueue_timeout).add(entry)

    async def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs in order and return their handles.

        A list is validated first, and nothing is written unless all its jobs are valid. Any other
        iterable is streamed: jobs are validated and sent as they arrive, and only a few are in
        memory.

        Args:
            jobs: Jobs made with `queue.job(…)`, or tuples (name, data) or (name, data, options).
            progress: Function called with the number of jobs added so far, at least after every 250
                jobs.

        Raises:
            EnqueueError: If jobs could not be added. Its `spec` holds those jobs.

        Example:
            >>> await queue.add_bulk([("send", {"to": to}) for to in recipients])
        """
        if self._stores.detour is not None:
            return await self._stores.detour.aadd(self.keys, self._read_all(jobs))
        bulk = self._bulk(jobs, progress)
        return await self._stores.arun(bulk, self._enqueue_timeout)

    async def events(self, last_id: str = "$") -> AsyncGenerator[QueueEvent, None]:
        """Yield the queue's events as they happen.

        Args:
            last_id: Id of an event to start after. `$` starts now.

        Example:
            >>> async for event in queue.events():
            ...     print(event)
        """
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
        return await self._stores.arun(operation, self._call_timeout)


# The sync queue


class SyncQueue(AnyQueue, Blocking):
    """A queue for code without an event loop. It can be used from any thread.

    See `AnyQueue` for the arguments.

    Example:
        >>> queue = SyncQueue("emails", redis="redis://localhost:6379/0")
        >>> job = queue.add("send", {"to": "ann@example.com"}, attempts=5)
        >>> job.result(timeout=10)
    """

    def add(self, name: str, data: Any = None, **options: Unpack[JobKeywords]) -> JobHandle[Any]:
        """Add a job. It is never added twice, even if the connection is lost.

        Args:
            name: Name of the task.
            data: JSON data of the job. None means an empty object.
            **options: Job options, such as `attempts`, `delay`, `priority` or `job_id`.

        Raises:
            ConfigurationError: If an option is invalid.
            SerializationError: If the data cannot be stored as JSON.
            EnqueueError: If the job could not be added in time.
        """
        entry = self._single(name, data, **options)
        if self._stores.detour is not None:
            [handle] = self._stores.detour.add(self.keys, [entry.job])
            return cast("JobHandle[Any]", handle)
        return add_at_once(entry, self._enqueue_timeout)

    def add_bulk(
        self, jobs: Iterable[JobEntry], *, progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs in order and return their handles.

        A list is validated first, and nothing is written unless all its jobs are valid. Any other
        iterable is streamed: jobs are validated and sent as they arrive, and only a few are in
        memory.

        Args:
            jobs: Jobs made with `queue.job(…)`, or tuples (name, data) or (name, data, options).
            progress: Function called with the number of jobs added so far, at least after every 250
                jobs.

        Raises:
            EnqueueError: If jobs could not be added. Its `spec` holds those jobs.

        Example:
            >>> queue.add_bulk([("send", {"to": to}) for to in recipients])
        """
        if self._stores.detour is not None:
            return self._stores.detour.add(self.keys, self._read_all(jobs))
        bulk = self._bulk(jobs, progress)
        return self._stores.run(bulk, self._enqueue_timeout)

    def events(self, last_id: str = "$") -> Generator[QueueEvent, None, None]:
        """Yield the queue's events as they happen. Blocks while there are none.

        Args:
            last_id: Id of an event to start after. `$` starts now.
        """
        check_last_id(last_id)
        store = self._stores.sync_store()  # No time limit: a reader waits until Redis is back.
        if last_id == "$":
            last_id = store.run(again(last_event_id(self.keys)))
        while True:
            for event in store.run(again(read_events(self.keys, last_id))):
                last_id = event.id
                yield event

    def close(self) -> None:
        """Close idle connections. New ones are opened when needed."""
        self._stores.close()

    def _run(self, operation: Operation[T]) -> T:
        return self._stores.run(operation, self._call_timeout)

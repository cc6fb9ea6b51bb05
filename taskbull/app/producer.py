"""Add an app's jobs to its queues, from sync and async code."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
)
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from taskbull.app.settings import CallOptions, with_call
from taskbull.core import payload
from taskbull.core.job import Branch, Children, Job, Need, NewJob, Ticket, branches_of, current
from taskbull.core.keys import check_queue_name
from taskbull.core.options import JobOptions
from taskbull.core.validation import check_keywords, check_type, did_you_mean, refusal
from taskbull.core.wire.job import encode_job
from taskbull.errors import ConfigurationError
from taskbull.observability.provider import current_tracer, in_this_span
from taskbull.queue.add_bulk import Bulk, Entry, Flow, Progress, add_at_once, check_bulk
from taskbull.queue.handle import Adder, DataCheck, JobHandle, QueueClient, ReadResult
from taskbull.queue.stores import Detour, Stores
from taskbull.scripts.call import AnySteps
from taskbull.store.address import Namespace, address_of

if TYPE_CHECKING:
    from taskbull.monitor.server import AnyServer
    from taskbull.queue.queue import AnyQueue, Queue, SyncQueue

Q = TypeVar("Q", bound="AnyQueue")
S = TypeVar("S", bound="AnyServer")
J = TypeVar("J", bound=NewJob)
R_co = TypeVar("R_co", covariant=True)

logger = logging.getLogger(__name__)


class Calling(Protocol):
    """The interface of a task that its jobs need."""

    @property
    def producer(self) -> Producer: ...
    @property
    def read(self) -> ReadResult: ...
    @property
    def needs(self) -> Sequence[Need]: ...


class JobSpec(Struct, Generic[R_co], frozen=True):
    """A call of a task that is not in its queue yet, made by `task.job(…)`.

    `app.enqueue([spec])` adds it. Its size and the JSON form of its arguments are checked only
    then.
    """

    queue: str
    job: NewJob
    calling: Calling
    children: tuple[Children, ...] = ()
    """Jobs that this job waits for."""
    is_prepared: bool = False
    """True if the functions of `@app.on_enqueue` have seen the job."""
    has_task_key: bool = False
    """True if the deduplication key comes from the task, so that a schedule leaves it out."""

    def __repr__(self) -> str:
        return f"<JobSpec {self.name}({', '.join(self.data)}) in {self.queue}>"

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.job.name

    @property
    def data(self) -> dict[str, Any]:
        """The arguments by name."""
        arguments: dict[str, Any] = self.job.data
        return arguments

    @property
    def options(self) -> JobOptions:
        """The merged options of the app, the task and the call."""
        return self.job.options

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the job."""
        return dict(self.job.options.headers or {})

    def with_options(self, **options: Unpack[CallOptions]) -> JobSpec[R_co]:
        """Return the job with other options, which replace those that it has.

        Raises:
            ConfigurationError: If an option is unknown or invalid.

        Example:
            >>> spec.with_options(headers={**spec.headers, "tenant": "acme"})
        """
        check_keywords("JobSpec.with_options()", options, CallOptions)
        queue = options.get("queue", self.queue)
        check_queue_name(queue)
        job = replace(self.job, options=with_call(self.job.options, options))
        has_task_key = self.has_task_key and "dedup" not in options
        return replace(self, queue=queue, job=job, has_task_key=has_task_key)

    def template(self) -> JobSpec[R_co]:
        """Return the job for a schedule, whose runs do not use the task's deduplication key."""
        return self.with_options(dedup=None) if self.has_task_key else self

    @property
    def read(self) -> ReadResult:
        """The decoder for the job's result."""
        return self.calling.read

    def branch(self) -> Branch:
        """Return the job and everything below it as a part of a flow."""
        producer = self.calling.producer
        spec = self if self.is_prepared else producer.prepared(self)
        keys = producer.client(spec.queue).keys
        return Branch(keys, spec.job, branches_of(spec.children), spec.missing)

    @property
    def missing(self) -> list[Need]:
        """The parameters that take results of children and are not passed in the call."""
        given = self.job.data
        return [need for need in self.calling.needs if need.parameter not in given]

    def after(self, children: Children) -> JobSpec[R_co]:
        """Return the job with additional children to wait for."""
        return replace(self, children=(*self.children, children))

    def prepared(self) -> JobSpec[R_co]:
        """Return the job and its children as the app's `on_enqueue` functions leave them."""
        return self.calling.producer.prepared(self)

    def with_ticket(self, ticket: Ticket) -> JobSpec[R_co]:
        """Return the job with a ticket, which makes sending it again idempotent."""
        return replace(self, job=self.job.with_ticket(ticket))

    def created_at(self, created_ms: int) -> JobSpec[R_co]:
        """Return the job with this time of creation, in milliseconds."""
        return replace(self, job=replace(self.job, created_ms=created_ms))

    def without_ticket(self) -> JobSpec[R_co]:
        """Return the job without its ticket, so that it is added even if this one already was."""
        return replace(self, job=self.job.without_ticket())


class AppDetour(Detour, Protocol):
    """Takes the jobs of an app in place of Redis: a `Box`, or inline mode."""

    def enqueue(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        """Take jobs and return their handles in order."""
        ...

    async def aenqueue(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        """Take jobs and return their handles in order."""
        ...

    def find(self, queue: str, job_id: str) -> JobHandle[Any] | None:
        """Return the handle of a job that was taken, or None."""
        ...


class Transactions(Protocol):
    """Decides when jobs are sent: now, or when the caller's database transaction is committed."""

    def defer(self, prepare: Callable[[], Callable[[], object]]) -> bool:
        """In a transaction, call `prepare` now and its result after the commit.

        Returns:
            True if there is a transaction.
        """
        ...

    async def adefer(self, prepare: Callable[[], Callable[[], object]]) -> bool:
        """Do the same for async code. The functions may be called in another thread."""
        ...


EnqueueHook: TypeAlias = Callable[[JobSpec[Any]], JobSpec[Any] | None]
"""Function that sees each job before it is added, and may return another one."""


class ByName:
    """A task that is only known by name, for jobs made by a schedule or a queue."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.read: ReadResult = payload.decode
        self.needs: Sequence[Need] = ()


def inherit_headers(spec: JobSpec[Any]) -> JobSpec[Any] | None:
    """Add the headers of the running job, unless the new job sets them itself."""
    running = current.get(None)
    if running is None or not running.headers:
        return None
    return spec.with_options(headers={**running.headers, **spec.headers})


class Producer:
    """Adds jobs to the queues of one Redis server.

    It can be used from any thread and event loop, before and after a fork.
    """

    transactions: ClassVar[Transactions | None] = None
    """Database transactions that the jobs of all apps wait for. Set by `taskbull.django`."""

    def __init__(
        self,
        namespace: Namespace,
        timeout: float | None,
        call_timeout: float | None,
        check: DataCheck,
    ) -> None:
        self.namespace = namespace
        self._check = check
        self.stores = Stores(namespace.address)
        self._timeout = timeout
        self._call_timeout = call_timeout
        self._clients: dict[str, QueueClient] = {}
        self._queues: dict[str, Queue] = {}
        self._sync_queues: dict[str, SyncQueue] = {}
        self.detour: AppDetour | None = None
        """Takes jobs in place of Redis."""
        self.moved_to: str | None = None
        """URL of the server that a test uses in place of the app's own."""
        self.known_queues: Callable[[], Collection[str]] = tuple
        """Returns the queues that the app's workers serve. Empty if they are not known yet."""
        self.hooks: list[EnqueueHook] = []
        """Functions that see each job before it is added."""

    def prepared(self, spec: JobSpec[Any]) -> JobSpec[Any]:
        """Return a job and its children as the hooks leave them.

        A job that is sent again is left alone: it has to be the same as the first time.

        Raises:
            ConfigurationError: If a hook returns something else than a job.
        """
        if spec.is_prepared or not self.hooks or spec.job.ticket is not None:
            return spec
        for hook in self.hooks:
            changed = hook(spec)
            if changed is None:
                continue
            if not isinstance(changed, JobSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise refusal("the result of an on_enqueue function", "be a JobSpec", changed)
            spec = changed
        children = tuple(
            replace(group, jobs=tuple(job.prepared() for job in group.jobs))
            for group in spec.children
        )
        return replace(spec, children=children, is_prepared=True)

    def prepared_job(self, queue: str, job: J) -> J:
        """Return a job that is made by a queue, as the hooks leave it.

        Raises:
            ConfigurationError: If a hook moves it to another queue.
        """
        if not self.hooks or job.ticket is not None:
            return job
        spec = self.prepared(JobSpec(queue, job, ByName(self)))
        if spec.queue != queue:
            raise ConfigurationError(
                f"An on_enqueue function moved job {job.name!r} from queue {queue!r} to "
                f"{spec.queue!r}: only jobs made by task.job(…) or task.delay(…) can be moved"
            )
        return cast("J", spec.job)

    @contextmanager
    def diverted(self, detour: AppDetour) -> Generator[None]:
        """Pass the jobs added in the block to `detour` instead of Redis. For tests."""
        before = self.detour
        self.divert(detour)
        try:
            yield
        finally:
            self.divert(before)

    def divert(self, detour: AppDetour | None) -> None:
        """Pass jobs to `detour` instead of Redis from now on, and refuse all other calls."""
        self.detour = self.stores.detour = detour

    @contextmanager
    def moved(self, url: str) -> Generator[None]:
        """Use another server in the block. For tests."""
        before = (self.namespace, self.stores, self._clients, self._queues, self._sync_queues)
        detour, moved_to = self.detour, self.moved_to
        self.move(url)
        try:
            yield
        finally:
            self.stores.close()
            self.detour, self.moved_to = detour, moved_to
            self.namespace, self.stores, self._clients, self._queues, self._sync_queues = before

    def move(self, url: str) -> None:
        """Use another server from now on."""
        address = address_of(url)
        self.detour, self.moved_to = None, url
        self.namespace = replace(self.namespace, address=address)
        self.stores, self._clients, self._queues, self._sync_queues = Stores(address), {}, {}, {}

    def client(self, queue: str) -> QueueClient:
        """Return the client of a queue. Each queue has one client.

        Raises:
            ConfigurationError: If the name is not valid.
        """
        client = self._clients.get(queue) if queue.__class__ is str else None
        if client is None:
            check_type("queue name", queue, str, "be a string")
            keys = self.namespace.keys(queue)
            client = QueueClient(
                keys,
                self.stores,
                Adder(keys),
                self._call_timeout,
                check=self._check,
                prepare=self.prepared_job,
            )
            self._clients[queue] = client
        return client

    def queue(self, name: str) -> Queue:
        """Return the async queue with this name. Each name has one instance."""
        # Importing everything that a queue can do takes as long as starting Python.
        from taskbull.queue.queue import Queue  # noqa: PLC0415

        return self._kept(self._queues, name, Queue)

    def sync_queue(self, name: str) -> SyncQueue:
        """Return the sync queue with this name. Each name has one instance."""
        from taskbull.queue.queue import SyncQueue  # noqa: PLC0415 - as above

        return self._kept(self._sync_queues, name, SyncQueue)

    def _kept(self, kept: dict[str, Q], name: str, kind: type[Q]) -> Q:
        check_type("queue name", name, str, "be a string")
        if (queue := kept.get(name)) is None:
            queue = kept[name] = kind.of(self.client(name), self._timeout)
        return queue

    def server(self, kind: type[S], queues: Iterable[str], attempts_of: Callable[[Job], int]) -> S:
        """Return a view of all queues on the server. `queues` are those of the app."""
        return kind(
            self.stores,
            prefix=self.namespace.prefix,
            hash_tag=self.namespace.hash_tag,
            call_timeout=self._call_timeout,
            queues=queues,
            attempts_of=attempts_of,
        )

    def add(self, spec: JobSpec[Any]) -> JobHandle[Any]:
        """Add one job, now or when the current transaction is committed."""
        if self.hooks:
            spec = self.prepared(spec)
        if self.transactions is not None:
            later = LaterJobs(self, [spec])
            if self.transactions.defer(later.prepare):
                return later.handles[0]
        return self.add_now(spec)

    def add_now(self, spec: JobSpec[Any]) -> JobHandle[Any]:
        """Add one prepared job now, even inside a transaction."""
        if self.detour is not None:
            return self.detour.enqueue([spec])[0]
        if spec.children or spec.calling.needs:
            return self.enqueue_now([spec])[0]
        return add_at_once(self._alone(spec), self._timeout)

    def aadd(self, spec: JobSpec[Any]) -> Awaitable[JobHandle[Any]]:
        """Add one job, in one call with jobs from other tasks of the event loop."""
        if self.hooks:
            spec = self.prepared(spec)
        if self.transactions is not None:
            return self._aadd_in_transaction(spec, self.transactions)
        return self._aadd_now(spec)

    async def _aadd_in_transaction(
        self, spec: JobSpec[Any], transactions: Transactions
    ) -> JobHandle[Any]:
        later = LaterJobs(self, [spec])
        if await transactions.adefer(later.prepare):
            return later.handles[0]
        return await self._aadd_now(spec)

    def _aadd_now(self, spec: JobSpec[Any]) -> Awaitable[JobHandle[Any]]:
        if self.detour is not None or spec.children or spec.calling.needs:
            return self._aadd_by_itself(spec)
        entry = self._alone(spec)
        return self.stores.loop.group(entry.client, self._timeout).add(entry)

    async def _aadd_by_itself(self, spec: JobSpec[Any]) -> JobHandle[Any]:
        return (await self._aenqueue_now([spec]))[0]

    def _alone(self, spec: JobSpec[Any]) -> Entry:
        queue = spec.queue
        client = self._clients.get(queue) or self._first_client(spec)
        return Entry(client, spec.job, spec, spec.calling.read)

    def _first_client(self, spec: JobSpec[Any]) -> QueueClient:
        """Return the client of a queue, and warn if a worker of the app would not serve it."""
        known = self.known_queues()
        if known and spec.queue not in known:
            logger.warning(
                "%s.options(queue=%r): no task of the app uses this queue%s, so `taskbull worker` "
                "does not serve it. If this is intended, declare it with app.queue_options(%r)",
                spec.name,
                spec.queue,
                did_you_mean(spec.queue, known),
                spec.queue,
            )
        return self.client(spec.queue)

    def enqueue(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs and return their handles, now or when the current transaction is committed."""
        if self.transactions is not None:
            later = LaterJobs(self, specs, progress)
            if self.transactions.defer(later.prepare):
                return later.handles
        return self.enqueue_now(specs, progress)

    def enqueue_now(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs now, even inside a transaction."""
        if self.detour is not None:
            handles = self.detour.enqueue(self.all_of(specs, progress))
            if progress is not None:
                progress(len(handles))
            return handles
        return self.stores.run(self._bulk(specs, progress), self._timeout)

    async def aenqueue(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs and return their handles, now or when the current transaction is committed."""
        if self.transactions is not None:
            later = LaterJobs(self, specs, progress)
            if await self.transactions.adefer(later.prepare):
                return later.handles
        return await self._aenqueue_now(specs, progress)

    async def _aenqueue_now(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        if self.detour is not None:
            handles = await self.detour.aenqueue(self.all_of(specs, progress))
            if progress is not None:
                progress(len(handles))
            return handles
        return await self.stores.arun(self._bulk(specs, progress), self._timeout)

    def all_of(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None
    ) -> list[JobSpec[Any]]:
        """Return all jobs of a bulk, checked and prepared."""
        check_bulk(specs, progress)
        return [self.prepared(self._checked(*each)) for each in enumerate(specs)]

    def _bulk(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None
    ) -> AnySteps[list[JobHandle[Any]]]:
        return Bulk(specs, self._entry, progress).run()

    def _entry(self, place: int, spec: JobSpec[Any]) -> Entry:
        if spec.__class__ is not JobSpec:
            self._checked(place, spec)
        if self.hooks:
            spec = self.prepared(spec)
        entry = self._alone(spec)
        if not spec.children and not spec.calling.needs:
            return entry
        root = spec.branch()
        flow = Flow(entry.client.adder, root, spec.job.ticket)
        return replace(entry, flow=flow) if root.children else entry

    @staticmethod
    def _checked(place: int, spec: JobSpec[Any]) -> JobSpec[Any]:
        if not isinstance(spec, JobSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal(f"jobs[{place}]", "be created with task.job(…)", spec)
        return spec


class LaterJobs:
    """Jobs that are sent when a transaction is committed, and their handles."""

    def __init__(
        self,
        producer: Producer,
        specs: Iterable[JobSpec[Any]],
        progress: Progress | None = None,
    ) -> None:
        self._producer = producer
        self._specs = specs
        self._progress = progress
        self.handles: list[JobHandle[Any]] = []
        """The handles in order, once the jobs are prepared."""

    def prepare(self) -> Callable[[], None]:
        """Check the jobs, copy their arguments, choose their ids, and return `send`.

        Raises:
            SerializationError: If a job could not be added.
        """
        producer = self._producer
        self._specs = [frozen(spec) for spec in producer.all_of(self._specs, self._progress)]
        self.handles = [
            JobHandle(
                spec.queue,
                spec.options.job_id or "",
                spec.name,
                False,
                producer.client(spec.queue),
                spec.read,
            )
            for spec in self._specs
        ]
        return self.send

    def send(self) -> None:
        """Add the jobs. The handle of a duplicate becomes that of the existing job."""
        added = self._producer.enqueue_now(self._specs, self._progress)
        for known, real in zip(self.handles, added, strict=True):
            if (known.id, known.deduplicated) != (real.id, real.deduplicated):
                force_setattr(known, "id", real.id)
                force_setattr(known, "deduplicated", real.deduplicated)


def frozen(spec: JobSpec[Any]) -> JobSpec[Any]:
    """Return a job with an id and a copy of its arguments.

    A job that was sent before keeps its ticket instead.
    """
    encoded = encode_job(spec.job, int(time.time() * 1000))
    options = spec.options
    if options.job_id is None and spec.job.ticket is None:
        options = replace(options, job_id=uuid4().hex)
    job = replace(spec.job, data=payload.decode(encoded.data), options=options)
    return replace(spec, job=job if current_tracer() is None else in_this_span(job))

"""Adding the jobs of an app: to one queue or several, by sync and async code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.flow import Branch, Children, Need, branches_of
from taskbull.core.job import Job, NewJob, Ticket
from taskbull.core.options import JobOptions
from taskbull.core.validation import check_type, refusal
from taskbull.queue.add import Adder
from taskbull.queue.add_bulk import Bulk, Entry, Flow, Progress, add_at_once, check_bulk
from taskbull.queue.handle import DataCheck, JobHandle, QueueClient, ReadResult
from taskbull.queue.stores import Stores
from taskbull.scripts.call import Stages
from taskbull.store.address import Address, Namespace

if TYPE_CHECKING:
    from taskbull.monitor.server import AnyServer
    from taskbull.queue.queue import AnyQueue, Queue, SyncQueue

Q = TypeVar("Q", bound="AnyQueue")
S = TypeVar("S", bound="AnyServer")
R_co = TypeVar("R_co", covariant=True)


class Calling(Protocol):
    """What a job knows of its task."""

    @property
    def producer(self) -> Producer: ...
    @property
    def read(self) -> ReadResult: ...
    @property
    def needs(self) -> Sequence[Need]: ...


class JobSpec(Struct, Generic[R_co], frozen=True):
    """A call of a task that is not yet in its queue: `app.enqueue([spec])` adds it.

    It is checked but for its size and the JSON form of its arguments.
    """

    queue: str
    job: NewJob
    calling: Calling
    children: tuple[Children, ...] = ()
    """The jobs that it waits for."""

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
        """The options of the task, the app and the call together."""
        return self.job.options

    @property
    def read(self) -> ReadResult:
        """What makes a result of its JSON."""
        return self.calling.read

    def branch(self) -> Branch:
        """Return the job as a part of a flow, with all below it."""
        keys = self.calling.producer.client(self.queue).keys
        return Branch(keys, self.job, branches_of(self.children), self.missing)

    @property
    def missing(self) -> list[Need]:
        """What its parameters take from children, but for those that the call gives."""
        given = self.job.data
        return [need for need in self.calling.needs if need.parameter not in given]

    def after(self, children: Children) -> JobSpec[R_co]:
        """Return the job as one that waits for these, too."""
        return replace(self, children=(*self.children, children))

    def with_ticket(self, ticket: Ticket) -> JobSpec[R_co]:
        """Return the job with the ticket under which it is sent again."""
        return replace(self, job=self.job.with_ticket(ticket))

    def anew(self) -> JobSpec[R_co]:
        """Return the job without its ticket: it is added, whatever happened to this one."""
        return replace(self, job=self.job.anew())


Enqueue: TypeAlias = Callable[[Sequence[JobSpec[Any]]], list[JobHandle[Any]]]


class Producer:
    """Adds jobs. It may be used by any thread, in any event loop, before and after a fork."""

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
        self._elsewhere: Enqueue | None = None

    @contextmanager
    def diverted(self, elsewhere: Enqueue) -> Generator[None]:
        """Send the jobs that are added in the block to `elsewhere`, not to Redis: for tests."""
        before, self._elsewhere = self._elsewhere, elsewhere
        try:
            yield
        finally:
            self._elsewhere = before

    @contextmanager
    def moved(self, address: Address) -> Generator[None]:
        """Use another server in the block: for tests."""
        before = (self.namespace, self.stores, self._clients, self._queues, self._sync_queues)
        self.namespace = replace(self.namespace, address=address)
        self.stores, self._clients, self._queues, self._sync_queues = Stores(address), {}, {}, {}
        try:
            yield
        finally:
            self.stores.close()
            self.namespace, self.stores, self._clients, self._queues, self._sync_queues = before

    def client(self, queue: str) -> QueueClient:
        """Return the client of a queue, always the same; refuse a name that no queue can have."""
        client = self._clients.get(queue) if queue.__class__ is str else None
        if client is None:
            check_type("queue name", queue, str, "be a string")
            keys = self.namespace.keys(queue)
            client = QueueClient(
                keys, self.stores, Adder(keys), self._call_timeout, check=self._check
            )
            self._clients[queue] = client
        return client

    def queue(self, name: str) -> Queue:
        """Return the async queue of a name, always the same."""
        # With all that can be done to a queue it takes as long as to start Python.
        from taskbull.queue.queue import Queue  # noqa: PLC0415

        return self._kept(self._queues, name, Queue)

    def sync_queue(self, name: str) -> SyncQueue:
        """Return the sync queue of a name, always the same."""
        from taskbull.queue.queue import SyncQueue  # noqa: PLC0415 - as above

        return self._kept(self._sync_queues, name, SyncQueue)

    def _kept(self, kept: dict[str, Q], name: str, kind: type[Q]) -> Q:
        if (queue := kept.get(name)) is None:
            queue = kept[name] = kind.of(self.client(name), self._timeout)
        return queue

    def server(self, kind: type[S], queues: Iterable[str], attempts_of: Callable[[Job], int]) -> S:
        """Return all queues of the server, of which the app knows some."""
        return kind(
            self.stores,
            prefix=self.namespace.prefix,
            hash_tag=self.namespace.hash_tag,
            call_timeout=self._call_timeout,
            queues=queues,
            attempts_of=attempts_of,
        )

    def add(self, spec: JobSpec[Any]) -> JobHandle[Any]:
        """Add one job."""
        if self._elsewhere is not None:
            return self._elsewhere([spec])[0]
        if spec.children or spec.calling.needs:
            return self.enqueue([spec])[0]
        return add_at_once(self._alone(spec), self._timeout)

    def aadd(self, spec: JobSpec[Any]) -> Awaitable[JobHandle[Any]]:
        """Add one job, together with those of other tasks of the event loop."""
        if self._elsewhere is not None or spec.children or spec.calling.needs:
            return self._aadd_by_itself(spec)
        entry = self._alone(spec)
        return self.stores.loop.group(entry.client, self._timeout).add(entry)

    async def _aadd_by_itself(self, spec: JobSpec[Any]) -> JobHandle[Any]:
        return (await self.aenqueue([spec]))[0]

    def _alone(self, spec: JobSpec[Any]) -> Entry:
        queue = spec.queue
        client = self._clients.get(queue) or self.client(queue)
        return Entry(client, spec.job, spec, spec.calling.read)

    def enqueue(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs; handles in order."""
        if self._elsewhere is not None:
            return self._divert(self._elsewhere, specs, progress)
        return self.stores.perform(self._bulk(specs, progress), self._timeout)

    async def aenqueue(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None = None
    ) -> list[JobHandle[Any]]:
        """Add jobs; handles in order."""
        if self._elsewhere is not None:
            return self._divert(self._elsewhere, specs, progress)
        return await self.stores.aperform(self._bulk(specs, progress), self._timeout)

    def _divert(
        self, elsewhere: Enqueue, specs: Iterable[JobSpec[Any]], progress: Progress | None
    ) -> list[JobHandle[Any]]:
        check_bulk(specs, progress)
        handles = elsewhere([self._checked(*each) for each in enumerate(specs)])
        if progress is not None:
            progress(len(handles))
        return handles

    def _bulk(
        self, specs: Iterable[JobSpec[Any]], progress: Progress | None
    ) -> Stages[list[JobHandle[Any]]]:
        return Bulk(specs, self._entry, progress).run()

    def _entry(self, place: int, spec: JobSpec[Any]) -> Entry:
        if spec.__class__ is not JobSpec:
            self._checked(place, spec)
        entry = self._alone(spec)
        if not spec.children and not spec.calling.needs:
            return entry
        root = spec.branch()
        flow = Flow(entry.client.adder, root, spec.job.ticket)
        return replace(entry, flow=flow) if root.children else entry

    @staticmethod
    def _checked(place: int, spec: JobSpec[Any]) -> JobSpec[Any]:
        if not isinstance(spec, JobSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal(f"jobs[{place}]", "be made by task.job(…)", spec)
        return spec

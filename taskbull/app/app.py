"""The workers of an app: what surrounds their jobs, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from taskbull.app.batch import is_batch
from taskbull.app.discovery import find_attribute, import_modules, import_package
from taskbull.app.group import Registry, Resources, TaskGroup
from taskbull.app.pool.source import AppSource, check_not_importing, source_of
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.settings import QueueRules, Queues
from taskbull.core import events, payload
from taskbull.core.celery import WORKER
from taskbull.core.failure import Classifier
from taskbull.core.job import Job
from taskbull.core.keys import PREFIX
from taskbull.core.options import (
    AppKeywords,
    QueueKeywords,
    QueueOptions,
    WorkerKeywords,
    WorkerOptions,
)
from taskbull.core.retry import RetryPolicy, UnknownErrors, attempts_of
from taskbull.core.validation import (
    Duration,
    check_choice,
    check_keywords,
    check_text,
    limit_of,
    refusal,
)
from taskbull.errors import ConfigurationError
from taskbull.queue.add_bulk import Progress
from taskbull.queue.handle import CALL_TIMEOUT, ENQUEUE_TIMEOUT, BlockingCheck, JobHandle
from taskbull.scripts.read import names_waiting
from taskbull.store.address import Namespace, Where, address_of

if TYPE_CHECKING:
    from taskbull.app.dispatch import Dispatch
    from taskbull.core.declared_schedule import DeclaredSchedules
    from taskbull.monitor.server import Server, SyncServer
    from taskbull.queue.queue import Queue, SyncQueue
    from taskbull.worker.attempt import Route
    from taskbull.worker.worker import Worker


# The workers of an app: what surrounds their jobs, and how they are made.


E = TypeVar("E", bound=events.Event)


class WorkerFactory:
    """Makes workers, all of which serve the tasks of the app by the same rules.

    Whoever only adds jobs has the rules, but no worker: that, with anyio, is not imported before
    one is asked for.
    """

    def __init__(
        self,
        registry: Registry,
        policy: RetryPolicy,
        source: Callable[[Iterable[str]], AppSource],
    ) -> None:
        self._source = source
        self._registry = registry
        self._policy = policy
        self._dispatch: Dispatch | None = None
        self.rules = QueueRules()
        self._listeners: list[tuple[type[events.Event], events.Listener[Any]]] = []

    def tell(self, kind: type[E], listener: events.Listener[E]) -> None:
        """Call a function for each event of a kind."""
        events.check_listener(kind, listener)
        self._listeners.append((kind, listener))

    @property
    def dispatch(self) -> Dispatch:
        """From a job to the call of its task's function."""
        if self._dispatch is None:
            from taskbull.app.dispatch import Dispatch  # noqa: PLC0415 - see above

            self._dispatch = Dispatch(self._registry, self._policy)
        return self._dispatch

    def worker(
        self,
        namespace: Namespace,
        queues: Queues | None,
        options: WorkerKeywords,
        schedules: DeclaredSchedules,
    ) -> Worker:
        """Return a worker for some queues, or for those of all tasks, which are loaded by now."""
        from taskbull.app.pool.plan import plan_pool, with_pool  # noqa: PLC0415 - see above
        from taskbull.worker.worker import Worker  # noqa: PLC0415 - see above

        check_keywords("a worker", options, WorkerKeywords, WORKER)
        self.dispatch.prepare()
        resources = Resources(self._registry)
        names = self._registry.queues if queues is None else queues
        if not names:
            raise ConfigurationError(
                f"{self._registry.owner} has no tasks, so there is nothing to work on: name their "
                "modules by include=…, or the queues by queues=…"
            )
        rules = self.rules.for_worker(names)
        settings = WorkerOptions(**options)
        pool = plan_pool(self._registry.tasks.values(), list(rules), settings, self._source)
        if pool is not None:
            rules = with_pool(rules, settings, self._registry.tasks.values(), pool.size)
        worker = Worker(
            list(rules) if isinstance(names, Mapping) else names,
            redis=namespace.address,
            options=settings,
            queue_options=rules,
            prefix=namespace.prefix,
            hash_tag=namespace.hash_tag,
            resolve=self.dispatch.resolve,
            circuit_breaker=self._registry.circuit_breakers,
            lifespan=resources.open,
            share=resources.of,
            tasks=self._registry.tasks,
            schedules=schedules,
            pool=pool,
        )
        self._check_slots(worker.concurrency)
        for kind, listener in self._listeners:
            worker.on(kind, listener)
        return worker

    def _check_slots(self, concurrency: Mapping[str, int]) -> None:
        """Refuse a worker that could never fill a batch."""
        for task in self._registry.tasks.values():
            slots = concurrency.get(task.queue)
            if is_batch(task) and slots is not None and slots < task.batch.size:
                size, queue = task.batch.size, task.queue
                raise ConfigurationError(
                    f"Batch task {task.name} ({task.place}) takes {size} jobs at once, but this "
                    f"worker runs {slots} of queue {queue}: give the queue a concurrency of at "
                    f"least {size}, better {2 * size}, with app.queue_options({queue!r}, "
                    "concurrency=…) or taskbull worker -c …"
                )


# The app: what tasks belong to, and what users begin with.


R = TypeVar("R")

_LOOKED_AT = 100


class App(TaskGroup):
    """A set of tasks, and the Redis where their jobs are.

    The options of jobs that it is made with (`AppKeywords`) are the defaults of its tasks.
    `redis` is a URL, or a client of redis-py whose settings are read; without one, the environment
    (`TASKBULL_REDIS_URL`, `REDIS_URL`) or the server on this machine is used. Nothing is connected
    before it is needed. Adding jobs ends within `enqueue_timeout`, every other call of queues and
    handles within `call_timeout`, if Redis is away. `include` names modules with tasks, which
    workers import.
    `attempts` is 3 for the jobs that this app adds. Given here, it also counts for jobs of others
    that say nothing about attempts; those have one otherwise, as BullMQ means it.
    """

    word = "app"

    def __init__(  # noqa: PLR0913 - users write them by name
        self,
        name: str,
        *,
        redis: Where | None = None,
        prefix: str = PREFIX,
        queue: str = "default",
        attempts: int | None = None,
        classify: Classifier | None = None,
        unknown_errors: UnknownErrors = "retry",
        include: Sequence[str] = (),
        hash_tag: bool | None = None,
        enqueue_timeout: Duration | None = ENQUEUE_TIMEOUT,
        call_timeout: Duration | None = CALL_TIMEOUT,
        **options: Unpack[AppKeywords],
    ) -> None:
        super().__init__(
            name,
            queue=queue,
            attempts=attempts,
            classify=classify,
            unknown_errors=unknown_errors,
            **options,
        )
        self._modules = _module_names(include)
        self._is_placed = redis is not None or prefix != PREFIX or hash_tag is not None
        producer = Producer(
            Namespace(address_of(redis), prefix, hash_tag),
            limit_of("enqueue_timeout", enqueue_timeout),
            limit_of("call_timeout", call_timeout),
            self.check_data,
        )
        producer.client(queue)  # refuses a wrong name
        self.move(producer)
        self._factory = WorkerFactory(self.registry, self._defaults.policy, self._source)
        self.target: str | None = None
        """`module:attribute` by which it was loaded, if it was."""
        self._blocking = BlockingCheck("app.enqueue()", "await app.aenqueue()")

    @property
    def known_queues(self) -> list[str]:
        """The queues of all tasks, and those that have rules of their own."""
        return list(dict.fromkeys([*self.queues, *self._factory.rules.queues]))

    @property
    def declared_schedules(self) -> DeclaredSchedules:
        """The schedules that this app declares."""
        return self.timetable.declared()

    def enqueue(
        self, jobs: Iterable[JobSpec[R]], *, progress: Progress | None = None
    ) -> list[JobHandle[R]]:
        """Add the jobs that `task.job(…)` made, of any queues; handles in order.

        Of a list, nothing is written unless all jobs are valid. Any other iterable, a generator for
        one, is streamed: its jobs are checked and sent as they come, and few are in memory at once.
        `progress` is called, in this thread, with the number of jobs added so far: after every 250
        of a queue, and at the end. `enqueue_timeout` is how long it may take without getting on.

        `EnqueueError.spec` holds the jobs that were not added; enqueued again, none is added twice.
        So does one that a generator, or `progress`, broke off by raising; the rest is still in it.
        """
        self._blocking.check()
        return self.producer.enqueue(jobs, progress)

    async def aenqueue(
        self, jobs: Iterable[JobSpec[R]], *, progress: Progress | None = None
    ) -> list[JobHandle[R]]:
        """Add the jobs that `task.job(…)` made, of any queues; handles in order. See `enqueue`."""
        return await self.producer.aenqueue(jobs, progress)

    def job(self, queue: str, job_id: str) -> JobHandle[Any]:
        """Return the handle of an existing job, whoever added it, without asking Redis."""
        client = self.producer.client(queue)
        return JobHandle(queue, check_text("job_id", job_id), "", False, client, payload.decode)

    def queue(self, name: str) -> Queue:
        """Return a queue for async code."""
        return self.producer.queue(name)

    def sync_queue(self, name: str) -> SyncQueue:
        """Return a queue for code without an event loop."""
        return self.producer.sync_queue(name)

    def server(self) -> Server:
        """Return all queues of the app's server, for async code."""
        from taskbull.monitor.server import Server  # noqa: PLC0415 - see `Producer.queue`

        return self.producer.server(Server, self.queues, self.attempts_of)

    def sync_server(self) -> SyncServer:
        """Return all queues of the app's server, for code without an event loop."""
        from taskbull.monitor.server import SyncServer  # noqa: PLC0415 - as above

        return self.producer.server(SyncServer, self.queues, self.attempts_of)

    def close(self) -> None:
        """Close the connections of sync code that are not in use; more are made when needed."""
        self.producer.stores.close()

    def on(self, kind: type[E]) -> Callable[[Callable[[E], None]], Callable[[E], None]]:
        """Call a function for each event of a kind in this app's workers; `Event` means all."""

        def register(listener: Callable[[E], None]) -> Callable[[E], None]:
            self._factory.tell(kind, listener)
            return listener

        return register

    def load_tasks(self) -> None:
        """Import the modules named by `include=[…]`; workers do it when they are made."""
        import_modules(self._modules, f"App {self.name}: include")
        super().load_tasks()

    def autodiscover(self, package: str, name: str | None = "tasks") -> list[str]:
        """Import the modules of a package, at any depth, that are called `name` (None: all).

        It is done at once; the full names of the modules are given.
        """
        return import_package(check_text("package", package), name)

    def check_move(self, producer: Producer) -> None:
        """Refuse to move from one Redis to another: this app was told where its jobs are."""
        super().check_move(producer)
        mine, other = self.producer.namespace, producer.namespace
        if self._is_placed and mine != other:
            raise ConfigurationError(
                f"{self.title} has its jobs in {mine}, and cannot be included where they are in "
                f"{other}: make both with the same redis=… and prefix=…, or make a TaskGroup"
            )

    def attempts_of(self, job: Job) -> int:
        """Return how many attempts a worker of this app gives a job."""
        task = self.tasks.get(job.name)
        return attempts_of(job, self._defaults.policy if task is None else task.settings.policy)

    def check_data(self, name: str, data: bytes) -> None:
        """Refuse the data of a job, as JSON, that a worker of this app would: `InvalidArguments`.

        Jobs of tasks that it does not have pass: others may run them.
        """
        task = self.tasks.get(name)
        if task is not None:
            task.check_data(data)

    def unknown_names(self, queue: str, *, timeout: Duration | None = 2.0) -> list[str]:
        """Name the tasks of waiting jobs that this app does not have; from sync code.

        Only the jobs that come next are looked at, 100 in each state.
        """
        call = names_waiting(self.producer.client(queue).keys, _LOOKED_AT)
        limit = limit_of("timeout", timeout)
        names = self.producer.stores.sync_store().run(call, timeout=limit)
        return sorted(set(names) - self.tasks.keys())

    @property
    def dispatch(self) -> Dispatch:
        """From a job to the call of its task's function."""
        return self._factory.dispatch

    def _source(self, modules: Iterable[str]) -> AppSource:
        return source_of(self, self.name, self.target, modules)

    def resolve(self, job: Job) -> Route:
        """Return how a worker is to run a job."""
        return self._factory.dispatch.resolve(job)

    def queue_options(self, queue: str, **rules: Unpack[QueueKeywords]) -> None:
        """Declare the rules of a queue, for every worker of this app that serves it.

        They win over the worker's own `concurrency` and `limiter`, which are for all its queues.
        `global_concurrency` counts the jobs of all workers together; it is written to Redis when a
        worker starts. Several calls for one queue add up, unless they contradict each other.
        """
        self.producer.client(queue)  # refuses a wrong name
        check_keywords("app.queue_options", rules, QueueKeywords)
        self._factory.rules.declare(queue, QueueOptions(**rules))

    def worker(self, queues: Queues | None = None, **options: Unpack[WorkerKeywords]) -> Worker:
        """Return a worker for some queues, or for those of all tasks; options: `WorkerOptions`.

        A mapping such as `{"emails": 5, "reports": None}` gives queues a concurrency of their own.
        """
        return self._worker(queues, options)

    async def run_worker(
        self,
        queues: Queues | None = None,
        *,
        burst: bool = False,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Run a worker until cancelled, then stop it gracefully; `burst`: until all is done.

        A burst also waits for retries, and other delayed jobs, that are due within `burst_wait`.
        """
        await self._worker(queues, options).run(burst=burst)

    def run(
        self,
        queues: Queues | None = None,
        *,
        backend: str = "asyncio",
        uvloop: bool = False,
        burst: bool = False,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Run a worker in an event loop of its own, until SIGTERM or SIGINT stop it gracefully."""
        check_choice("backend", backend, ("asyncio", "trio"))
        from taskbull.app.run import run_as_program  # noqa: PLC0415 - see `WorkerFactory`

        worker = self._worker(queues, options)
        run_as_program(worker, backend=backend, uvloop=uvloop, burst=burst)

    def _worker(self, queues: Queues | None, options: WorkerKeywords) -> Worker:
        check_not_importing()
        self.load_tasks()
        return self._factory.worker(
            self.producer.namespace, queues, options, self.declared_schedules
        )


def load_app(target: str) -> App:
    """Return the app that `module:attribute` names; the working directory is importable."""
    found = find_attribute(target)
    if not isinstance(found, App):
        raise ConfigurationError(f"{target!r} is not an App but a {type(found).__qualname__}")
    found.target = target
    return found


def _module_names(include: object) -> tuple[str, ...]:
    if isinstance(include, str) or not isinstance(include, Sequence):
        raise refusal("include", "be a list of the names of modules", include)
    names = cast("Sequence[object]", include)
    return tuple(check_text("a module in include", name) for name in names)

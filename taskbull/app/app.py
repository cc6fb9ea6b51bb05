"""The app: its tasks, its Redis server and its workers.

`App` is the entry point for users. `WorkerFactory` builds the workers of an app.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from msgspec.structs import replace

from taskbull.app import discovery
from taskbull.app.batch import is_batch
from taskbull.app.group import Registry, Resources, TaskGroup
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.producer import inherit_headers as _inherit_headers
from taskbull.app.settings import GroupOptions, QueueRules, Queues
from taskbull.core import events, payload
from taskbull.core.celery import WORKER
from taskbull.core.job import Job
from taskbull.core.keys import PREFIX, read_ref
from taskbull.core.options import (
    QueueKeywords,
    QueueOptions,
    WorkerKeywords,
    WorkerOptions,
)
from taskbull.core.outcome import Classifier
from taskbull.core.retry import RetryPolicy, UnknownErrors, attempts_of
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_keywords,
    check_text,
    limit_of,
    refusal,
)
from taskbull.errors import ConfigurationError, JobFailed, NotRecorded
from taskbull.queue.add_bulk import Progress
from taskbull.queue.handle import (
    CALL_TIMEOUT,
    ENQUEUE_TIMEOUT,
    BlockingCheck,
    Gathering,
    JobHandle,
)
from taskbull.scripts.read import names_waiting
from taskbull.store.address import Namespace, Where, address_of
from taskbull.store.credentials import AskCredentials

if TYPE_CHECKING:
    from taskbull.app.dispatch import Dispatch
    from taskbull.core.declared_schedule import DeclaredSchedules
    from taskbull.monitor.server import Server, SyncServer
    from taskbull.queue.queue import Queue, SyncQueue
    from taskbull.worker.worker import Worker


# Workers


E = TypeVar("E", bound=events.Event)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[[Any], object])


class WorkerFactory:
    """Builds the workers of an app, all with the same queue rules and listeners.

    The worker code and anyio are imported only when a worker is built. A program that only adds
    jobs does not load them.
    """

    def __init__(
        self,
        registry: Registry,
        policy: RetryPolicy,
        source: Callable[[Iterable[str]], discovery.AppSource],
    ) -> None:
        self._source = source
        self._registry = registry
        self._policy = policy
        self._dispatch: Dispatch | None = None
        self.rules = QueueRules()
        self._listeners: list[tuple[type[events.Event], events.Listener[Any], bool]] = []

    def add_listener(self, kind: type[E], listener: events.Listener[E], *, thread: bool) -> None:
        """Register a listener for an event type on all workers built from now on."""
        events.check_listener(kind, listener, thread=thread)
        self._listeners.append((kind, listener, thread))

    def listeners_of(self, event: events.Event) -> list[events.Listener[Any]]:
        """Return the listeners for an event."""
        return [listener for kind, listener, _ in self._listeners if isinstance(event, kind)]

    @property
    def dispatch(self) -> Dispatch:
        """The dispatcher that maps jobs to task functions."""
        if self._dispatch is None:
            from taskbull.app.dispatch import Dispatch  # noqa: PLC0415 - see above

            self._dispatch = Dispatch(self._registry, self._policy)
        return self._dispatch

    def _own_queues(self) -> list[str]:
        """Return the queues of a worker that is given none."""
        local = self._registry.local_queues
        declared = [name for name in self.rules.queues if name not in self._registry.queues]
        return [*local, *declared] if local else []

    def worker(
        self,
        namespace: Namespace,
        queues: Queues | None,
        options: WorkerKeywords,
        schedules: DeclaredSchedules,
    ) -> Worker:
        """Return a worker for these queues, or for the queues of all tasks.

        All tasks must have been loaded before.

        Raises:
            ConfigurationError: If there are no queues, an option is invalid, or a batch does not
                fit the concurrency.
        """
        from taskbull.app.run import plan_pool, with_pool  # noqa: PLC0415 - see above
        from taskbull.worker.worker import Worker  # noqa: PLC0415 - see above

        check_keywords("a worker", options, WorkerKeywords, WORKER)
        self.dispatch.prepare()
        resources = Resources(self._registry)
        names = self._own_queues() if queues is None else queues
        if not names and self._registry.tasks:
            raise ConfigurationError(
                f"{self._registry.owner} has only remote tasks, which another program runs"
            )
        if not names:
            raise ConfigurationError(
                f"{self._registry.owner} has no tasks: pass their modules with include=…, or the "
                "queues with queues=…"
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
            tasks=self._registry.local,
            schedules=schedules,
            pool=pool,
        )
        self._check_slots(worker.concurrency)
        for kind, listener, thread in self._listeners:
            worker.on(kind, listener, thread=thread)
        if any(task.settings.has_hooks for task in self._registry.tasks.values()):
            worker.run_hooks_of(self._registry.tasks)
        return worker

    def _check_slots(self, concurrency: Mapping[str, int]) -> None:
        """Reject a worker whose concurrency is too low to fill a batch."""
        for task in self._registry.tasks.values():
            slots = concurrency.get(task.queue)
            if is_batch(task) and slots is not None and slots < task.batch.size:
                size, queue = task.batch.size, task.queue
                raise ConfigurationError(
                    f"Batch task '{task.name}' ({task.location}) has size {size}, but the "
                    f"concurrency of queue '{queue}' in this worker is {slots}. Set it to at least "
                    f"{size}, better {2 * size}, with app.queue_options({queue!r}, concurrency=…), "
                    "or with taskbull worker -c …"
                )


# The app


R = TypeVar("R")

_LOOKED_AT = 100

_apps: WeakSet[App] = WeakSet()
_integrations: list[Callable[[App], None]] = []


class App(TaskGroup):
    """A collection of tasks and the Redis server that stores their jobs.

    Creating an app does not connect to Redis. Connections are opened when needed. An app can be
    used from any thread or event loop, before and after a fork.

    Args:
        name: Name shown in logs and stored with declared schedules.
        redis: Redis URL, or a redis-py client whose settings are copied. Defaults to
            `TASKBULL_REDIS_URL`, then `REDIS_URL`, then the server on this machine.
        prefix: Prefix of all Redis keys. It must match the prefix that Node services use.
        queue: Default queue for tasks.
        attempts: Default number of attempts. Jobs added by this app get 3. If you set it, it also
            applies to jobs that other producers add without `attempts`. Those run once otherwise,
            as in BullMQ.
        classify: Function that returns the category of an error, or None for the default.
        unknown_errors: How to handle errors without a category: "retry" or "fail".
        include: Names of modules with tasks. Workers import them before they start.
        hash_tag: Whether queue keys get a Redis Cluster hash tag. None adds one in a Cluster only.
        credentials: Function that returns a password or (user, password), or a redis-py
            `CredentialProvider`. It is called for each new connection, so a token may expire. Async
            functions are supported, even in sync code.
        enqueue_timeout: Seconds without progress before adding jobs raises `EnqueueError`.
        call_timeout: Time limit in seconds for all other calls of queues and handles. None disables
            it.
        inherit_headers: Whether jobs that a job adds get its headers, unless they set their own.
        inline: Run jobs in the caller instead of adding them, without Redis. With "raise", a call
            raises the task's own exception. Defaults to `TASKBULL_INLINE`.
        **options: Defaults for all tasks, as in `@app.task`: `backoff`, `error_backoffs`,
            `retry_on`, `fail_on`, `throws`, `timeout`, `expires`, `process`, `grace`, `dedup`,
            `keep_completed` and `keep_failed`; `tz`, the time zone of `Cron` rules without one; and
            `names`: with "module", the default name of a task is `module.function`.

    Raises:
        ConfigurationError: If an option or the Redis address is invalid.

    Example:
        >>> app = App("shop", redis="redis://localhost:6379/0")
        >>> @app.task
        ... async def greet(name: str) -> str:
        ...     return f"Hello, {name}"
        >>> job = greet.delay("Ann")
    """

    _kind = "app"

    def __init__(  # noqa: PLR0913 - callers pass them by keyword
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
        credentials: AskCredentials | None = None,
        enqueue_timeout: Duration | None = ENQUEUE_TIMEOUT,
        call_timeout: Duration | None = CALL_TIMEOUT,
        inherit_headers: bool = False,
        inline: bool | Literal["raise"] | None = None,
        **options: Unpack[GroupOptions],
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
            Namespace(address_of(redis, credentials), prefix, hash_tag),
            limit_of("enqueue_timeout", enqueue_timeout),
            limit_of("call_timeout", call_timeout),
            self.check_data,
        )
        producer.client(queue)  # Rejects an invalid queue name.
        producer.known_queues = self._served_queues
        check_bool("inherit_headers", inherit_headers)
        self._move(producer)
        if inherit_headers:
            self.on_enqueue(_inherit_headers)
        self._factory = WorkerFactory(self.registry, self._defaults.policy, self._source)
        self.target: str | None = None
        """The argument of `load_app` that found this app, or None."""
        self._blocking = BlockingCheck("app.enqueue()", "await app.aenqueue()")
        self._gathering = BlockingCheck("app.gather()", "await app.agather()")
        mode = _inline_mode(inline)
        if mode:
            from taskbull.testing.recording import InlineJobs  # noqa: PLC0415 - few apps need it

            producer.divert(InlineJobs(self, raises=mode == "raise"))
        _apps.add(self)
        for install in _integrations:
            install(self)

    @property
    def known_queues(self) -> list[str]:
        """The queues of all tasks, and the queues declared with `queue_options`."""
        return list(dict.fromkeys([*self.queues, *self._factory.rules.queues]))

    def _served_queues(self) -> list[str]:
        """Return the queues that workers serve, or nothing while modules are not yet imported."""
        is_complete = all(module in sys.modules for module in self._modules)
        return self.known_queues if is_complete else []

    @property
    def declared_schedules(self) -> DeclaredSchedules:
        """The schedules that this app and its included groups declare."""
        return self.timetable.declared(self.producer.prepared_job)

    def enqueue(
        self, jobs: Iterable[JobSpec[R]], *, progress: Progress | None = None
    ) -> list[JobHandle[R]]:
        """Add jobs made with `task.job(…)` and return their handles in order. Blocks.

        The jobs may belong to different queues. A list is validated first, and nothing is written
        unless all its jobs are valid. Any other iterable, such as a generator, is streamed: jobs
        are validated and sent as they arrive, and only a few are in memory.

        Args:
            jobs: The jobs to add.
            progress: Function called in this thread with the number of jobs added so far. It is
                called after every 250 jobs of a queue, and at the end.

        Raises:
            EnqueueError: If there was no progress for `enqueue_timeout`, or if the generator or
                `progress` raised. Its `spec` holds the jobs that were not added. Enqueueing those
                again does not add duplicates. Jobs not yet taken from a generator are still in the
                generator.

        Example:
            >>> app.enqueue([resize.job(path) for path in paths])
        """
        self._blocking.check()
        return self.producer.enqueue(jobs, progress)

    async def aenqueue(
        self, jobs: Iterable[JobSpec[R]], *, progress: Progress | None = None
    ) -> list[JobHandle[R]]:
        """Add jobs made with `task.job(…)` and return their handles in order.

        This is `enqueue` for asyncio and trio.
        """
        return await self.producer.aenqueue(jobs, progress)

    @overload
    def gather(self, jobs: Iterable[JobHandle[R]], timeout: Duration | None = None) -> list[R]: ...
    @overload
    def gather(
        self,
        jobs: Iterable[JobHandle[R]],
        timeout: Duration | None = None,
        *,
        return_failures: Literal[True],
    ) -> list[R | JobFailed]: ...
    def gather(
        self,
        jobs: Iterable[JobHandle[Any]],
        timeout: Duration | None = None,
        *,
        return_failures: bool = False,
    ) -> list[Any]:
        """Wait until all jobs have finished and return their results in order. Blocks.

        Args:
            jobs: Handles of jobs, in any queues.
            timeout: Maximum seconds to wait for all of them. None waits indefinitely.
            return_failures: Put the `JobFailed` of a failed job in its place in the list. Otherwise
                the first failure in the order of the jobs is raised.

        Raises:
            JobFailed: If a job failed. `JobCancelled` and `JobExpired` are subclasses.
            JobNotFound: If a job does not exist.
            TimeoutError: If the jobs did not all finish in time.

        Example:
            >>> jobs = app.enqueue([resize.job(path) for path in paths])
            >>> sizes = app.gather(jobs, timeout=60)
        """
        self._gathering.check()
        return Gathering(jobs, timeout, return_failures=return_failures).wait()

    @overload
    async def agather(
        self, jobs: Iterable[JobHandle[R]], timeout: Duration | None = None
    ) -> list[R]: ...
    @overload
    async def agather(
        self,
        jobs: Iterable[JobHandle[R]],
        timeout: Duration | None = None,
        *,
        return_failures: Literal[True],
    ) -> list[R | JobFailed]: ...
    async def agather(
        self,
        jobs: Iterable[JobHandle[Any]],
        timeout: Duration | None = None,
        *,
        return_failures: bool = False,
    ) -> list[Any]:
        """Wait until all jobs have finished and return their results in order.

        This is `gather` for asyncio and trio.
        """
        return await Gathering(jobs, timeout, return_failures=return_failures).await_all()

    @overload
    def job(self, ref: str, /) -> JobHandle[Any]: ...
    @overload
    def job(self, queue: str, job_id: str) -> JobHandle[Any]: ...
    def job(self, queue: str, job_id: str | None = None) -> JobHandle[Any]:
        """Return a handle for an existing job, without a call to Redis.

        The job may have been added by another program. The handle does not check that the job
        exists.

        Args:
            queue: Name of the job's queue. If it is the only argument, the job's `ref`.
            job_id: The job's id.

        Raises:
            ConfigurationError: If the only argument is not a `ref`.

        Example:
            >>> ref = greet.delay("Ann").ref
            >>> app.job(ref).result(timeout=10)
        """
        if job_id is None:
            queue, job_id = read_ref(queue)
        if self.producer.detour is not None:
            found = self.producer.detour.find(queue, job_id)
            if found is not None:
                return found
        client = self.producer.client(queue)
        return JobHandle(queue, check_text("job_id", job_id), "", False, client, payload.decode)

    def queue(self, name: str) -> Queue:
        """Return a queue for async code.

        Raises:
            ConfigurationError: If the name is not valid.
        """
        return self.producer.queue(name)

    def sync_queue(self, name: str) -> SyncQueue:
        """Return a queue for code without an event loop.

        Raises:
            ConfigurationError: If the name is not valid.
        """
        return self.producer.sync_queue(name)

    def server(self) -> Server:
        """Return a view of all queues on the app's Redis server, for async code."""
        from taskbull.monitor.server import Server  # noqa: PLC0415 - see `Producer.queue`

        return self.producer.server(Server, self.queues, self.attempts_of)

    def sync_server(self) -> SyncServer:
        """Return a view of all queues on the app's Redis server, for sync code."""
        from taskbull.monitor.server import SyncServer  # noqa: PLC0415 - as above

        return self.producer.server(SyncServer, self.queues, self.attempts_of)

    def close(self) -> None:
        """Close idle connections of sync code. New ones are opened when needed."""
        self.producer.stores.close()

    def on(self, kind: type[E], *, thread: bool = False) -> Callable[[F], F]:
        """Register a function to call for each event of a type in this app's workers.

        A sync function is called in the event loop and must not block. An `async def` is awaited
        concurrently with the jobs. An exception is logged and changes nothing. A worker that stops
        waits `shutdown_timeout` for functions that have not finished. If it crashes, they are lost.

        Args:
            kind: A class of `taskbull.events`. `Event` selects all events.
            thread: Call a sync function in a thread, where it may block, for example to use a
                database.

        Example:
            >>> @app.on(events.Failed, thread=True)
            ... def report(event: events.Failed) -> None:
            ...     Failure.objects.create(job=event.job.id, reason=event.failure.reason)
        """

        def register(listener: F) -> F:
            self._factory.add_listener(kind, listener, thread=thread)
            return listener

        return register

    def register_type(
        self,
        cls: type[T],
        encode: Callable[[T], object],
        decode: Callable[[Any], T],
        *,
        schema: Any = None,
    ) -> None:
        """Allow values of a class in arguments and results of tasks.

        The class is registered for the whole process, and for its subclasses when they are stored.

        Args:
            cls: The class.
            encode: Function that returns the JSON form of a value, such as a string or a dict.
            decode: Function that returns the value for a JSON form. A `ValueError` means that the
                argument is invalid.
            schema: Type of the JSON form, such as `str`, or its JSON Schema as a dict. Only
                `taskbull contract` needs it.

        Raises:
            ConfigurationError: If the class already has a JSON form, or is registered differently.

        Example:
            >>> app.register_type(Money, str, Money.parse)
        """
        payload.register_type(cls, encode, decode, schema)

    def load_tasks(self) -> None:
        """Import the modules named by `include`. Workers do this when they are created."""
        discovery.import_modules(self._modules, f"App {self.name}: include")
        super().load_tasks()

    def autodiscover(self, package: str, name: str | None = "tasks") -> list[str]:
        """Import the modules called `name` in a package and in all its subpackages.

        Args:
            package: Full name of the package.
            name: Last part of the module names. None imports all modules.

        Returns:
            The full names of the imported modules.

        Raises:
            ConfigurationError: If a module cannot be imported.
        """
        return discovery.import_package(check_text("package", package), name)

    def _check_move(self, producer: Producer) -> None:
        """Reject a move to another Redis if this app was created with an explicit one."""
        super()._check_move(producer)
        mine, other = self.producer.namespace, producer.namespace
        if self._is_placed and mine != other:
            raise ConfigurationError(
                f"Cannot include {self}: it uses {mine}, not {other}. Use the same redis=… "
                "and prefix=… for both, or use a TaskGroup"
            )

    def attempts_of(self, job: Job) -> int:
        """Return the number of attempts that a worker of this app gives a job."""
        task = self.tasks.get(job.name)
        return attempts_of(job, self._defaults.policy if task is None else task.settings.policy)

    def check_data(self, name: str, data: bytes) -> None:
        """Check a job's JSON data against the parameters of its task.

        Jobs of unregistered tasks pass, because workers of other apps may run them.

        Raises:
            InvalidArguments: If a worker of this app would reject the data.
        """
        task = self.tasks.get(name)
        if task is not None:
            task.check_data(data)

    def unknown_names(self, queue: str, *, timeout: Duration | None = 2.0) -> list[str]:
        """Return the unregistered task names of waiting jobs in a queue. Blocks.

        Only the next 100 jobs in each state are read.

        Args:
            queue: Name of the queue.
            timeout: Time limit in seconds. None disables it.
        """
        call = names_waiting(self.producer.client(queue).keys, _LOOKED_AT)
        limit = limit_of("timeout", timeout)
        names = self.producer.stores.sync_store().run(call, timeout=limit)
        return sorted(set(names) - self.registry.local.keys())

    def _source(self, modules: Iterable[str]) -> discovery.AppSource:
        found = discovery.source_of(self, self.name, self.target, modules)
        return replace(found, redis=self.producer.moved_to)

    def queue_options(self, queue: str, **rules: Unpack[QueueKeywords]) -> None:
        """Declare rules for a queue, for every worker of this app that serves it.

        They take precedence over the worker's own `concurrency` and `limiter`, which apply to all
        its queues. Several calls for one queue are merged. Workers also serve a declared queue that
        only calls name.

        Args:
            queue: Name of the queue.
            **rules: `concurrency` and `limiter` per worker, and `global_concurrency` and `groups`
                for all workers together. These two are written to Redis when a worker starts.

        Raises:
            ConfigurationError: If a rule is invalid or contradicts an earlier call.

        Example:
            >>> app.queue_options("emails", concurrency=5, limiter=Limiter(max=10, duration=1))
        """
        self.producer.client(queue)  # Rejects an invalid queue name.
        check_keywords("app.queue_options", rules, QueueKeywords)
        self._factory.rules.declare(queue, QueueOptions(**rules))

    def worker(self, queues: Queues | None = None, **options: Unpack[WorkerKeywords]) -> Worker:
        """Return a worker for these queues, or for the queues of all tasks.

        Args:
            queues: One queue, several, or a mapping such as `{"emails": 5, "reports": None}` that
                sets the concurrency per queue. None means the queues of all tasks, and those
                declared with `queue_options`.
            **options: Fields of `WorkerOptions`.

        Raises:
            ConfigurationError: If an option is invalid, a module cannot be imported, or there are
                no tasks.
        """
        return self._worker(queues, options)

    @asynccontextmanager
    async def lifespan_worker(
        self, queues: Queues | None = None, **options: Unpack[WorkerKeywords]
    ) -> AsyncGenerator[Worker | None]:
        """Run a worker during an `async with` block, for the lifespan of a web application.

        While the app's jobs are recorded or run inline, there is nothing to consume, so no worker
        runs and the block gets None.

        Args:
            queues: See `worker`.
            **options: Fields of `WorkerOptions`.

        Example:
            >>> @asynccontextmanager
            ... async def lifespan(api: FastAPI):
            ...     async with app.lifespan_worker(concurrency=20):
            ...         yield
            >>> api = FastAPI(lifespan=lifespan)
        """
        if self.producer.detour is not None:
            yield None
            return
        worker = self._worker(queues, options)
        async with worker.running():
            yield worker

    async def run_worker(
        self,
        queues: Queues | None = None,
        *,
        burst: bool = False,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Run a worker until it is cancelled, then stop it gracefully.

        Args:
            queues: See `worker`.
            burst: Return when all jobs are done. This includes retries and other delayed jobs that
                are due within `burst_wait`.
            **options: Fields of `WorkerOptions`.
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
        """Run a worker in a new event loop until SIGTERM or SIGINT stops it gracefully.

        Args:
            queues: See `worker`.
            backend: Event loop library: "asyncio" or "trio".
            uvloop: Use uvloop with asyncio.
            burst: Return when all jobs are done. See `run_worker`.
            **options: Fields of `WorkerOptions`.
        """
        check_choice("backend", backend, ("asyncio", "trio"))
        from taskbull.app.run import run_as_program  # noqa: PLC0415 - see `WorkerFactory`

        worker = self._worker(queues, options)
        run_as_program(worker, backend=backend, uvloop=uvloop, burst=burst)

    def _worker(self, queues: Queues | None, options: WorkerKeywords) -> Worker:
        if self.producer.detour is not None:
            raise NotRecorded(self.producer.detour.refusal)
        discovery.check_not_importing()
        self.load_tasks()
        return self._factory.worker(
            self.producer.namespace, queues, options, self.declared_schedules
        )


def apps_of_this_process() -> list[App]:
    """Return all apps that exist, in no particular order."""
    return list(_apps)


def for_every_app(install: Callable[[App], None]) -> None:
    """Call a function with every app of this process, and with each one that is created later."""
    _integrations.append(install)
    for app in list(_apps):
        install(app)


def listeners_of(app: App, event: events.Event) -> list[events.Listener[Any]]:
    """Return an app's listeners for an event."""
    return app._factory.listeners_of(event)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def dispatch_of(app: App) -> Dispatch:
    """Return the dispatcher that maps jobs to an app's task functions."""
    return app._factory.dispatch  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def load_app(target: str) -> App:
    """Import and return the app at `module:attribute`.

    Modules in the working directory can be imported.

    Raises:
        ConfigurationError: If the module or attribute cannot be found, or is not an `App`.
    """
    found = discovery.find_attribute(target)
    if not isinstance(found, App):
        raise ConfigurationError(f"{target!r} must be an App, got {type(found).__qualname__}")
    found.target = target
    return found


def _module_names(include: object) -> tuple[str, ...]:
    if isinstance(include, str) or not isinstance(include, Sequence):
        raise refusal("include", "be a list of module names", include)
    names = cast("Sequence[object]", include)
    return tuple(check_text("a module in include", name) for name in names)


def _inline_mode(inline: object) -> object:
    if inline is None:
        text = os.environ.get("TASKBULL_INLINE", "").lower()
        inline = {"": False, "0": False, "false": False, "1": True, "true": True}.get(text, text)
    if not isinstance(inline, bool) and inline != "raise":
        raise refusal("inline", 'be True, False or "raise"', inline)
    return inline


def group_weight(app: App, queue: str, group: str | None) -> int:
    """Return how many jobs a group may start per turn, as the app declares it."""
    rules = app._factory.rules.for_worker(queue)[queue]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return 1 if rules.groups is None or group is None else rules.groups.weights.get(group, 1)

"""The app: what tasks belong to, and what users begin with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from taskbull.app.discovery import find_attribute, import_modules, import_package
from taskbull.app.function import check_function
from taskbull.app.layers import JobMiddleware, PlainJobMiddleware
from taskbull.app.lifespan import LifespanFunction, lifespan
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.queue_rules import Queues
from taskbull.app.registry import Registry
from taskbull.app.schedules import Schedules
from taskbull.app.settings import Defaults, TaskOptions
from taskbull.app.task import AsyncTask, Decorator, SyncTask, Task, make_task
from taskbull.app.worker_factory import WorkerFactory
from taskbull.core import events, payload
from taskbull.core.celery import APP, no_attribute
from taskbull.core.checks import check_choice, check_text, refusal
from taskbull.core.classification import Classifier
from taskbull.core.durations import Duration, limit_of
from taskbull.core.job import Job
from taskbull.core.keys import NAME_LIMIT, PREFIX
from taskbull.core.keywords import check_keywords, unknown_setting
from taskbull.core.options import ATTEMPTS, AppKeywords, JobOptions
from taskbull.core.retry import RetryPolicy, UnknownErrors, attempts_of
from taskbull.core.worker_options import QueueKeywords, QueueOptions, WorkerKeywords
from taskbull.errors import ConfigurationError
from taskbull.queue.add_bulk import Progress
from taskbull.queue.call_checks import BlockingCheck
from taskbull.queue.handle import CALL_TIMEOUT, ENQUEUE_TIMEOUT, JobHandle
from taskbull.scripts.inspection import names_waiting
from taskbull.store.clients import Where, address_of
from taskbull.store.namespace import Namespace

if TYPE_CHECKING:
    from taskbull.core.declared_schedule import DeclaredSchedules
    from taskbull.core.rules import Rule
    from taskbull.queue.queue import Queue
    from taskbull.queue.server import Server
    from taskbull.queue.sync_queue import SyncQueue
    from taskbull.queue.sync_server import SyncServer
    from taskbull.worker.route import Route
    from taskbull.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=events.Event)
M = TypeVar("M", bound="JobMiddleware | PlainJobMiddleware")
L = TypeVar("L", bound=LifespanFunction)

_LOOKED_AT = 100


class App:
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
        _check_settings(options)
        self.name = check_text("app name", name, most=NAME_LIMIT)
        jobs = JobOptions(attempts=ATTEMPTS if attempts is None else attempts, **options)
        policy = RetryPolicy(
            attempts=attempts,
            backoff=jobs.backoff,
            error_backoffs=jobs.error_backoffs,
            classify=classify,
            unknown_errors=unknown_errors,
        )
        self._include = _module_names(include)
        self.producer = Producer(
            Namespace(address_of(redis), prefix, hash_tag),
            limit_of("enqueue_timeout", enqueue_timeout),
            limit_of("call_timeout", call_timeout),
        )
        self.producer.client(queue)  # refuses a wrong name
        self._defaults = Defaults(queue, jobs, policy)
        self._registry = Registry(name)
        self._schedules = Schedules(name)
        self._factory = WorkerFactory(name, self._registry, policy)
        self._blocking = BlockingCheck("app.enqueue()", "await app.aenqueue()")

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, APP, name)

    def __repr__(self) -> str:
        return f"<App {self.name}, {len(self.tasks)} tasks>"

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name."""
        return self._registry.tasks

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""
        return self._registry.queues

    @property
    def known_queues(self) -> list[str]:
        """The queues of all tasks, and those that have rules of their own."""
        return list(dict.fromkeys([*self.queues, *self._factory.rules.queues]))

    @overload
    def task(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Turn a function into a task: `@app.task`, or `@app.task(queue="emails", attempts=5)`.

        Its name is the function's, unless given. `extra` says what becomes of fields in a job's
        data that no parameter takes: "error" or "ignore". With a `schedule`, a `Cron` or an
        `Every`, the task is called again and again, with the defaults of its parameters.
        """
        check_keywords("@app.task", options, TaskOptions)
        if function is None:
            return cast("Decorator", partial(self._add, options))
        return self._add(options, function)

    def _add(self, given: TaskOptions, function: Callable[..., Any]) -> Task[..., Any]:
        name = given.get("name")
        check_function(function, name)
        settings = self._defaults.with_task(function.__name__ if name is None else name, given)
        self.producer.client(settings.queue)  # refuses a wrong name
        task = make_task(function, settings, self.producer)
        rule = given.get("schedule")
        schedule = None if rule is None else self._schedules.of_task(task, rule)
        self._registry.add(task)
        if schedule is not None:
            self._schedules.add(schedule)
        return task

    def schedule(self, id: str, rule: Rule, job: JobSpec[Any]) -> None:  # noqa: A002
        """Declare that a job is added again and again: what `task.job(…)` made, by a rule.

        Schedules that are new or have changed are written when a worker of the queue starts. One
        that is no longer declared stays until `taskbull schedules sync --prune`.
        """
        self._schedules.add(self._schedules.of_job(id, rule, job))

    @property
    def declared_schedules(self) -> DeclaredSchedules:
        """The schedules that this app declares."""
        return self._schedules.declared()

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
        from taskbull.queue.server import Server  # noqa: PLC0415 - see `Producer.queue`

        return self.producer.server(Server, self.queues, self.attempts_of)

    def sync_server(self) -> SyncServer:
        """Return all queues of the app's server, for code without an event loop."""
        from taskbull.queue.sync_server import SyncServer  # noqa: PLC0415 - as above

        return self.producer.server(SyncServer, self.queues, self.attempts_of)

    def close(self) -> None:
        """Close the connections of sync code that are not in use; more are made when needed."""
        self.producer.stores.close()

    def lifespan(self, function: L) -> L:
        """Run an async generator, or async context manager function, around each worker.

        It takes the app, or nothing. There is one for an app.
        """
        self._factory.surround(lifespan(function, self))
        return function

    def middleware(self, function: M) -> M:
        """Put a layer around jobs; of each kind the first one is outermost.

        `async def layer(job, call_next)` surrounds each job, in the event loop. A plain `def` of
        the same form surrounds plain functions only, in their own thread, inside of all of the
        others; there `call_next(job)` returns the result.
        """
        self._factory.surround_jobs(function)
        return function

    def on(self, kind: type[E]) -> Callable[[Callable[[E], None]], Callable[[E], None]]:
        """Call a function for each event of a kind in this app's workers; `Event` means all."""

        def register(listener: Callable[[E], None]) -> Callable[[E], None]:
            self._factory.tell(kind, listener)
            return listener

        return register

    def load_tasks(self) -> None:
        """Import the modules named by `include`; workers do it when they are made."""
        import_modules(self._include, f"App {self.name}: include")

    def autodiscover(self, package: str, name: str | None = "tasks") -> list[str]:
        """Import the modules of a package, at any depth, that are called `name` (None: all).

        It is done at once; the full names of the modules are given.
        """
        return import_package(check_text("package", package), name)

    def attempts_of(self, job: Job) -> int:
        """Return how many attempts a worker of this app gives a job."""
        task = self.tasks.get(job.name)
        return attempts_of(job, self._defaults.policy if task is None else task.settings.policy)

    def unknown_names(self, queue: str, *, timeout: Duration | None = 2.0) -> list[str]:
        """Name the tasks of waiting jobs that this app does not have; from sync code.

        Only the jobs that come next are looked at, 100 in each state.
        """
        call = names_waiting(self.producer.client(queue).keys, _LOOKED_AT)
        limit = limit_of("timeout", timeout)
        names = self.producer.stores.sync_store().run(call, timeout=limit)
        return sorted(set(names) - self.tasks.keys())

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
        from taskbull.app.running import run_as_program  # noqa: PLC0415 - see `WorkerFactory`

        worker = self._worker(queues, options)
        run_as_program(worker, backend=backend, uvloop=uvloop, burst=burst)

    def _worker(self, queues: Queues | None, options: WorkerKeywords) -> Worker:
        self.load_tasks()
        return self._factory.worker(
            self.producer.namespace, queues, options, self.declared_schedules
        )


def _check_settings(options: AppKeywords) -> None:
    for name in options:
        if name not in AppKeywords.__annotations__:
            own = App.__init__.__kwdefaults__ or {}
            raise unknown_setting(name, [*own, *AppKeywords.__annotations__])


def load_app(target: str) -> App:
    """Return the app that `module:attribute` names; the working directory is importable."""
    found = find_attribute(target)
    if not isinstance(found, App):
        raise ConfigurationError(f"{target!r} is not an App but a {type(found).__qualname__}")
    return found


def _module_names(include: object) -> tuple[str, ...]:
    if isinstance(include, str) or not isinstance(include, Sequence):
        raise refusal("include", "be a list of the names of modules", include)
    names = cast("Sequence[object]", include)
    return tuple(check_text("a module in include", name) for name in names)

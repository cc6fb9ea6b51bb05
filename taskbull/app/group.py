"""Task groups, their registry of tasks, and the lifespans around their workers.

`TaskGroup` holds what an app and a group of tasks have in common.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

from taskbull.app.batch import BatchDecorator, BatchSettings, batch_settings, make_batch_task
from taskbull.app.middleware import JobMiddleware, Layers, PlainJobMiddleware
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.schedules import Schedules
from taskbull.app.settings import GroupOptions, TaskOptions, defaults_of
from taskbull.app.signature import check_function
from taskbull.app.task import AsyncTask, Decorator, SyncTask, Task, check_dedup, make_task
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.celery import APP, no_attribute
from taskbull.core.failure import Classifier
from taskbull.core.job import ExecutionMode
from taskbull.core.keys import NAME_LIMIT, check_queue_name
from taskbull.core.retry import UnknownErrors
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_keywords,
    check_text,
    did_you_mean,
    refusal,
    unknown_setting,
)
from taskbull.errors import ConfigurationError, TaskNotRegistered
from taskbull.observability.logs import cut

if TYPE_CHECKING:
    from taskbull.core.schedule import Rule


# Lifespans


LifespanFunction: TypeAlias = Callable[..., AbstractAsyncContextManager[Any] | AsyncIterator[Any]]
"""Async generator function that yields once, or function that returns a context manager."""

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Normalized lifespan. Tasks receive the value that it yields."""


def lifespan(function: LifespanFunction, app: object) -> Lifespan:
    """Return the normalized form of a lifespan function.

    The function takes the app or no argument.

    Raises:
        ConfigurationError: If the function has another form.
    """
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise refusal(
            "app.lifespan", "be an async generator or an async context manager function", function
        )
    enter: Callable[..., Any] = function
    if inspect.isasyncgenfunction(function):
        enter = asynccontextmanager(function)
    parameters = inspect.signature(function).parameters
    match len(parameters):
        case 0:
            return enter
        case 1:
            return lambda: enter(app)
        case _:
            raise refusal("app.lifespan", "take the app or nothing", function)


# Registry


_SHOWN = 20


class Registry:
    """Holds the tasks of an app or group and of everything that it includes.

    It also holds their middleware and lifespans.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        self.layers = Layers()
        self.lifespan: Lifespan | None = None
        self.process_lifespan: Lifespan | None = None
        """Lifespan that runs around pool processes only."""
        self._included: list[Registry] = []
        self._sources: dict[str, Registry] = {}  # For the tasks of included registries.
        self.part_of: Registry | None = None
        """Registry that includes this one."""
        self.watchers: list[Callable[[], None]] = []
        """Callbacks for changes of the middleware."""

    def add(self, task: Task[..., Any], source: Registry | None = None) -> None:
        """Add a task.

        Raises:
            ConfigurationError: If the name is taken, or the queue has a different circuit breaker.
        """
        self.check([task])
        if self.part_of is not None:
            self.part_of.add(task, self)
        self._tasks[task.name] = task
        if source is not None:
            self._sources[task.name] = source

    def check(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Check that tasks can be added here and to all registries that include this one.

        Raises:
            ConfigurationError: If one of them cannot be added.
        """
        for task in tasks:
            if (other := self._tasks.get(task.name)) is not None:
                raise ConfigurationError(
                    f"{self.owner} has two tasks named {task.name!r}: at {other.location} and at "
                    f"{task.location}. Rename one of them with name=…"
                )
            breaker = task.settings.circuit_breaker
            if breaker is not None:
                self._check_breaker(task, breaker)
            if self.part_of is not None:
                self.part_of.check([task])

    def include(self, other: Registry) -> None:
        """Include the tasks of another registry, and those added to it later."""
        other.part_of = self
        self._included.append(other)
        for task in other.tasks.values():
            self.add(task, other)

    def set_lifespan(self, lifespan: Lifespan, *, process: bool = False) -> None:
        """Set the lifespan that runs around each worker, or around its pool processes only."""
        if (self.process_lifespan if process else self.lifespan) is not None:
            kind = " for processes" if process else ""
            raise ConfigurationError(
                f"{self.owner} already has a lifespan{kind}; only one is allowed"
            )
        if process:
            self.process_lifespan = lifespan
        else:
            self.lifespan = lifespan

    def surround_jobs(self, layer: JobMiddleware | PlainJobMiddleware) -> None:
        """Add middleware inside the existing middleware."""
        self.layers.add(layer)
        self.changed()

    def changed(self) -> None:
        """Notify the watchers here and in all including registries of a middleware change."""
        for watcher in self.watchers:
            watcher()
        if self.part_of is not None:
            self.part_of.changed()

    def around(self, name: str) -> list[Registry]:
        """Return the registries whose middleware surrounds a task, outermost first."""
        source = self._sources.get(name)
        return [self] if source is None else [self, *source.around(name)]

    def all(self) -> list[Registry]:
        """Return this registry and everything that it includes."""
        return [self, *(one for each in self._included for one in each.all())]

    def lifespans(self, execution_mode: ExecutionMode) -> list[Lifespan]:
        """Return the lifespans that surround a task's site, outermost first."""
        inner = self.process_lifespan if execution_mode is ExecutionMode.PROCESS else None
        return [one for one in (self.lifespan, inner) if one is not None]

    def provider(self, task: Task[..., Any]) -> Registry | None:
        """Return the nearest registry whose lifespan provides a task's resources, or None."""
        around = reversed(self.around(task.name))
        return next((one for one in around if one.lifespans(task.execution_mode)), None)

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks, in order of registration."""
        return list(dict.fromkeys(task.queue for task in self._tasks.values()))

    @property
    def circuit_breakers(self) -> dict[str, CircuitBreaker]:
        """The circuit breakers by queue."""
        return {
            task.queue: task.settings.circuit_breaker
            for task in self._tasks.values()
            if task.settings.circuit_breaker is not None
        }

    def missing(self, name: str, queue: str) -> TaskNotRegistered:
        """Return the error for a job whose task is not registered."""
        names = sorted(self._tasks)
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        hint = did_you_mean(cut(name), names)  # Suggestions for a name of 10 MB would take seconds.
        return TaskNotRegistered(
            name,
            f"Task {cut(name)!r} of a job in queue {queue} is not registered in "
            f"{self.owner}{hint}. It has {shown or 'no tasks'}; if its module is not imported, "
            "name it with include=…, or find it with app.autodiscover(…); a task that is declared "
            "inside a function exists only where that function was called",
        )

    def _check_breaker(self, task: Task[..., Any], breaker: CircuitBreaker) -> None:
        for other in self._tasks.values():
            theirs = other.settings.circuit_breaker
            if other.queue == task.queue and theirs is not None and theirs != breaker:
                raise ConfigurationError(
                    f"Queue '{task.queue}' has two different circuit breakers: of task "
                    f"'{other.name}' ({other.location}) and of task '{task.name}' "
                    f"({task.location}). A breaker applies to a whole queue: use the same one, or "
                    "another queue"
                )


# Task groups


P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="JobMiddleware | PlainJobMiddleware")
L = TypeVar("L", bound=LifespanFunction)


class TaskGroup:
    """Tasks with their schedules, middleware and lifespan, to include in an app.

    A group has no Redis settings. `app.include(group)` connects it to the app's Redis.

    Args:
        name: Name shown in messages.
        queue: Default queue for the group's tasks.
        attempts: Default number of attempts. See `App`.
        classify: Function that returns the category of an error, or None for the default.
        unknown_errors: How to handle errors without a category: "retry" or "fail".
        **options: Defaults for the group's tasks. See `App`.

    Raises:
        ConfigurationError: If an option is invalid.

    Example:
        >>> emails = TaskGroup("emails", queue="emails")
        >>> @emails.task
        ... async def send(to: str) -> str: ...
        >>> app.include(emails)
    """

    _kind = "group"
    """Noun for this object in error messages."""

    def __init__(
        self,
        name: str,
        *,
        queue: str = "default",
        attempts: int | None = None,
        classify: Classifier | None = None,
        unknown_errors: UnknownErrors = "retry",
        **options: Unpack[GroupOptions],
    ) -> None:
        kind = type(self)
        for option in options:
            if option not in GroupOptions.__annotations__:
                known = [*(kind.__init__.__kwdefaults__ or {}), *GroupOptions.__annotations__]
                raise unknown_setting(kind.__name__, option, known)
        self.name = check_text(f"{self._kind} name", name, most=NAME_LIMIT)
        check_queue_name(queue)
        self._defaults = defaults_of(queue, attempts, classify, unknown_errors, options)
        self.registry = Registry(str(self))
        self.timetable = Schedules(name)
        self.included: list[TaskGroup] = []
        """Groups and apps that this one includes."""
        self.part_of: TaskGroup | None = None
        """Group or app that includes this one."""
        self._producer: Producer | None = None

    if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, APP, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.tasks)} tasks>"

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}"  # in messages, such as `App shop`

    @property
    def producer(self) -> Producer:
        """The producer that adds the jobs of the group's tasks.

        Raises `ConfigurationError` if the group is not part of an app yet.
        """
        if self._producer is None:
            raise ConfigurationError(
                f"TaskGroup '{self.name}' is not included in an app, so its jobs have no Redis: "
                "call app.include(group) first"
            )
        return self._producer

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """All tasks by name, including those of included groups."""
        return self.registry.tasks

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""
        return self.registry.queues

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
        """Register a function as a task: `@app.task` or `@app.task(queue="emails")`.

        An `async def` runs in the worker's event loop. A plain `def` runs in a thread, or in a pool
        process with `process=True`. Calling the task directly runs the function as usual.

        Args:
            function: The function, if the decorator is used without arguments.
            **options: Options of the task, all optional.

        Options:

        - `name`: task name. Defaults to the function's name.
        - `queue`: queue for the task's jobs. Defaults to the app's.
        - `attempts`: maximum number of attempts, including the first.
        - `backoff`, `error_backoffs`: delay between attempts, for all errors or by error class.
        - `timeout`: time limit per attempt, in seconds.
        - `expires`: time limit for the start of a job, as seconds or a datetime. Later, the job
          fails.
        - `priority`, `lifo`: position of new jobs in the queue.
        - `keep_completed`, `keep_failed`: how many finished jobs to keep, and for how long.
        - `schedule`: a `Cron` or an `Every` to run the task periodically. All parameters need
          defaults.
        - `process`: whether a plain function runs in the worker's process pool. It can then use
          another core, and it is stopped on timeout or cancellation.
        - `grace`: seconds that a stopped process has to clean up before it is killed.
        - `extra`: how to handle fields that match no parameter: "error" (default) or "ignore".
        - `retry_on`, `fail_on`: the only errors to retry, and errors that are never retried.
        - `throws`: expected errors, which are logged at INFO without a stack trace.
        - `classify`: function that returns the category of an error.
        - `on_success`, `on_failure`: function called with the `Job` and its result or `Failure`
          after the job has ended. A plain function runs in a thread and may block.
        - `dedup`: key that makes jobs unique: a format string over the arguments, such as
          `"report-{user_id}"`, a `Dedup` with such a key, or a function of the arguments.
        - `circuit_breaker`: `CircuitBreaker` for the task's queue.

        Raises:
            ConfigurationError: If an option is invalid, or the name is already registered.

        Example:
            >>> @app.task(queue="emails", attempts=5, timeout=30)
            ... async def send(to: str, subject: str) -> str: ...
        """
        check_keywords("@app.task", options, TaskOptions)
        if function is None:
            return cast("Decorator", partial(self._add, options))
        return self._add(options, function)

    def batch_task(
        self,
        *,
        size: int,
        wait: Duration = 0.02,
        parallel: int = 1,
        **options: Unpack[TaskOptions],
    ) -> BatchDecorator:
        """Register a function that takes a list of items as a task with one job per item.

        One call of the function handles up to `size` jobs. The function returns one result per
        item, in order. An exception among the results fails or retries only the job of that item.

        Args:
            size: Maximum number of items per call. A worker needs at least this concurrency.
            wait: Seconds that the first item waits for more. A call starts earlier if `size` items
                are ready, or if no more can arrive.
            parallel: Maximum number of concurrent calls in a worker.
            **options: Options of `task`, except `schedule`. With `process=True`, each call runs in
                a pool process.

        Raises:
            ConfigurationError: If an option is invalid, or the name is already registered.

        Example:
            >>> @app.batch_task(size=32)
            ... def embed(texts: list[str]) -> list[list[float]]:
            ...     return model.encode(texts)
            >>> embed.delay("one text")
        """
        check_keywords("@app.batch_task", options, TaskOptions)
        if options.get("schedule") is not None:
            raise ConfigurationError(
                "A batch task cannot have schedule=…, because each job needs an item: use "
                "app.schedule(id, rule, task.job(item))"
            )
        batch = batch_settings(size, wait, parallel)
        return cast("BatchDecorator", partial(self._add, options, batch=batch))

    def _add(
        self,
        given: TaskOptions,
        function: Callable[..., Any],
        batch: BatchSettings | None = None,
    ) -> Task[..., Any]:
        name = given.get("name")
        check_function(function, name, process=given.get("process", False))
        settings = self._defaults.with_task(
            function.__name__ if name is None else name,
            given,
            is_async=inspect.iscoroutinefunction(function),
        )
        self._check_queue(settings.queue)
        task: Task[..., Any] = (
            make_task(function, settings, self)
            if batch is None
            else make_batch_task(function, settings, self, batch)
        )
        check_dedup(settings, task.calling.binder)
        rule = given.get("schedule")
        schedule = None if rule is None else self.timetable.of_task(task, self._in_zone(rule))
        self.registry.add(task)
        if schedule is not None:
            self.timetable.add(schedule)
        return task

    def _in_zone(self, rule: Rule) -> Rule:
        if self._defaults.tz is None:
            return rule
        from taskbull.core.schedule import in_zone  # noqa: PLC0415 - only apps with schedules

        return in_zone(rule, self._defaults.tz)

    def _check_queue(self, queue: str) -> None:
        check_queue_name(queue)
        if self._producer is not None:  # Checks the rules for a Cluster as well.
            self._producer.client(queue)

    def schedule(self, id: str, rule: Rule, job: JobSpec[Any]) -> None:  # noqa: A002
        """Declare a schedule that adds a job periodically.

        New and changed schedules are written when a worker of the queue starts. A schedule that is
        no longer declared stays in Redis until `taskbull schedules sync --prune`.

        Args:
            id: Id of the schedule, unique in its queue.
            rule: A `Cron` or an `Every`.
            job: The job to add, made with `task.job(…)`.

        Raises:
            ConfigurationError: If the id is already declared, or the rule or the job is invalid.

        Example:
            >>> app.schedule("nightly", Cron("0 3 * * *"), report.job("sales"))
        """
        self.timetable.add(self.timetable.of_job(id, self._in_zone(rule), job))

    @overload
    def lifespan(self, function: L, /) -> L: ...
    @overload
    def lifespan(self, /, *, process: bool) -> Callable[[L], L]: ...
    def lifespan(
        self, function: LifespanFunction | None = None, /, *, process: bool = False
    ) -> Any:
        """Run an async generator or async context manager around each worker.

        The function takes the app or no argument. An app has at most one lifespan. Tasks receive
        the value that it yields through `from_lifespan`. Each pool process runs its own copy.

        Args:
            function: The function, if the decorator is used without arguments.
            process: Run it in pool processes only, inside the other lifespan. Tasks in those
                processes then receive its value.

        Raises:
            ConfigurationError: If the function has another form, or a lifespan is already declared.

        Example:
            >>> @app.lifespan
            ... async def resources():
            ...     async with httpx.AsyncClient() as client:
            ...         yield client
        """
        check_bool("process", process)

        def register(made: LifespanFunction) -> LifespanFunction:
            self.registry.set_lifespan(lifespan(made, self), process=process)
            return made

        return register if function is None else register(function)

    def middleware(self, function: M) -> M:
        """Register middleware around jobs. The first of each kind is outermost.

        An `async def` middleware surrounds each job, in the event loop. A plain `def` surrounds
        plain functions only. It runs in their thread, inside all async middleware, and there
        `call_next(job)` returns the result.

        Args:
            function: Function with the parameters `job` and `call_next`.

        Example:
            >>> @app.middleware
            ... async def timing(job, call_next):
            ...     start = time.monotonic()
            ...     try:
            ...         return await call_next(job)
            ...     finally:
            ...         print(job.name, time.monotonic() - start)
        """
        self.registry.surround_jobs(function)
        return function

    def include(self, other: TaskGroup) -> None:
        """Include the tasks, schedules and middleware of a group or another app.

        The other's middleware surrounds its own tasks only, inside this one's middleware. Its
        lifespan also runs around the workers. Its tasks receive the value of its lifespan, or of
        this one's if it has none. Tasks added to it later are included as well.

        Args:
            other: The group or app.

        Raises:
            ConfigurationError: If a name collides, or the other is already part of something else.
                Nothing is included then.
        """
        if not isinstance(other, TaskGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal("the argument of include()", "be an App or a TaskGroup", other)
        if other.part_of is self:
            return
        self._check_place(other)
        if self._producer is not None:
            other._check_move(self._producer)
        self.registry.check(other.tasks.values())
        self.timetable.check(other.timetable.all())
        self.registry.include(other.registry)
        self.timetable.include(other.timetable)
        other.part_of = self
        self.included.append(other)
        if self._producer is not None:
            other._move(self._producer)

    def load_tasks(self) -> None:
        """Import the modules named by included apps."""
        for each in self.included:
            each.load_tasks()

    def _check_move(self, producer: Producer) -> None:
        """Reject a producer that cannot add the jobs of all tasks."""
        for queue in self.queues:
            producer.client(queue)
        for each in self.included:
            each._check_move(producer)  # noqa: SLF001

    def _move(self, producer: Producer) -> None:
        """Use this producer for the jobs of all tasks from now on."""
        self._producer = producer
        for each in self.included:
            each._move(producer)  # noqa: SLF001

    def _check_place(self, other: TaskGroup) -> None:
        above: TaskGroup | None = self
        while above is not None:
            if above is other:
                raise ConfigurationError(f"{other} cannot include itself")
            above = above.part_of
        if other.part_of is not None:
            raise ConfigurationError(
                f"{self} cannot include {other}: it is already included in {other.part_of}"
            )


# Values that lifespans yield to the tasks of one worker


Yielded: TypeAlias = Mapping[Registry, Any]
"""Value of each lifespan, by the registry that declares it."""


class Resources:
    """Runs the lifespans around a worker and selects the value for each task.

    Pool processes have separate instances, one per process.
    """

    def __init__(self, registry: Registry, *, in_process: bool = False) -> None:
        """Check that every task that needs a lifespan has one, before any is opened.

        Raises:
            ConfigurationError: If a task takes a lifespan's value, but no lifespan is declared.
        """
        self._registry = registry
        self._execution_mode = ExecutionMode.PROCESS if in_process else ExecutionMode.LOOP
        self._tasks = [
            task
            for task in registry.tasks.values()
            if task.injected and (task.execution_mode is ExecutionMode.PROCESS) == in_process
        ]
        for task in registry.tasks.values():
            if task.injected and registry.provider(task) is None:
                raise ConfigurationError(
                    f"Parameter '{task.injected[0]}' of task '{task.name}' ({task.location}) needs "
                    f"the value of a lifespan, but {registry.around(task.name)[-1].owner} has "
                    "none: declare one with @app.lifespan"
                )

    def __bool__(self) -> bool:
        """Return True if there is any lifespan."""
        return any(each.lifespans(self._execution_mode) for each in self._registry.all())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Yielded, None]:
        """Run all lifespans around the block, with included ones inside the app's.

        Raises:
            ConfigurationError: If a value does not match a parameter that takes it.
        """
        async with AsyncExitStack() as stack:
            yielded: dict[Registry, Any] = {}
            for each in self._registry.all():
                for lifespan in each.lifespans(self._execution_mode):
                    yielded[each] = await stack.enter_async_context(lifespan())
            for task in self._tasks:
                task.check_resources(self.of(yielded, task.name))
            yield yielded

    def of(self, yielded: Yielded, name: str) -> Any:
        """Return the lifespan value for a task's jobs, or None if there is none."""
        task = self._registry.tasks.get(name)
        provider = None if task is None else self._registry.provider(task)
        return None if provider is None else yielded.get(provider)

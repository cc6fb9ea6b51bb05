"""Task groups, their registry of tasks, and the lifespans around their workers.

`TaskGroup` holds what an app and a group of tasks have in common.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from taskbull.app.batch import BatchDecorator, BatchSettings, batch_settings, make_batch_task
from taskbull.app.producer import EnqueueHook, JobSpec, Producer
from taskbull.app.settings import (
    GroupOptions,
    RemoteOptions,
    TaskOptions,
    defaults_of,
    stream_rules,
)
from taskbull.app.signature import check_declaration, check_function, location_of
from taskbull.app.task import (
    AsyncStreamTask,
    AsyncTask,
    Decorator,
    Reduce,
    ReducingDecorator,
    RemoteDecorator,
    RemoteTask,
    SyncStreamTask,
    SyncTask,
    Task,
    TaskCalling,
    check_rules,
    is_generator,
    make_stream_task,
    make_task,
)
from taskbull.core.celery import APP, no_attribute
from taskbull.core.job import ExecutionMode, Middleware, NewJob, PlainMiddleware, check_single
from taskbull.core.keys import NAME_LIMIT, check_queue_name
from taskbull.core.options import with_group
from taskbull.core.outcome import Classifier
from taskbull.core.retry import CircuitBreaker, UnknownErrors
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_keywords,
    check_text,
    did_you_mean,
    is_async,
    refusal,
    takes,
    unknown_settings,
)
from taskbull.errors import ConfigurationError, TaskNotRegistered
from taskbull.observability.logs import cut
from taskbull.queue.handle import Prepare

if TYPE_CHECKING:
    from taskbull.core.declared_schedule import DeclaredSchedule, DeclaredSchedules
    from taskbull.core.schedule import Rule
    from taskbull.worker.running_job import RunningJob


# Middleware that an app runs around its jobs.


JobMiddleware: TypeAlias = "Middleware[RunningJob]"
PlainJobMiddleware: TypeAlias = "PlainMiddleware[RunningJob]"


class Layers:
    """The middleware around jobs, outermost first."""

    def __init__(self) -> None:
        self.awaited: list[JobMiddleware] = []
        """Middleware around each job, in the event loop."""
        self.plain: list[PlainJobMiddleware] = []
        """Middleware around each sync function, in its thread, inside all async middleware."""

    def add(self, layer: JobMiddleware | PlainJobMiddleware) -> None:
        """Add middleware inside the existing middleware of the same kind.

        Raises:
            ConfigurationError: If it is not a function with the parameters `job` and `call_next`.
        """
        if not _is_layer(layer):
            raise refusal(
                "app.middleware", "be a def or async def that takes job, call_next", layer
            )
        if inspect.iscoroutinefunction(layer):
            self.awaited.append(layer)
        else:
            self.plain.append(layer)


EVERYWHERE = Layers()
"""Middleware around the jobs of all apps, which a framework such as Django installs.

Async middleware wraps only async tasks, so that a sync function still needs no event loop.
"""


def _is_layer(layer: object) -> bool:
    if not inspect.isfunction(layer) and not inspect.ismethod(layer):
        return False
    if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
        return False
    return takes(layer, 2)


# Schedules that an app declares with `@app.task(schedule=…)` or `app.schedule(…)`.
#
# The modules that schedules need are imported only if an app declares one.


class Schedules:
    """Holds the schedules of an app or group and of everything that it includes."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._by_queue: dict[str, dict[str, DeclaredSchedule]] = {}
        self.part_of: Schedules | None = None
        """Schedules of the app or group that includes this one."""

    def of_task(self, task: Task[..., Any], rule: Rule) -> DeclaredSchedule:
        """Return a schedule that runs a task periodically with its default arguments.

        Raises:
            ConfigurationError: If a parameter has no default.
        """
        if required := task.calling.binder.required:
            missing = [name for name in task.calling.binder.parameters if name in required]
            raise ConfigurationError(
                f"Task '{task.name}' ({task.location}) has a schedule, but no default for "
                f"{', '.join(map(repr, missing))}: add defaults, or use app.schedule(id, rule, "
                f"{task.__name__}.job(…))"
            )
        # Each run has its own id, so the task's deduplication does not apply.
        options = with_group(task.settings.options, {}, task.calling.binder.defaults)
        job = NewJob(task.name, {}, replace(options, dedup=None))
        return self.of_job(task.name, rule, JobSpec[Any](task.queue, job, task.calling))

    def of_job(self, schedule_id: str, rule: Rule, spec: JobSpec[Any]) -> DeclaredSchedule:
        """Return a schedule that adds a job periodically.

        Raises:
            ConfigurationError: If the job is invalid or has children.
        """
        if not isinstance(spec, JobSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal("the job of app.schedule()", "be created with task.job(…)", spec)
        check_single(spec.name, spec.children, spec.missing)  # A group has no branches yet.
        return _declared(schedule_id, spec.queue, rule, spec.template().job)

    def add(self, new: DeclaredSchedule) -> None:
        """Add a schedule.

        Raises:
            ConfigurationError: If its queue already has a schedule with this id.
        """
        self.check([new])
        if self.part_of is not None:
            self.part_of.add(new)
        self._by_queue.setdefault(new.queue, {})[new.id] = new

    def check(self, schedules: Iterable[DeclaredSchedule]) -> None:
        """Check that schedules can be added here and to everything that includes this one.

        Raises:
            ConfigurationError: If one of them cannot be added.
        """
        for new in schedules:
            if (other := self._by_queue.get(new.queue, {}).get(new.id)) is not None:
                raise ConfigurationError(
                    f"Queue '{new.queue}' has two schedules with id {new.id!r}: task "
                    f"'{other.job.name}' {other.rule.describe()}, and task '{new.job.name}' "
                    f"{new.rule.describe()}. Use another id with app.schedule(id, …)"
                )
            if self.part_of is not None:
                self.part_of.check([new])

    def include(self, other: Schedules) -> None:
        """Include other schedules, and those declared there later."""
        other.part_of = self
        for schedule in other.all():
            self.add(schedule)

    def all(self) -> list[DeclaredSchedule]:
        """Return all schedules."""
        return [one for known in self._by_queue.values() for one in known.values()]

    def declared(self, prepare: Prepare) -> DeclaredSchedules:
        """Return all schedules by queue, with their jobs as `prepare` leaves them."""
        from taskbull.core.declared_schedule import DeclaredSchedules  # noqa: PLC0415 - see above

        by_queue = {
            queue: [replace(one, job=prepare(queue, one.job)) for one in known.values()]
            for queue, known in self._by_queue.items()
        }
        return DeclaredSchedules(self._owner, by_queue)


def _declared(schedule_id: str, queue: str, rule: Rule, job: NewJob) -> DeclaredSchedule:
    from taskbull.core.declared_schedule import DeclaredSchedule  # noqa: PLC0415 - see above

    return DeclaredSchedule(schedule_id, queue, rule, job)


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
    made = inspect.unwrap(function)  # A sync context manager wraps a sync generator.
    if (
        not inspect.isfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(made)
    ):
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
        self._local: dict[str, Task[..., Any]] = {}
        self.local: Mapping[str, Task[..., Any]] = MappingProxyType(self._local)
        """The tasks that workers of the app run: all that are not remote."""
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
        self.more_queues: Sequence[str] = ()
        """Queues to serve in addition to those of the tasks."""

    def add(self, task: Task[..., Any], source: Registry | None = None) -> None:
        """Add a task.

        Raises:
            ConfigurationError: If the name is taken, or the queue has a different circuit breaker.
        """
        self.check([task])
        if self.part_of is not None:
            self.part_of.add(task, self)
        self._tasks[task.name] = task
        if not task.is_remote:
            self._local[task.name] = task
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
        """Return the registries whose middleware wraps a task, outermost first."""
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
        """The queues of all tasks, in order of registration, and those declared without tasks."""
        more = (queue for each in self.all() for queue in each.more_queues)
        return list(dict.fromkeys([*(task.queue for task in self._tasks.values()), *more]))

    @property
    def local_queues(self) -> list[str]:
        """The queues that workers serve: without those that have only remote tasks."""
        local = {task.queue for task in self._local.values()}
        remote = {task.queue for task in self._tasks.values()} - local
        return [queue for queue in self.queues if queue not in remote] if local else []

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
        if name in self._tasks:
            return TaskNotRegistered(
                name,
                f"Task {name!r} of a job in queue {queue} is remote in {self.owner}, so this worker"
                " does not run it. Use another queue for jobs that another program runs",
            )
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
I = TypeVar("I")  # noqa: E741 - an item
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
        if unknown := [name for name in options if name not in GroupOptions.__annotations__]:
            known = [*(kind.__init__.__kwdefaults__ or {}), *GroupOptions.__annotations__]
            raise unknown_settings(kind.__name__, unknown, known)
        self.name = check_text(f"{self._kind} name", name, most=NAME_LIMIT)
        check_queue_name(queue)
        self._names = options.get("names", "function")
        check_choice("names", self._names, ("function", "module"))
        self._defaults = defaults_of(queue, attempts, classify, unknown_errors, options)
        self.registry = Registry(str(self))
        self.timetable = Schedules(name)
        self.included: list[TaskGroup] = []
        """Groups and apps that this one includes."""
        self.part_of: TaskGroup | None = None
        """Group or app that includes this one."""
        self._producer: Producer | None = None
        self._enqueue_hooks: list[EnqueueHook] = []

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
    def task(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, AsyncIterator[I]], /
    ) -> AsyncStreamTask[P, list[I], I]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Iterator[I]], /
    ) -> SyncStreamTask[P, list[I], I]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorator: ...
    @overload
    def task(
        self, /, *, reduce: None, **options: Unpack[TaskOptions]
    ) -> ReducingDecorator[None]: ...
    @overload  # Otherwise pyright takes the result of "".join for a LiteralString.
    def task(
        self, /, *, reduce: Callable[[list[str]], str], **options: Unpack[TaskOptions]
    ) -> ReducingDecorator[str]: ...
    @overload
    def task(
        self, /, *, reduce: Callable[[list[Any]], R], **options: Unpack[TaskOptions]
    ) -> ReducingDecorator[R]: ...
    def task(
        self, function: Any = None, /, *, reduce: Any = list, **options: Unpack[TaskOptions]
    ) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(queue="emails")`.

        An `async def` runs in the worker's event loop. A plain `def` runs in a thread, or in a pool
        process with `process=True`. Calling the task directly runs the function as usual.

        A function that yields streams its items: `task.stream(…)` and `job.stream()` follow them.

        Args:
            function: The function, if the decorator is used without arguments.
            reduce: For a function that yields: function that makes the job's result from the list
                of items. The default is the list. With None, the result is None, and the worker
                does not hold the items.
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
        - `process`: whether a sync function runs in the worker's process pool. It can then use
          another core, and it is stopped on timeout or cancellation.
        - `grace`: seconds that a stopped process has to clean up before it is killed.
        - `extra`: how to handle fields that match no parameter: "error" (default) or "ignore".
        - `retry_on`, `fail_on`: the only errors to retry, and errors that are never retried.
        - `throws`: expected errors, which are logged at INFO without a stack trace.
        - `classify`: function that returns the category of an error.
        - `on_success`, `on_failure`: function called with the `Job` and its result or `Failure`
          after the job has ended. A sync function runs in a thread and may block.
        - `dedup`: key that makes jobs unique: a format string over the arguments, such as
          `"report-{user_id}"`, a `Dedup` with such a key, or a function of the arguments.
        - `group_by`: group of each job, for fair turns and limits per key: the name of a parameter,
          or a function of the arguments.
        - `cost`: what each job counts for in the limiter of its group: an int, the name of a
          parameter, or a function of the arguments.
        - `circuit_breaker`: `CircuitBreaker` for the task's queue.
        - `stream_ttl`: seconds that the items of a function that yields are kept after the job has
          ended. The default is one hour.
        - `stream_limit`: maximum number of entries in the stream of a job. The oldest are dropped.
          The default is 10,000.

        Raises:
            ConfigurationError: If an option is invalid, or the name is already registered.

        Example:
            >>> @app.task(queue="emails", attempts=5, timeout=30)
            ... async def send(to: str, subject: str) -> str: ...
        """
        check_keywords("@app.task", options, TaskOptions)
        if function is None:
            return cast("Decorator", partial(self._add, options, reduce=reduce))
        return self._add(options, function, reduce=reduce)

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

    @overload
    def remote(  # pyright: ignore[reportOverlappingOverload]
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
    ) -> RemoteTask[P, R]: ...
    @overload
    def remote(self, function: Callable[P, R], /) -> RemoteTask[P, R]: ...
    @overload
    def remote(self, /, **options: Unpack[RemoteOptions]) -> RemoteDecorator: ...
    def remote(self, function: Any = None, /, **options: Unpack[RemoteOptions]) -> Any:
        """Declare a task that another program runs, such as a Node service with BullMQ.

        The function's body must be `...`, with or without a docstring. Jobs are added and awaited
        like those of other tasks, with checked arguments and typed results. Workers of this app do
        not run them, so use a queue that has no other tasks.

        Args:
            function: The function, if the decorator is used without arguments.
            **options: `name`, `queue`, `attempts`, `backoff`, `error_backoffs`, `timeout`,
                `expires`, `priority`, `lifo`, `dedup`, `keep_completed` and `keep_failed`, as in
                `task`. The other program must support the options of its jobs.

        Raises:
            ConfigurationError: If the body is not `...`, an option is invalid, or the name is
                already registered.

        Example:
            >>> @app.remote(queue="translations")
            ... async def translate(text: str, to: str) -> str: ...
            >>> translate.delay("Good morning", to="fr").result(timeout=10)
        """
        check_keywords("@app.remote", options, RemoteOptions)
        if function is None:
            return cast("RemoteDecorator", partial(self._add_remote, options))
        return self._add_remote(options, function)

    def _add_remote(
        self, given: RemoteOptions, function: Callable[..., Any]
    ) -> RemoteTask[..., Any]:
        name = given.get("name")
        check_function(function, name)
        check_declaration(function)
        settings = self._defaults.with_task(
            function.__name__ if name is None else name,
            cast("TaskOptions", given),
            is_async=True,  # It never runs in a process of this app.
        )
        self._check_queue(settings.queue)
        calling = TaskCalling(function, settings.name, self)
        for parameter in (*calling.binder.injected, *(need.parameter for need in calling.needs)):
            raise ConfigurationError(
                f"Parameter '{parameter}' of remote task '{settings.name}' "
                f"({location_of(function)}) has the default "
                f"{calling.binder.default_of(parameter)!r}, but only workers of this app could "
                "fill it in"
            )
        check_rules(settings, calling.binder)
        task = RemoteTask[..., Any](function, settings, calling)
        self.registry.add(task)
        return task

    def _add(
        self,
        given: TaskOptions,
        function: Callable[..., Any],
        batch: BatchSettings | None = None,
        reduce: Reduce | None = list,
    ) -> Task[..., Any]:
        name = given.get("name")
        check_function(function, name, process=given.get("process", False))
        if name is None:
            name = function.__name__
            name = f"{function.__module__}.{name}" if self._names == "module" else name
        settings = self._defaults.with_task(
            name,
            given,
            is_async=inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function),
        )
        self._check_queue(settings.queue)
        yields = is_generator(function)
        if yields and batch is not None:
            raise ConfigurationError(
                f"{function.__name__} cannot be a batch task: it yields, and the items of a stream "
                "belong to one job. Return a list with one result per item, or use @app.task"
            )
        task: Task[..., Any]
        if (stream := stream_rules(given, reduce, yields=yields)) is not None:
            task = make_stream_task(function, replace(settings, stream=stream), self)
        elif batch is None:
            task = make_task(function, settings, self)
        else:
            task = make_batch_task(function, settings, self, batch)
        check_rules(settings, task.calling.binder)
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

        An `async def` middleware wraps each job, in the event loop. A plain `def` wraps
        sync functions only. It runs in their thread, inside all async middleware, and there
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

    def on_enqueue(self, function: EnqueueHook) -> EnqueueHook:
        """Register a function that sees each job before it is added.

        It is called for single jobs, bulks, flows with all their children, and the jobs of declared
        schedules. If it raises, nothing is sent. Several functions are called in order. The
        functions of a group, or of an app that another one includes, see only the jobs
        of the tasks declared there.

        Args:
            function: Function that takes the `JobSpec`. It returns another one, such as
                `spec.with_options(…)`, or None to leave the job as it is.

        Example:
            >>> @app.on_enqueue
            ... def add_tenant(spec: JobSpec) -> JobSpec:
            ...     return spec.with_options(headers={**spec.headers, "tenant": tenant.get()})
        """
        given: object = function
        if not callable(given) or is_async(given) or not takes(given, 1):
            raise refusal("@app.on_enqueue", "be a sync function that takes the job", function)

        def hook(spec: JobSpec[Any]) -> JobSpec[Any] | None:
            concerned = self.part_of is None or spec.name in self.tasks
            return function(spec) if concerned else None

        self._enqueue_hooks.append(hook)
        if self._producer is not None:
            self._producer.hooks.append(hook)
        return function

    def include(self, other: TaskGroup) -> None:
        """Include the tasks, schedules, middleware and enqueue hooks of a group or another app.

        Its middleware wraps only its own tasks, inside the middleware registered here. Its
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
        producer.hooks += self._enqueue_hooks
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

"""What surrounds an app's workers: one async context manager of the user's."""

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
from taskbull.app.settings import Defaults, TaskOptions
from taskbull.app.signature import check_function
from taskbull.app.task import AsyncTask, Decorator, SyncTask, Task, make_task
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.celery import APP, no_attribute
from taskbull.core.failure import Classifier
from taskbull.core.job import Site
from taskbull.core.keys import NAME_LIMIT, check_queue_name
from taskbull.core.options import ATTEMPTS, AppKeywords, JobOptions
from taskbull.core.retry import RetryPolicy, UnknownErrors
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


# What surrounds an app's workers: one async context manager of the user's.


LifespanFunction: TypeAlias = Callable[..., AbstractAsyncContextManager[Any] | AsyncIterator[Any]]
"""An async generator that yields once, or what gives an async context manager."""

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""One form for all ways to write one; what it yields is given to tasks."""


def lifespan(function: LifespanFunction, app: object) -> Lifespan:
    """Return one form for all ways to write a lifespan; the function takes the app, or nothing."""
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


# The tasks of an app or group by name, what surrounds them, and their circuit breakers.


_SHOWN = 20


class Registry:
    """Knows the tasks of one app or group, and of all that it includes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        self.layers = Layers()
        self.lifespan: Lifespan | None = None
        self.process_lifespan: Lifespan | None = None
        """What surrounds the processes of a pool only."""
        self._included: list[Registry] = []
        self._sources: dict[str, Registry] = {}  # of the tasks that are not its own
        self.part_of: Registry | None = None
        """What includes it."""
        self.watchers: list[Callable[[], None]] = []
        """Called when what surrounds its tasks has changed."""

    def add(self, task: Task[..., Any], source: Registry | None = None) -> None:
        """Add a task; refuse a name that is taken, or another breaker for a queue that has one."""
        self.check([task])
        if self.part_of is not None:
            self.part_of.add(task, self)
        self._tasks[task.name] = task
        if source is not None:
            self._sources[task.name] = source

    def check(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Refuse tasks of which one cannot be added, here or to what this is a part of."""
        for task in tasks:
            if (other := self._tasks.get(task.name)) is not None:
                raise ConfigurationError(
                    f"{self.owner} has two tasks named {task.name!r}: at {other.place} and at "
                    f"{task.place}. Rename one of them with name=…"
                )
            breaker = task.settings.circuit_breaker
            if breaker is not None:
                self._check_breaker(task, breaker)
            if self.part_of is not None:
                self.part_of.check([task])

    def include(self, other: Registry) -> None:
        """Make tasks of another registry part of this one, also those that it is yet to get."""
        other.part_of = self
        self._included.append(other)
        for task in other.tasks.values():
            self.add(task, other)

    def surround(self, lifespan: Lifespan, *, process: bool = False) -> None:
        """Put a lifespan around each worker, or around the processes of its pool only."""
        if (self.process_lifespan if process else self.lifespan) is not None:
            kind = " for processes" if process else ""
            raise ConfigurationError(
                f"{self.owner} already has a lifespan{kind}: it can have only one"
            )
        if process:
            self.process_lifespan = lifespan
        else:
            self.lifespan = lifespan

    def surround_jobs(self, layer: JobMiddleware | PlainJobMiddleware) -> None:
        """Put a layer around each job, inside of those that are there."""
        self.layers.add(layer)
        self.changed()

    def changed(self) -> None:
        """Tell that what surrounds the tasks is not what it was."""
        for watcher in self.watchers:
            watcher()
        if self.part_of is not None:
            self.part_of.changed()

    def around(self, name: str) -> list[Registry]:
        """Return those whose middleware surrounds a task: this one first, the task's own last."""
        source = self._sources.get(name)
        return [self] if source is None else [self, *source.around(name)]

    def all(self) -> list[Registry]:
        """Return this registry, and all that it includes."""
        return [self, *(one for each in self._included for one in each.all())]

    def lifespans(self, site: Site) -> list[Lifespan]:
        """Return what surrounds the place where a task is called, outermost first."""
        inner = self.process_lifespan if site is Site.PROCESS else None
        return [one for one in (self.lifespan, inner) if one is not None]

    def provider(self, task: Task[..., Any]) -> Registry | None:
        """Return the one whose lifespan yields what a task is given: the nearest that has one."""
        around = reversed(self.around(task.name))
        return next((one for one in around if one.lifespans(task.site)), None)

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks, in the order in which they came up."""
        return list(dict.fromkeys(task.queue for task in self._tasks.values()))

    @property
    def circuit_breakers(self) -> dict[str, CircuitBreaker]:
        """The circuit breaker of each queue that has one."""
        return {
            task.queue: task.settings.circuit_breaker
            for task in self._tasks.values()
            if task.settings.circuit_breaker is not None
        }

    def missing(self, name: str, queue: str) -> TaskNotRegistered:
        """Return the error for a job whose task is not registered."""
        names = sorted(self._tasks)
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        hint = did_you_mean(cut(name), names)  # of a name of 10 MB that would take seconds
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
                    f"Queue {task.queue} would have two different circuit breakers: of task "
                    f"{other.name} at {other.place} and of task {task.name} at {task.place}. A "
                    "breaker guards a whole queue: use the same one, or another queue"
                )


# A group of tasks: what an app has of its own, and what a library can bring along.


P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="JobMiddleware | PlainJobMiddleware")
L = TypeVar("L", bound=LifespanFunction)


class TaskGroup:
    """Tasks, with their schedules, middleware and lifespan, that become part of an app.

    It is made without Redis: `app.include(group)` says where its jobs are. Its options are the
    defaults of its tasks, as those of an app are; see `App`.
    """

    word = "group"
    """What it is called in messages about its settings."""

    def __init__(
        self,
        name: str,
        *,
        queue: str = "default",
        attempts: int | None = None,
        classify: Classifier | None = None,
        unknown_errors: UnknownErrors = "retry",
        **options: Unpack[AppKeywords],
    ) -> None:
        kind = type(self)
        for option in options:
            if option not in AppKeywords.__annotations__:
                known = [*(kind.__init__.__kwdefaults__ or {}), *AppKeywords.__annotations__]
                raise unknown_setting(kind.__name__, option, known)
        self.name = check_text(f"{self.word} name", name, most=NAME_LIMIT)
        jobs = JobOptions(attempts=ATTEMPTS if attempts is None else attempts, **options)
        policy = RetryPolicy(
            attempts=attempts,
            backoff=jobs.backoff,
            error_backoffs=jobs.error_backoffs,
            classify=classify,
            unknown_errors=unknown_errors,
        )
        check_queue_name(queue)
        self._defaults = Defaults(queue, jobs, policy)
        self.registry = Registry(self.title)
        self.timetable = Schedules(name)
        self.included: list[TaskGroup] = []
        """What was made a part of it."""
        self.part_of: TaskGroup | None = None
        """What includes it."""
        self._producer: Producer | None = None

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, APP, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.tasks)} tasks>"

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{type(self).__name__} {self.name}"

    @property
    def producer(self) -> Producer:
        """What adds the jobs of its tasks; a group has none before an app includes it."""
        if self._producer is None:
            raise ConfigurationError(
                f"TaskGroup {self.name} is not part of an app, so nobody knows where its jobs are "
                "to go: call app.include(group) first, where the app is made"
            )
        return self._producer

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name, those of what it includes among them."""
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
        """Turn a function into a task: `@app.task`, or `@app.task(queue="emails", attempts=5)`.

        Its name is the function's, unless given. `extra` says what becomes of fields in a job's
        data that no parameter takes: "error" or "ignore". With a `schedule`, a `Cron` or an
        `Every`, the task is called again and again, with the defaults of its parameters.
        With `process=True` a plain function runs in a process of the worker's pool: it can use a
        core of its own, and its process is ended, after `grace` seconds by force, when its timeout
        has passed or its job is cancelled.
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
        """Turn a function that takes a list of items into a task whose jobs bring one item each.

        One call serves up to `size` jobs. It begins when so many are there, when the first has
        waited for `wait` seconds, or when no more can come; `parallel` calls may run at once. It
        returns one result for each item, in order; an exception among them fails, or retries, the
        job of its own item only. A worker needs a concurrency of at least `size`. With
        `process=True` each call is made in one process of the worker's pool.
        """
        check_keywords("@app.batch_task", options, TaskOptions)
        if options.get("schedule") is not None:
            raise ConfigurationError(
                "a batch task cannot have schedule=…, because a job needs an item: use "
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
        settings = self._defaults.with_task(function.__name__ if name is None else name, given)
        self._check_queue(settings.queue)
        task: Task[..., Any] = (
            make_task(function, settings, self)
            if batch is None
            else make_batch_task(function, settings, self, batch)
        )
        rule = given.get("schedule")
        schedule = None if rule is None else self.timetable.of_task(task, rule)
        self.registry.add(task)
        if schedule is not None:
            self.timetable.add(schedule)
        return task

    def _check_queue(self, queue: str) -> None:
        check_queue_name(queue)
        if self._producer is not None:  # in a Cluster there is more to say
            self._producer.client(queue)

    def schedule(self, id: str, rule: Rule, job: JobSpec[Any]) -> None:  # noqa: A002
        """Declare that a job is added again and again: what `task.job(…)` made, by a rule.

        Schedules that are new or have changed are written when a worker of the queue starts. One
        that is no longer declared stays until `taskbull schedules sync --prune`.
        """
        self.timetable.add(self.timetable.of_job(id, rule, job))

    @overload
    def lifespan(self, function: L, /) -> L: ...
    @overload
    def lifespan(self, /, *, process: bool) -> Callable[[L], L]: ...
    def lifespan(
        self, function: LifespanFunction | None = None, /, *, process: bool = False
    ) -> Any:
        """Run an async generator, or async context manager function, around each worker.

        It takes the app, or nothing. There is one for an app. What it yields is given to tasks:
        see `from_lifespan`. Processes of a pool have it as well, each its own; one with
        `process=True` surrounds only those, inside of the other, and their tasks are given what it
        yields.
        """
        check_bool("process", process)

        def surround(made: LifespanFunction) -> LifespanFunction:
            self.registry.surround(lifespan(made, self), process=process)
            return made

        return surround if function is None else surround(function)

    def middleware(self, function: M) -> M:
        """Put a layer around jobs; of each kind the first one is outermost.

        `async def layer(job, call_next)` surrounds each job, in the event loop. A plain `def` of
        the same form surrounds plain functions only, in their own thread, inside of all of the
        others; there `call_next(job)` returns the result.
        """
        self.registry.surround_jobs(function)
        return function

    def include(self, other: TaskGroup) -> None:
        """Make the tasks, schedules and middleware of a group, or of another app, part of this one.

        The other's middleware surrounds its own tasks only, inside of this one's. Its lifespan runs
        around the workers as well; its tasks are given what that yields, or what this one's does if
        it has none. Tasks that are added to it later are part of this one, too. Names that collide
        are refused, and then nothing of it is included.
        """
        if not isinstance(other, TaskGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal("what is included", "be an App or a TaskGroup", other)
        if other.part_of is self:
            return
        self._check_place(other)
        if self._producer is not None:
            other.check_move(self._producer)
        self.registry.check(other.tasks.values())
        self.timetable.check(other.timetable.all())
        self.registry.include(other.registry)
        self.timetable.include(other.timetable)
        other.part_of = self
        self.included.append(other)
        if self._producer is not None:
            other.move(self._producer)

    def load_tasks(self) -> None:
        """Import the modules that the apps it includes name."""
        for each in self.included:
            each.load_tasks()

    def check_move(self, producer: Producer) -> None:
        """Refuse a producer by which the jobs of the tasks must not be added."""
        for queue in self.queues:
            producer.client(queue)
        for each in self.included:
            each.check_move(producer)

    def move(self, producer: Producer) -> None:
        """Add the jobs of all tasks by this producer from now on."""
        self._producer = producer
        for each in self.included:
            each.move(producer)

    def _check_place(self, other: TaskGroup) -> None:
        above: TaskGroup | None = self
        while above is not None:
            if above is other:
                raise ConfigurationError(f"{other.title} cannot include itself")
            above = above.part_of
        if other.part_of is not None:
            raise ConfigurationError(
                f"{other.title} is part of {other.part_of.title} already, and its jobs go where "
                f"that one's go: {self.title} cannot include it, too"
            )


# What the lifespans of an app, and of what it includes, yield to the tasks of one worker.


Yielded: TypeAlias = Mapping[Registry, Any]
"""What each lifespan yields, by whose it is."""


class Resources:
    """Knows which lifespans run around a worker, and which task is given what.

    Those of a process of the pool are others: each process has its own.
    """

    def __init__(self, registry: Registry, *, in_process: bool = False) -> None:
        """Refuse tasks that want what no lifespan yields, before anything is opened."""
        self._registry = registry
        self._site = Site.PROCESS if in_process else Site.LOOP
        self._tasks = [
            task
            for task in registry.tasks.values()
            if task.injected and (task.site is Site.PROCESS) == in_process
        ]
        for task in registry.tasks.values():
            if task.injected and registry.provider(task) is None:
                raise ConfigurationError(
                    f"Parameter {task.injected[0]} of task {task.name} ({task.place}) takes what "
                    f"the lifespan yields, but {registry.around(task.name)[-1].owner} has none: "
                    "declare one with @app.lifespan"
                )

    def __bool__(self) -> bool:
        """Return whether there is any lifespan."""
        return any(each.lifespans(self._site) for each in self._registry.all())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Yielded, None]:
        """Run all lifespans around the block, those of what is included inside of the app's own.

        Raises `ConfigurationError` for what does not fit the parameters that take it.
        """
        async with AsyncExitStack() as stack:
            yielded: dict[Registry, Any] = {}
            for each in self._registry.all():
                for lifespan in each.lifespans(self._site):
                    yielded[each] = await stack.enter_async_context(lifespan())
            for task in self._tasks:
                task.check_resources(self.of(yielded, task.name))
            yield yielded

    def of(self, yielded: Yielded, name: str) -> Any:
        """Return what the jobs of a task are given; None if no lifespan has anything for them."""
        task = self._registry.tasks.get(name)
        provider = None if task is None else self._registry.provider(task)
        return None if provider is None else yielded.get(provider)

"""A group of tasks: what an app has of its own, and what a library can bring along."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from taskbull.app.batch_task import (
    BatchDecorator,
    BatchSettings,
    batch_settings,
    make_batch_task,
)
from taskbull.app.function import check_function
from taskbull.app.layers import JobMiddleware, PlainJobMiddleware
from taskbull.app.lifespan import LifespanFunction, lifespan
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.registry import Registry
from taskbull.app.schedules import Schedules
from taskbull.app.settings import Defaults, TaskOptions
from taskbull.app.task import AsyncTask, Decorator, SyncTask, Task, make_task
from taskbull.core.celery import APP, no_attribute
from taskbull.core.checks import check_bool, check_text, refusal
from taskbull.core.classification import Classifier
from taskbull.core.durations import Duration
from taskbull.core.keys import NAME_LIMIT, check_queue_name
from taskbull.core.keywords import check_keywords, unknown_setting
from taskbull.core.options import ATTEMPTS, AppKeywords, JobOptions
from taskbull.core.retry import RetryPolicy, UnknownErrors
from taskbull.errors import ConfigurationError

if TYPE_CHECKING:
    from taskbull.core.rules import Rule

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

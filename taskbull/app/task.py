"""A task: a function whose calls can be jobs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from taskbull.app.arguments import (
    Read,
    arguments_reader,
    by_keyword,
    parameter_reader,
)
from taskbull.app.calling import Home, TaskCalling
from taskbull.app.function import place_of
from taskbull.app.injection import check_resources
from taskbull.app.producer import JobSpec
from taskbull.app.received import Receiver
from taskbull.app.settings import CallOptions, TaskSettings, with_call
from taskbull.core.celery import TASK, no_attribute
from taskbull.core.flow import Children, Growing, children_of
from taskbull.core.keys import check_queue_name
from taskbull.core.keywords import check_keywords
from taskbull.core.options import JobOptions, OnFailure
from taskbull.core.site import Site
from taskbull.errors import ConfigurationError
from taskbull.observability.provider import current_tracer, in_this_span
from taskbull.queue.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")


class Enqueueable(Generic[P, R]):
    """Adds jobs of a task, with certain options. It does not change: `options` gives another."""

    def __init__(self, calling: TaskCalling, queue: str, options: JobOptions) -> None:
        self.calling = calling
        self._queue = queue
        self._options = options

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, TASK, name)

    @property
    def name(self) -> str:
        """The name of the task, under which its jobs are added."""
        return self.calling.name

    @property
    def queue(self) -> str:
        """The queue to which jobs are added."""
        return self._queue

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Add a job that calls the task with these arguments; from sync code, any thread.

        Raises `TypeError` for a call that does not fit the signature or the annotations (for the
        latter an `InvalidArguments`, which is one), and `EnqueueError` if Redis is away for
        longer than the app's `enqueue_timeout`.
        """
        self.calling.blocking.check()
        return self.calling.producer.add(self._spec(args, kwargs))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Add a job that calls the task with these arguments; from asyncio or trio. See `delay`."""
        return await self.calling.producer.aadd(self._spec(args, kwargs))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R]:
        """Return a job for `app.enqueue`; nothing is sent."""
        spec = self._spec(args, kwargs)
        if current_tracer() is None:
            return spec
        return replace(spec, job=in_this_span(spec.job))

    def options(self, **options: Unpack[CallOptions]) -> Variant[P, R]:
        """Return the task with other options, to call or to keep."""
        check_keywords(f"{self.name}.options()", options, CallOptions)
        queue = options.get("queue", self._queue)
        check_queue_name(queue)
        return self._variant(queue, with_call(self._options, options))

    def after(
        self, *jobs: Growing | Iterable[Growing], on_failure: OnFailure = "fail"
    ) -> Following[P, R]:
        """Return the task for a job that runs after others, its children: a flow.

        Each is a job that `task.job(…)` or `queue.job(…)` made, or an iterable of such. Children
        may have children. `on_failure` says what happens to the job if one of them fails:

        - `"fail"`: it fails when a worker takes it, at once.
        - `"ignore"`: it runs when all have ended; `current_job().failed_children()` tells which.
        - `"continue"`: it runs at once, and can end when it has dropped those that are pending.
        - `"drop"`: it runs when all have ended, and learns nothing of the failure.
        - `"wait"`: it waits until the child is retried, or removed.
        """
        if not jobs:
            raise ConfigurationError(
                f"{self.name}.after() was given no jobs: name them, or give an iterable, which "
                "may be empty"
            )
        children = children_of(f"{self.name}.after()", jobs, on_failure)
        return Following(self.calling, self._queue, self._options, (*self._awaited(), children))

    def read_result(self, raw: bytes) -> R:
        """Return a result of the task from its JSON."""
        result: R = self.calling.read(raw)
        return result

    def _variant(self, queue: str, options: JobOptions) -> Variant[P, R]:
        return Variant(self.calling, queue, options)

    def _awaited(self) -> tuple[Children, ...]:
        return ()

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[Any]:
        return self.calling.spec(self._queue, self._options, args, kwargs)


class Variant(Enqueueable[P, R]):
    """A task with other options: what `task.options(…)` gives."""

    def __repr__(self) -> str:
        return f"<{self.name} with options, in queue {self.queue}>"


class Following(Variant[P, R]):
    """A task whose jobs run after others: what `task.after(…)` gives."""

    def __init__(
        self, calling: TaskCalling, queue: str, options: JobOptions, children: tuple[Children, ...]
    ) -> None:
        super().__init__(calling, queue, options)
        self._children = children

    def __repr__(self) -> str:
        count = sum(len(group.jobs) for group in self._children)
        return f"<{self.name} after {count} jobs, in queue {self.queue}>"

    def _variant(self, queue: str, options: JobOptions) -> Variant[P, R]:
        return Following(self.calling, queue, options, self._children)

    def _awaited(self) -> tuple[Children, ...]:
        return self._children

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[Any]:
        return replace(super()._spec(args, kwargs), children=self._children)


class Task(Enqueueable[P, R]):
    """A function whose calls can be jobs, made by `@app.task`. Called, it is the function."""

    __name__: str
    __qualname__: str

    def __init__(
        self, function: Callable[..., Any], settings: TaskSettings, calling: TaskCalling
    ) -> None:
        super().__init__(calling, settings.queue, settings.options)
        self.function = function
        self.settings = settings
        functools.update_wrapper(cast("Callable[P, Any]", self), function)

    def __repr__(self) -> str:
        return f"<Task {self.name} in queue {self.queue}>"

    def __reduce__(self) -> str:
        return self.function.__qualname__  # pickled as its function is: by the name in its module

    @property
    def place(self) -> str:
        """Where the function stands: `file:line`."""
        return place_of(self.function)

    @property
    def is_async(self) -> bool:
        """Whether the function is awaited, or else called."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def site(self) -> Site:
        """Where a worker calls the function."""
        if self.settings.process:
            return Site.PROCESS
        return Site.LOOP if self.is_async else Site.THREAD

    def reader(self) -> Read:
        """Prepare what reads the arguments of a job; `ConfigurationError` if that cannot be."""
        name, calling = self.settings.name, self.calling
        return arguments_reader(name, calling.function, calling.binder, self.settings.extra)

    def check_data(self, data: bytes) -> None:
        """Refuse the data of a job, as JSON, that the function does not take."""
        self.reader()(data)

    def receivers(self) -> list[Receiver]:
        """Prepare what reads the parameters that take results of children."""
        name, function = self.settings.name, self.function
        return [
            Receiver(name, need, parameter_reader(name, function, need.parameter))
            for need in self.calling.needs
        ]

    def caller(self) -> Callable[..., Any]:
        """Return the function in a form that takes all its arguments by name."""
        return by_keyword(self.function, self.calling.by_hand)

    @property
    def injected(self) -> tuple[str, ...]:
        """The parameters that take what the lifespan yields."""
        return self.calling.by_hand.injected

    def check_resources(self, value: object) -> None:
        """Refuse what a lifespan yields if it does not fit the parameters that take it."""
        check_resources(self.name, self.function, self.injected, value)


class AsyncTask(Task[P, R]):
    """A task made of an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, here and now."""
        self.calling.check_given(args, kwargs)
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class SyncTask(Task[P, R]):
    """A task made of a plain `def`, which a worker runs in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now."""
        self.calling.check_given(args, kwargs)
        result: R = self.function(*args, **kwargs)
        return result


def make_task(function: Callable[..., Any], settings: TaskSettings, home: Home) -> Task[..., Any]:
    """Return the kind of task that fits the function."""
    calling = TaskCalling(function, settings.name, home)
    if inspect.iscoroutinefunction(function):
        return AsyncTask[..., Any](function, settings, calling)
    return SyncTask[..., Any](function, settings, calling)


class Decorator(Protocol):
    """Makes a task of a function: what `@app.task(…)` with arguments gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...

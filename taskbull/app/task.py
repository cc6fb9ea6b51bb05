"""Jobs one after the other, each with the result of the one before."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from taskbull.app.producer import JobSpec, Producer
from taskbull.app.settings import CallOptions, TaskSettings, with_call
from taskbull.app.signature import (
    Binder,
    Check,
    Read,
    argument_check,
    arguments_reader,
    by_keyword,
    check_resources,
    parameter_reader,
    place_of,
    result_reader,
)
from taskbull.core.celery import TASK, no_attribute
from taskbull.core.flow import Children, Growing, Need, Source, children_of
from taskbull.core.job import NewJob, Site
from taskbull.core.keys import check_queue_name
from taskbull.core.options import JobOptions, OnFailure
from taskbull.core.validation import check_keywords, check_text, refusal
from taskbull.errors import ConfigurationError, InvalidArguments
from taskbull.observability.provider import current_tracer, in_this_span
from taskbull.queue.handle import BlockingCheck, JobHandle

# Jobs one after the other, each with the result of the one before.


R = TypeVar("R")


class Chain(Generic[R]):
    """Jobs that run one after the other: what `chain(…)` gives. Its handle is the last one's."""

    def __init__(self, last: JobSpec[R]) -> None:
        self._last = last

    def __repr__(self) -> str:
        return f"<chain that ends with {self._last!r}>"

    def delay(self) -> JobHandle[R]:
        """Add the jobs, all or none; from sync code, any thread. See `Task.delay`."""
        return self._last.calling.producer.add(self._last)

    async def adelay(self) -> JobHandle[R]:
        """Add the jobs, all or none; from asyncio or trio. See `Task.delay`."""
        return await self._last.calling.producer.aadd(self._last)

    def job(self) -> JobSpec[R]:
        """Return the last job, which waits for the others: for `app.enqueue`, or as a child."""
        return self._last


def chain(*jobs: *tuple[*tuple[Growing, ...], JobSpec[R]]) -> Chain[R]:
    """Return jobs that run one after the other: `chain(a, b, c)` is c after b after a.

    Each may take the result of the one before with `from_child`. The last is a task's job.
    """
    links = children_of("chain()", jobs, "fail").jobs
    if not links:
        raise ConfigurationError("chain() was given no jobs")
    whole, *rest = links
    for link in rest:
        whole = link.after(Children((whole,), "fail"))
    if not isinstance(whole, JobSpec):
        raise refusal("the last job of chain()", "be made by task.job(…)", whole)
    return Chain(cast("JobSpec[R]", whole))


# Parameters of a task that take what the children of its job return.


class Received:
    """The default of a parameter that the worker fills in: see `from_child`.

    It is not JSON, and never stored.
    """

    def __init__(self, child: str, *, one: bool) -> None:
        self.child = child
        self.one = one

    def __repr__(self) -> str:
        return f"from_{'child' if self.one else 'children'}({self.child})"


@overload
def from_child(task: Source[R]) -> R: ...
@overload
def from_child(task: str) -> Any: ...
def from_child(task: Source[Any] | str) -> Any:
    """Return a default for a parameter: what the job's one child of this task returns.

    A task of another language goes by its name. Where the child failed, and the job runs
    nevertheless, the parameter is None if its annotation allows that.
    """
    return Received(_name("from_child", task), one=True)


@overload
def from_children(task: Source[R]) -> list[R]: ...
@overload
def from_children(task: str) -> list[Any]: ...
def from_children(task: Source[Any] | str) -> Any:
    """Return a default for a parameter: what the job's children of this task return, in order.

    Children that failed are left out.
    """
    return Received(_name("from_children", task), one=False)


def needs_of(binder: Binder) -> Sequence[Need]:
    """Return what a function's parameters take of children."""
    found: list[Need] = []
    for name, parameter in binder.parameters.items():
        default: object = parameter.default
        if isinstance(default, Received):
            found.append(Need(name, default.child, default.one))
    return found


class Receiver:
    """Reads the results of children as one parameter, by its annotation."""

    def __init__(self, task: str, need: Need, read: Callable[[bytes], Any]) -> None:
        self.parameter = need.parameter
        self.child = need.child
        self._task = task
        self._one = need.one
        self._read = read

    def take(self, results: Sequence[bytes]) -> Any:
        """Return the argument; raise `InvalidArguments` if the results do not fit."""
        if not self._one:
            return self._read(b"[" + b",".join(results) + b"]")
        if len(results) == 1:
            return self._read(results[0])
        try:
            if not results:
                return self._read(b"null")
        except InvalidArguments:
            pass
        raise InvalidArguments(
            f"Task {self._task}: argument {self.parameter} takes the result of one child "
            f"{self.child}, and {len(results) or 'none'} of them has one"
        )


def _name(function: str, task: Source[Any] | str) -> str:
    if isinstance(task, str):
        return check_text(f"the task of {function}", task)
    return check_text(f"the task of {function}", getattr(task, "name", task))


# How a call of a task becomes a job: what a task and its variants share.


class Home(Protocol):
    """What a task belongs to: an app or a group."""

    @property
    def producer(self) -> Producer: ...


class TaskCalling:
    """What a task and its variants share: how a call becomes a job."""

    def __init__(self, function: Callable[..., Any], name: str, home: Home) -> None:
        self.name = name
        self._home = home
        self.binder = self.by_hand = Binder(name, function)
        self.blocking = BlockingCheck(f"{name}.delay()", f"await {name}.adelay()")
        self.needs = needs_of(self.binder)
        self.read = self.read_result  # one for all handles
        self.function = function
        """Its parameters are what a job stores."""

    @property
    def producer(self) -> Producer:
        """What adds jobs; `ConfigurationError` if the task's group is not part of an app yet."""
        return self._home.producer

    def spec(
        self, queue: str, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> JobSpec[Any]:
        """Return a job; refuse a call that does not fit."""
        arguments = self.binder.bind(args, kwargs)
        self._check(arguments)
        return JobSpec(queue, NewJob(self.name, arguments, options), self)

    def check_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call by hand that leaves out what only a worker knows."""
        if not (self.needs or self.by_hand.injected):
            return
        given = self.by_hand.given_by_hand(args, kwargs)
        for name in self.by_hand.injected:
            if name not in given:
                raise TypeError(
                    f"{self.name}: a call by hand must give the argument {name}, which a worker "
                    "takes from what the lifespan yields"
                )
        for need in self.needs:
            if need.parameter not in given:
                raise TypeError(
                    f"{self.name}: a call by hand must give the argument {need.parameter}, which a "
                    f"worker takes from the job's {need.child}"
                )

    def __reduce__(self) -> tuple[Any, ...]:  # as its task: by the name in its module
        return _calling_of, (self.function.__module__, self.function.__qualname__)

    def read_result(self, raw: bytes) -> Any:
        """Return a result from its JSON."""
        return self._result_reader(raw)

    @functools.cached_property
    def _check(self) -> Check:
        return argument_check(self.name, self.function, self.binder)

    @functools.cached_property
    def _result_reader(self) -> Callable[[bytes], Any]:
        return result_reader(self.function)  # when first needed: all names are defined by then


def _calling_of(module: str, name: str) -> TaskCalling:
    calling: TaskCalling = attrgetter(name)(import_module(module)).calling
    return calling


# A task: a function whose calls can be jobs.


P = ParamSpec("P")


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

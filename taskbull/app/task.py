"""Tasks, chains of jobs, and parameters that take the results of child jobs.

`Task` is what `@app.task` returns. `Enqueueable` holds the methods that a task shares with its
variants.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from importlib import import_module
from operator import attrgetter
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from msgspec.structs import replace

from taskbull.app import signature
from taskbull.app.producer import JobSpec, Producer
from taskbull.app.settings import CallOptions, TaskSettings, with_call
from taskbull.core import payload
from taskbull.core.celery import TASK, no_attribute
from taskbull.core.groups import CostRule, GroupRule
from taskbull.core.job import (
    Children,
    ExecutionMode,
    Growing,
    Need,
    NewJob,
    Source,
    children_of,
    source_name,
)
from taskbull.core.keys import check_queue_name
from taskbull.core.options import DedupRule, JobOptions, OnFailure, with_dedup_key, with_group
from taskbull.core.validation import check_keywords, refusal
from taskbull.errors import ConfigurationError, InvalidArguments
from taskbull.observability.provider import current_tracer, in_this_span
from taskbull.queue.handle import BlockingCheck, JobHandle
from taskbull.queue.streams import StreamReaders

if TYPE_CHECKING:
    from taskbull.queue.handle import StreamHandle


# Chains: jobs that run in sequence, each with the result of the one before.


R = TypeVar("R")


class Chain(Generic[R]):
    """Jobs that run in sequence, returned by `chain(…)`.

    The handle of a chain is the handle of its last job.
    """

    def __init__(self, last: JobSpec[R]) -> None:
        self._last = last

    def __repr__(self) -> str:
        return f"<chain that ends with {self._last!r}>"

    def delay(self) -> JobHandle[R]:
        """Add all jobs or none, and return the last job's handle. See `Task.delay`."""
        return self._last.calling.producer.add(self._last)

    async def adelay(self) -> JobHandle[R]:
        """Add all jobs or none, and return the last job's handle. See `Task.adelay`."""
        return await self._last.calling.producer.aadd(self._last)

    def job(self) -> JobSpec[R]:
        """Return the last job, which waits for the others.

        Pass it to `app.enqueue`, or use it as a child of another job.
        """
        return self._last


def chain(*jobs: *tuple[*tuple[Growing, ...], JobSpec[R]]) -> Chain[R]:
    """Return a chain: `chain(a, b, c)` runs a, then b, then c.

    A job can take the result of the job before it with `from_child`.

    Args:
        *jobs: Jobs made with `task.job(…)` or `queue.job(…)`. The last one must be a task's job.

    Raises:
        ConfigurationError: If there are no jobs, or the last one is not a task's job.

    Example:
        >>> chain(download.job(url), resize.job(width=200)).delay()
    """
    links = children_of("chain()", jobs, "fail").jobs
    if not links:
        raise ConfigurationError("chain() needs at least one job")
    whole, *rest = links
    for link in rest:
        whole = link.after(Children((whole,), "fail"))
    if not isinstance(whole, JobSpec):
        raise refusal("the last job of chain()", "be created with task.job(…)", whole)
    return Chain(cast("JobSpec[R]", whole))


# Parameters that take the results of child jobs


class Received:
    """Default value that marks a parameter filled in by the worker. See `from_child`.

    It is not JSON and is never stored.
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
    """Declare a parameter that receives the result of the job's one child of this task.

    Use it as the parameter's default. If the child failed and the job runs anyway, the argument is
    None if the annotation allows None. Otherwise the job fails with `InvalidArguments`.

    Args:
        task: The child's task, or its name for a task in another language.

    Example:
        >>> @app.task
        ... async def resize(width: int, path: str = from_child(download)) -> str: ...
    """
    return Received(source_name("from_child", task), one=True)


@overload
def from_children(task: Source[R]) -> list[R]: ...
@overload
def from_children(task: str) -> list[Any]: ...
def from_children(task: Source[Any] | str) -> Any:
    """Declare a parameter that receives the results of the job's children of this task.

    Use it as the parameter's default. The results are in order. Failed children are left out.

    Args:
        task: The children's task, or its name for a task in another language.

    Example:
        >>> @app.task
        ... async def total(counts: list[int] = from_children(count)) -> int:
        ...     return sum(counts)
    """
    return Received(source_name("from_children", task), one=False)


def needs_of(binder: signature.Binder) -> Sequence[Need]:
    """Return the parameters of a function that take results of children."""
    found: list[Need] = []
    for name, parameter in binder.parameters.items():
        default: object = parameter.default
        if isinstance(default, Received):
            found.append(Need(name, default.child, default.one))
    return found


class ChildResultReader:
    """Reads the results of children as one parameter, according to its annotation."""

    def __init__(self, task: str, need: Need, read: Callable[[bytes], Any]) -> None:
        self.parameter = need.parameter
        self.child = need.child
        self._task = task
        self._one = need.one
        self._read = read

    def take(self, results: Sequence[bytes]) -> Any:
        """Return the argument.

        Raises:
            InvalidArguments: If the results do not match the annotation.
        """
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
            f"{self._task}(): argument '{self.parameter}' needs the result of exactly one child "
            f"'{self.child}', got {len(results)} results"
        )


# Converting a call to a job: shared by a task and its variants


class TaskOwner(Protocol):
    """The app or group that a task belongs to."""

    @property
    def producer(self) -> Producer: ...


class TaskCalling:
    """Converts calls of a function to jobs, for a task and all its variants."""

    def __init__(self, function: Callable[..., Any], name: str, home: TaskOwner) -> None:
        self.name = name
        self._home = home
        self.binder = self.by_hand = signature.Binder(name, function)
        self.blocking = BlockingCheck(f"{name}.delay()", f"await {name}.adelay()")
        self.needs = needs_of(self.binder)
        self.read = self.read_result  # One bound method, shared by all handles.
        self.function = function
        """Function whose parameters are the fields of a job's data."""

    @property
    def producer(self) -> Producer:
        """The producer that adds jobs.

        Raises `ConfigurationError` if the task's group is not part of an app yet.
        """
        return self._home.producer

    def spec(
        self, queue: str, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> JobSpec[Any]:
        """Return a job for a call.

        Raises:
            TypeError: If the arguments do not match the signature.
            InvalidArguments: If an argument does not match its annotation.
        """
        arguments = self.binder.bind(args, kwargs)
        self._check(arguments)
        if options.dedup is None and options.group is None:  # Saves a call.
            return JobSpec(queue, NewJob(self.name, arguments, options), self)
        return self.spec_with(queue, options, arguments)

    def spec_with(self, queue: str, options: JobOptions, arguments: dict[str, Any]) -> JobSpec[Any]:
        """Return a job for checked arguments."""
        if options.group is not None:
            options = with_group(options, arguments, self.binder.defaults)
        if options.dedup is not None:
            own = with_dedup_key(options, arguments, self.binder.defaults)
            return JobSpec(
                queue, NewJob(self.name, arguments, own), self, has_task_key=own is not options
            )
        return JobSpec(queue, NewJob(self.name, arguments, options), self)

    def check_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reject a direct call without the arguments that only a worker can fill in."""
        if not (self.needs or self.by_hand.injected):
            return
        given = self.by_hand.given_by_hand(args, kwargs)
        for name in self.by_hand.injected:
            if name not in given:
                raise TypeError(
                    f"{self.name}() missing required argument: '{name}'. Only a worker fills it "
                    "in, with the value of the lifespan"
                )
        for need in self.needs:
            if need.parameter not in given:
                raise TypeError(
                    f"{self.name}() missing required argument: '{need.parameter}'. Only a worker "
                    f"fills it in, with the result of child '{need.child}'"
                )

    def __reduce__(self) -> tuple[Any, ...]:  # Pickle by name in its module, like the task.
        return _calling_of, (self.function.__module__, self.function.__qualname__)

    def read_result(self, raw: bytes) -> Any:
        """Decode a result from JSON."""
        return self._result_reader(raw)

    def result_check(self) -> tuple[frozenset[type], Callable[[bytes], None]] | None:
        """Return the classes of results that fit the annotation, and a check for other results."""
        plainly = signature.plain_results(self.function)
        return (
            None if plainly is None else (plainly, signature.check_of_results(self.name, self.read))
        )

    @functools.cached_property
    def _check(self) -> signature.Check:
        return signature.argument_check(self.name, self.function, self.binder)

    @functools.cached_property
    def _result_reader(self) -> Callable[[bytes], Any]:
        # Resolved on first use, when all names in the annotations are defined.
        return signature.result_reader(self.function)


def _calling_of(module: str, name: str) -> TaskCalling:
    calling: TaskCalling = attrgetter(name)(import_module(module)).calling
    return calling


# Tasks


P = ParamSpec("P")


class Enqueueable(Generic[P, R]):
    """Adds jobs of a task with a fixed set of options.

    An instance never changes. `options` returns a new one.
    """

    def __init__(self, calling: TaskCalling, queue: str, options: JobOptions) -> None:
        self.calling = calling
        self._queue = queue
        self._options = options

    if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, TASK, name)

    @property
    def name(self) -> str:
        """The name of the task, stored with its jobs."""
        return self.calling.name

    @property
    def queue(self) -> str:
        """The queue that jobs are added to."""
        return self._queue

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job that calls the task with these arguments. Blocks.

        Use it in sync code, from any thread. Use `adelay` in async code.

        Raises:
            TypeError: If the arguments do not match the signature.
            InvalidArguments: If an argument does not match its annotation. This is also a
                `TypeError`.
            SerializationError: If an argument cannot be stored as JSON.
            EnqueueError: If Redis is unavailable for longer than the app's `enqueue_timeout`.

        Example:
            >>> job = greet.delay("Ann")
            >>> job.result(timeout=10)
        """
        self.calling.blocking.check()
        return self.calling.producer.add(self._spec(args, kwargs))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job that calls the task with these arguments.

        This is `delay` for asyncio and trio, with the same exceptions.
        """
        return await self.calling.producer.aadd(self._spec(args, kwargs))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R]:
        """Return a job for `app.enqueue`, `after` or `chain`. Nothing is sent.

        Raises:
            TypeError: If the arguments do not match the signature or the annotations.
        """
        spec = self._spec(args, kwargs)
        if current_tracer() is None:
            return spec
        return replace(spec, job=in_this_span(spec.job))

    def options(self, **options: Unpack[CallOptions]) -> Variant[P, R]:
        """Return the task with other options, for one call or for many.

        Args:
            **options: Options that replace the task's: `queue`, `attempts`, `backoff`,
                `error_backoffs`, `timeout`, `expires`, `priority`, `lifo`, `delay`, `eta`,
                `job_id`, `dedup`, `group`, `cost`, `headers`, `on_failure`, `keep_completed` and
                `keep_failed`.

        Raises:
            ConfigurationError: If an option is unknown or invalid.

        Example:
            >>> greet.options(delay=60, attempts=5).delay("Ann")
        """
        check_keywords(f"{self.name}.options()", options, CallOptions)
        queue = options.get("queue", self._queue)
        check_queue_name(queue)
        return self._variant(queue, with_call(self._options, options))

    def after(
        self, *jobs: Growing | Iterable[Growing], on_failure: OnFailure = "fail"
    ) -> Following[P, R]:
        """Return the task for a job that runs after other jobs, its children.

        Jobs and their children form a flow. Children may have children.

        Args:
            *jobs: Jobs made with `task.job(…)` or `queue.job(…)`, or iterables of such jobs.
            on_failure: How the job reacts if one of these children fails.

        Values of `on_failure`:

        - `"fail"`: the job fails as soon as a worker fetches it, without waiting for other
          children.
        - `"ignore"`: the job runs when all children have finished.
          `current_job().failed_children()` returns the failed ones.
        - `"continue"`: the job runs immediately. It can finish only after it has dropped its
          pending children.
        - `"drop"`: the job runs when all children have finished, without a record of the failure.
        - `"wait"`: the job waits until the child is retried successfully, or removed.

        Raises:
            ConfigurationError: If no jobs are given, or one of them is not a job.

        Example:
            >>> report.after(fetch.job(url) for url in urls).delay()
        """
        if not jobs:
            raise ConfigurationError(
                f"{self.name}.after() needs jobs, or an iterable of jobs (which may be empty)"
            )
        children = children_of(f"{self.name}.after()", jobs, on_failure)
        return Following(self.calling, self._queue, self._options, (*self._awaited(), children))

    def read_result(self, raw: bytes) -> R:
        """Decode a result of the task from JSON."""
        result: R = self.calling.read(raw)
        return result

    def _variant(self, queue: str, options: JobOptions) -> Variant[P, R]:
        return Variant(self.calling, queue, options)

    def _awaited(self) -> tuple[Children, ...]:
        return ()

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[Any]:
        return self.calling.spec(self._queue, self._options, args, kwargs)


class Variant(Enqueueable[P, R]):
    """A task with other options, returned by `task.options(…)`."""

    def __repr__(self) -> str:
        return f"<{self.name} with options, in queue {self.queue}>"


class Following(Variant[P, R]):
    """A task whose jobs run after other jobs, returned by `task.after(…)`."""

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
    """A function that can be enqueued as a job, made by `@app.task`.

    Calling a task directly runs the function, without a queue.

    Example:
        >>> @app.task
        ... async def greet(name: str) -> str: ...
        >>> greet.delay("Ann")  # in a worker
        >>> await greet("Ann")  # here
    """

    __name__: str
    __qualname__: str

    is_remote = False
    """True if another program runs the task."""

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
        return self.function.__qualname__  # Pickled by name in its module, like the function.

    @property
    def location(self) -> str:
        """The file and line of the function."""
        return signature.location_of(self.function)

    @property
    def is_async(self) -> bool:
        """True if the function is an `async def`."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    @property
    def execution_mode(self) -> ExecutionMode:
        """Place where the function runs in a worker: event loop, thread or process."""
        if self.settings.process:
            return ExecutionMode.PROCESS
        return ExecutionMode.LOOP if self.is_async else ExecutionMode.THREAD

    def reader(self) -> signature.Read:
        """Return a function that reads a job's data as arguments.

        Raises:
            ConfigurationError: If an annotation cannot be resolved or converted from JSON.
        """
        name, calling = self.settings.name, self.calling
        return signature.arguments_reader(
            name, calling.function, calling.binder, self.settings.extra
        )

    def check_data(self, data: bytes) -> None:
        """Check a job's JSON data against the function's parameters.

        Raises:
            InvalidArguments: If the data does not match.
        """
        self.reader()(data)

    def receivers(self) -> list[ChildResultReader]:
        """Return the readers for parameters that take results of children."""
        name, function = self.settings.name, self.function
        return [
            ChildResultReader(
                name, need, signature.parameter_reader(name, function, need.parameter)
            )
            for need in self.calling.needs
        ]

    def caller(self) -> Callable[..., Any]:
        """Return a form of the function that takes all its arguments by name."""
        return signature.by_keyword(self.function, self.calling.by_hand)

    @property
    def injected(self) -> tuple[str, ...]:
        """The parameters that take the lifespan's value."""
        return self.calling.by_hand.injected

    def check_resources(self, value: object) -> None:
        """Check the lifespan's value against the parameters that take it.

        Raises:
            ConfigurationError: If the value does not match an annotation.
        """
        signature.check_resources(self.name, self.function, self.injected, value)


class AsyncTask(Task[P, R]):
    """A task made from an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function directly."""
        self.calling.check_given(args, kwargs)
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class SyncTask(Task[P, R]):
    """A task made from a plain `def`, which a worker runs in a thread or a pool process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly."""
        self.calling.check_given(args, kwargs)
        result: R = self.function(*args, **kwargs)
        return result


class RemoteTask(Task[P, R]):
    """A task that another program runs, made by `@app.remote`."""

    is_remote = True

    if not TYPE_CHECKING:  # Type checkers reject the call.

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Raise `TypeError`, because the function is not here."""
            raise TypeError(
                f"{self.name}() cannot be called directly: it is a remote task, which another "
                f"program runs. Use {self.name}.delay(…) or {self.name}.adelay(…)"
            )


def check_rules(settings: TaskSettings, binder: signature.Binder) -> None:
    """Check that the task's deduplication key, group and cost use parameters of the function.

    Raises:
        ConfigurationError: If it names something else.
    """
    options = settings.options
    used: list[tuple[str, str]] = []
    if isinstance(dedup := cast("object", options.dedup), DedupRule):
        used += (("dedup", name) for name in dedup.names)
    if isinstance(group := cast("object", options.group), GroupRule):
        used += (("group_by", name) for name in group.names)
    if isinstance(cost := cast("object", options.cost), CostRule):
        used += (("cost", name) for name in cost.names)
    if binder.catch_all is not None:
        return
    for option, name in used:
        if name not in binder.parameters:
            raise ConfigurationError(
                f"{option} of task {settings.name!r} uses {name!r}, which is not one of its "
                f"parameters ({', '.join(binder.parameters) or 'it has none'})"
            )


def make_task(
    function: Callable[..., Any], settings: TaskSettings, home: TaskOwner
) -> Task[..., Any]:
    """Return an `AsyncTask` or a `SyncTask` for the function."""
    calling = TaskCalling(function, settings.name, home)
    if inspect.iscoroutinefunction(function):
        return AsyncTask[..., Any](function, settings, calling)
    return SyncTask[..., Any](function, settings, calling)


class RemoteDecorator(Protocol):
    """Decorator returned by `@app.remote(…)` with arguments."""

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
    ) -> RemoteTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> RemoteTask[P, R]: ...


# Tasks whose functions yield: their types, settings and decorators.


I = TypeVar("I")  # noqa: E741 - an item

_ITERATORS: Final = frozenset(
    {AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator}
)

Reduce = Callable[[list[Any]], Any]

# Annotations


def is_generator(function: object) -> bool:
    """Return True if a function yields."""
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def item_kind(function: Callable[..., Any]) -> Any:
    """Return the type of the items that a function yields, or Any."""
    hint = _return_hint(function)
    arguments = get_args(hint)
    return arguments[0] if get_origin(hint) in _ITERATORS and arguments else Any


def result_kind(function: Callable[..., Any], reduce: Reduce | None) -> Any:
    """Return the type of the result that is made from a job's items, or Any."""
    if reduce is None:
        return None
    if reduce is list:
        return GenericAlias(list, (item_kind(function),))
    text = getattr(reduce, "__self__", None)
    if isinstance(text, str | bytes) and reduce == text.join:
        return type(text)
    return int if reduce is len else _return_hint(reduce)


def _return_hint(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function, include_extras=True).get("return", Any)
    except Exception:  # noqa: BLE001 - user code: annotations may contain anything
        return Any


def _reader(kind: Any) -> Callable[[bytes], Any]:
    try:
        return payload.decode if kind is Any else signature.converter(kind)
    except Exception:  # noqa: BLE001 - user code: annotations may contain anything
        return payload.decode


class StreamCalling(TaskCalling):
    """Converts calls of a function that yields to jobs, and decodes their items."""

    def __init__(
        self, function: Callable[..., Any], name: str, home: TaskOwner, reduce: Reduce | None
    ) -> None:
        super().__init__(function, name, home)
        self._reduce = reduce
        self.read = StreamReaders(self.read_result, self._read_item)
        self.blocking_stream = BlockingCheck(f"{name}.stream()", f"{name}.astream()")

    @functools.cached_property
    def _result_reader(self) -> Callable[[bytes], Any]:
        return _reader(result_kind(self.function, self._reduce))

    @functools.cached_property
    def _item_reader(self) -> Callable[[bytes], Any]:
        return _reader(item_kind(self.function))

    def _read_item(self, raw: bytes) -> Any:
        return self._item_reader(raw)

    def result_check(self) -> None:
        """Return None, because results are not checked."""
        return


# Tasks


class StreamEnqueueable(Enqueueable[P, R], Generic[P, R, I]):
    """Adds jobs of a task that yields, and follows them."""

    if TYPE_CHECKING:

        def delay(self, *args: P.args, **kwargs: P.kwargs) -> StreamHandle[R, I]: ...

        async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> StreamHandle[R, I]: ...

        def options(self, **options: Unpack[CallOptions]) -> StreamVariant[P, R, I]: ...

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Generator[I, None, None]:
        """Enqueue a job with these arguments, and follow the items that it yields. Blocks.

        To get a handle as well, or to notice retries, use `delay` and then `stream` of the handle.

        Raises:
            TypeError: If the arguments do not match the signature.
            EnqueueError: If Redis is unavailable for longer than the app's `enqueue_timeout`.
            JobFailed: After the last item, if the job failed.

        Example:
            >>> for text in complete.stream("Why is the sky blue?"):
            ...     print(text, end="")
        """
        cast("StreamCalling", self.calling).blocking_stream.check()
        return self.calling.producer.add(self._spec(args, kwargs)).stream()

    async def astream(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[I, None]:
        """Enqueue a job with these arguments, and follow the items that it yields.

        This is `stream` for asyncio and trio. The job is enqueued when the iteration starts.

        Example:
            >>> async for text in complete.astream("Why is the sky blue?"):
            ...     print(text, end="")
        """
        job = await self.calling.producer.aadd(self._spec(args, kwargs))
        async with aclosing(job.astream()) as items:
            async for item in items:
                yield item

    def _variant(self, queue: str, options: JobOptions) -> Variant[P, R]:
        return StreamVariant[P, R, I](self.calling, queue, options)


class StreamVariant(StreamEnqueueable[P, R, I], Variant[P, R]):
    """A task that yields with other options, returned by `task.options(…)`."""


class StreamTask(StreamEnqueueable[P, R, I], Task[P, R]):
    """A task made from a function that yields.

    Its jobs stream what they yield. Calling the task directly runs the function, without a queue.
    """


class AsyncStreamTask(StreamTask[P, R, I]):
    """A task made from an `async def` that yields."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[I]:
        """Call the function directly."""
        self.calling.check_given(args, kwargs)
        items: AsyncIterator[I] = self.function(*args, **kwargs)
        return items


class SyncStreamTask(StreamTask[P, R, I]):
    """A task made from a plain `def` that yields, which a worker runs in a thread or a process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[I]:
        """Call the function directly."""
        self.calling.check_given(args, kwargs)
        items: Iterator[I] = self.function(*args, **kwargs)
        return items


def make_stream_task(
    function: Callable[..., Any], settings: TaskSettings, home: TaskOwner
) -> StreamTask[..., Any, Any]:
    """Return an `AsyncStreamTask` or a `SyncStreamTask` for the function."""
    reduce = list if settings.stream is None else settings.stream.reduce
    calling = StreamCalling(function, settings.name, home, reduce)
    if inspect.isasyncgenfunction(function):
        return AsyncStreamTask[..., Any, Any](function, settings, calling)
    return SyncStreamTask[..., Any, Any](function, settings, calling)


class Decorator(Protocol):
    """Decorator returned by `@app.task(…)` with arguments."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, AsyncIterator[I]], /
    ) -> AsyncStreamTask[P, list[I], I]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Iterator[I]], /
    ) -> SyncStreamTask[P, list[I], I]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class ReducingDecorator(Protocol[R]):
    """Decorator returned by `@app.task(reduce=…)`."""

    @overload
    def __call__(self, function: Callable[P, AsyncIterator[I]], /) -> AsyncStreamTask[P, R, I]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[I]], /) -> SyncStreamTask[P, R, I]: ...

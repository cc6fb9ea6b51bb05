"""Batch tasks: one job per item, and one function call for many jobs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from inspect import Parameter
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from msgspec import Struct

from taskbull.app.producer import JobSpec
from taskbull.app.settings import TaskSettings
from taskbull.app.signature import (
    Binder,
    ConversionError,
    Extra,
    FromLifespan,
    arguments_reader,
    check_of_results,
    converter,
    location_of,
)
from taskbull.app.task import Task, TaskCalling, TaskOwner
from taskbull.core import payload
from taskbull.core.options import JobOptions
from taskbull.core.validation import Duration, check_int, is_pydantic_model, seconds
from taskbull.errors import ConfigurationError, InvalidArguments

# Items


_LISTS = frozenset({list, Sequence, Collection, Iterable})
_UNIONS = (Union, types.UnionType)


class Items:
    """Describes the items of a batch task and how a job stores one.

    An item with fields is the job's data. Any other item is stored under the parameter's name, so
    the data is always an object.
    """

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task = task
        self._function = function
        self.parameter = _list_parameter(task, function)
        self.kind = _item_kind(task, function, self.parameter)
        self.have_fields = _has_fields(self.kind)
        self.signature = self._stand_in()
        """Function with the parameters that a job stores. It is never called."""

    def from_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an item, as a job stores them.

        Raises:
            TypeError: If the call does not pass exactly one item or its fields.
            InvalidArguments: If the item does not match the annotation.
        """
        if len(args) + bool(kwargs) != 1:
            raise TypeError(
                f"{self._task}() takes one item, or the fields of the item as keyword arguments"
            )
        item = args[0] if args else kwargs
        raw = payload.encode(item, "data")
        try:
            self._convert(raw)
        except ConversionError as misfit:
            raise InvalidArguments(f"{self._task}(): {_problem(misfit)}") from None
        fields: dict[str, Any] = payload.decode(raw)
        return fields

    def reader(self, extra: Extra) -> Callable[[bytes], Any]:
        """Return a function that reads a job's data as an item."""
        if self.have_fields:
            return self._read
        name = self.parameter
        read = arguments_reader(
            self._task, self.signature, Binder(self._task, self.signature), extra
        )
        return lambda raw: read(raw)[name]

    def result_reader(self) -> Callable[[bytes], Any]:
        """Return a function that reads one item's result according to the return annotation.

        Without an annotation, or if JSON cannot represent its type, the result is the JSON value.
        """
        try:
            return converter(self.result_kind())
        except Exception:  # noqa: BLE001 - user code: annotations may contain anything
            return payload.decode

    def result_kind(self) -> Any:
        """Return the type of one item's result according to the return annotation."""
        hint = get_type_hints(self._function, include_extras=True).get("return", list[Any])
        return _without_errors(_element(hint))

    def _read(self, raw: bytes) -> Any:
        try:
            return self._convert(raw)
        except ConversionError as misfit:
            raise InvalidArguments(f"{self._task}(): {_problem(misfit)}") from None

    @functools.cached_property
    def _convert(self) -> Callable[[bytes], Any]:
        try:
            return converter(self.kind)
        except TypeError as error:
            raise ConfigurationError(
                f"The items of batch task '{self._task}' ({location_of(self._function)}) are "
                f"annotated {self.kind!r}, which cannot be read from JSON: {error}"
            ) from error

    def _stand_in(self) -> Callable[..., Any]:
        if self.have_fields:
            parameter = Parameter("fields", Parameter.VAR_KEYWORD)
        else:
            parameter = Parameter(self.parameter, Parameter.POSITIONAL_OR_KEYWORD)
        function: Any = _copy(self._function, {self.parameter: self.kind})
        function.__signature__ = inspect.Signature([parameter])
        return cast("Callable[..., Any]", function)


def _copy(function: Callable[..., Any], annotations: dict[str, Any]) -> types.FunctionType:
    """Return a copy of a function at the same source location, with other annotations."""
    original = cast("types.FunctionType", inspect.unwrap(function))
    code, name, closure = original.__code__, original.__name__, original.__closure__
    copy = types.FunctionType(code, original.__globals__, name, closure=closure)
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    copy.__annotations__ = annotations
    return copy


def _list_parameter(task: str, function: Callable[..., Any]) -> str:
    """Return the only parameter that is not injected."""
    parameters = inspect.signature(function).parameters.values()
    own = [each for each in parameters if not isinstance(each.default, FromLifespan)]
    variable = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    if len(own) != 1 or own[0].default is not Parameter.empty or own[0].kind in variable:
        raise ConfigurationError(
            f"'{task}' ({location_of(function)}) cannot be a batch task: it must have one "
            "parameter without a default, the list of items. Others must use from_lifespan()"
        )
    return own[0].name


def _item_kind(task: str, function: Callable[..., Any], parameter: str) -> Any:
    annotation = inspect.unwrap(function).__annotations__.get(parameter, list)
    try:
        hints = get_type_hints(_copy(function, {parameter: annotation}), include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"Cannot resolve the annotation of '{parameter}' of batch task '{task}' "
            f"({location_of(function)}): {type(error).__name__}: {error}. Adding a job needs the "
            "type of an item: import it before the task, outside of `if TYPE_CHECKING:`"
        ) from error
    hint = hints[parameter]
    if (get_origin(hint) or hint) not in _LISTS:
        raise ConfigurationError(
            f"Parameter '{parameter}' of batch task '{task}' ({location_of(function)}) must be "
            f"annotated as a list of items, such as list[str], not {hint!r}"
        )
    return _element(hint)


def _element(hint: Any) -> Any:
    return next(iter(get_args(hint)), Any)


def _without_errors(hint: Any) -> Any:
    """Return the result type without exception classes."""
    if get_origin(hint) not in _UNIONS:
        return hint
    kinds = [kind for kind in get_args(hint) if not _is_error(kind)]
    return Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - known at run time only


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _has_fields(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _has_fields(get_args(hint)[0])
    if get_origin(hint) in _UNIONS:
        return all(map(_has_fields, get_args(hint)))
    kind: Any = get_origin(hint) or hint
    if not isinstance(kind, type):
        return False
    return _is_class_with_fields(cast("type[Any]", kind))


def _is_class_with_fields(kind: type[Any]) -> bool:
    if issubclass(kind, Struct):
        return not kind.__struct_config__.array_like
    if is_pydantic_model(kind):
        return not getattr(kind, "__pydantic_root_model__", False)
    return is_typeddict(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


def _problem(misfit: ConversionError) -> str:
    return f"field '{misfit.path}' {misfit.problem}" if misfit.path else f"an item {misfit.problem}"


# Batch tasks


T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class BatchSettings(Struct, frozen=True):
    """Size of a call, seconds that its first job waits, and number of parallel calls."""

    size: int
    wait: float
    parallel: int


def batch_settings(size: int, wait: Duration, parallel: int) -> BatchSettings:
    """Return validated batch settings.

    Raises:
        ConfigurationError: If a value is invalid.
    """
    check_int("size", size, least=1)
    check_int("parallel", parallel, least=1)
    return BatchSettings(size, seconds("wait", wait), parallel)


class BatchCalling(TaskCalling):
    """Converts calls with one item to jobs."""

    def __init__(self, function: Callable[..., Any], name: str, home: TaskOwner) -> None:
        self.items = Items(name, function)
        super().__init__(self.items.signature, name, home)
        self.by_hand = Binder(name, function)

    def spec(
        self, queue: str, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> JobSpec[Any]:
        """Return a job for one item."""
        if not self.items.have_fields:
            return super().spec(queue, options, args, kwargs)
        return self.spec_with(queue, options, self.items.from_call(args, kwargs))

    def result_check(self) -> tuple[frozenset[type], Callable[[bytes], None]] | None:
        """Return a check for the results of items."""
        if self._result_reader is payload.decode:
            return None
        return frozenset(), check_of_results(self.name, self.read)

    @functools.cached_property
    def _result_reader(self) -> Callable[[bytes], Any]:
        return self.items.result_reader()


class BatchTask(Task[[T], R], Generic[T, P, R]):
    """A function that takes a list of items, made by `@app.batch_task`.

    `delay`, `adelay` and `job` take one item, and the job's result is the result for that item.
    Calling the task directly runs the function with a list.
    """

    calling: BatchCalling

    def __init__(
        self,
        function: Callable[..., Any],
        settings: TaskSettings,
        home: TaskOwner,
        batch: BatchSettings,
    ) -> None:
        super().__init__(function, settings, BatchCalling(function, settings.name, home))
        self.batch = batch

    def item_reader(self) -> Callable[[bytes], Any]:
        """Return a function that reads a job's data as an item."""
        return self.calling.items.reader(self.settings.extra)

    def check_data(self, data: bytes) -> None:
        """Check that a job's JSON data is a valid item.

        Raises:
            InvalidArguments: If the data does not match.
        """
        self.item_reader()(data)


class AsyncBatchTask(BatchTask[T, P, R]):
    """A batch task made from an `async def`."""

    def __call__(
        self, items: list[T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Sequence[R | Exception]]:
        """Call the function directly."""
        self.calling.check_given((items, *args), kwargs)
        coroutine: Coroutine[Any, Any, Sequence[R | Exception]] = self.function(
            items, *args, **kwargs
        )
        return coroutine


class SyncBatchTask(BatchTask[T, P, R]):
    """A batch task made from a plain `def`, which a worker runs in a thread or a pool process."""

    def __call__(
        self, items: list[T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Sequence[R | Exception]:
        """Call the function directly."""
        self.calling.check_given((items, *args), kwargs)
        results: Sequence[R | Exception] = self.function(items, *args, **kwargs)
        return results


def make_batch_task(
    function: Callable[..., Any], settings: TaskSettings, home: TaskOwner, batch: BatchSettings
) -> BatchTask[Any, ..., Any]:
    """Return an `AsyncBatchTask` or a `SyncBatchTask` for the function."""
    if inspect.iscoroutinefunction(function):
        return AsyncBatchTask[Any, ..., Any](function, settings, home, batch)
    return SyncBatchTask[Any, ..., Any](function, settings, home, batch)


def is_batch(task: Task[..., Any]) -> TypeGuard[BatchTask[Any, ..., Any]]:
    """Return True if a task is a batch task."""
    return isinstance(task, BatchTask)


class BatchDecorator(Protocol):
    """Decorator returned by `@app.batch_task(…)`."""

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[T], P], Coroutine[Any, Any, Sequence[R | Exception]]],
        /,
    ) -> AsyncBatchTask[T, P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Sequence[R | Exception]], /
    ) -> SyncBatchTask[T, P, R]: ...

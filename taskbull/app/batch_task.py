"""A batch task: one job for each item, and one call of the function for many jobs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeGuard, TypeVar, overload

from msgspec import Struct

from taskbull.app.batch_items import Items
from taskbull.app.binding import Binder
from taskbull.app.calling import Home, TaskCalling
from taskbull.app.producer import JobSpec
from taskbull.app.settings import TaskSettings
from taskbull.app.task import Task
from taskbull.core.checks import check_int
from taskbull.core.durations import Duration, seconds
from taskbull.core.job import NewJob
from taskbull.core.options import JobOptions

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class BatchSettings(Struct, frozen=True):
    """How many jobs of a task are called at once; for how long the first waits, in seconds."""

    size: int
    wait: float
    parallel: int


def batch_settings(size: int, wait: Duration, parallel: int) -> BatchSettings:
    """Return the settings that a user gave; refuse what is not valid."""
    check_int("size", size, least=1)
    check_int("parallel", parallel, least=1)
    return BatchSettings(size, seconds("wait", wait), parallel)


class BatchCalling(TaskCalling):
    """How a call with one item becomes a job."""

    def __init__(self, function: Callable[..., Any], name: str, home: Home) -> None:
        self.items = Items(name, function)
        super().__init__(self.items.signature, name, home)
        self.by_hand = Binder(name, function)

    def spec(
        self, queue: str, options: JobOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> JobSpec[Any]:
        """Return a job for one item."""
        if not self.items.have_fields:
            return super().spec(queue, options, args, kwargs)
        return JobSpec(queue, NewJob(self.name, self.items.from_call(args, kwargs), options), self)

    @functools.cached_property
    def _result_reader(self) -> Callable[[bytes], Any]:
        return self.items.result_reader()


class BatchTask(Task[[T], R], Generic[T, P, R]):
    """A function that takes a list of items, made by `@app.batch_task`. Called, it is that.

    `delay`, `adelay` and `job` take one item; the job's result is that of its item.
    """

    calling: BatchCalling

    def __init__(
        self,
        function: Callable[..., Any],
        settings: TaskSettings,
        home: Home,
        batch: BatchSettings,
    ) -> None:
        super().__init__(function, settings, BatchCalling(function, settings.name, home))
        self.batch = batch

    def item_reader(self) -> Callable[[bytes], Any]:
        """Prepare what reads the data of a job as an item."""
        return self.calling.items.reader(self.settings.extra)

    def check_data(self, data: bytes) -> None:
        """Refuse the data of a job, as JSON, that is not an item."""
        self.item_reader()(data)


class AsyncBatchTask(BatchTask[T, P, R]):
    """A batch task made of an `async def`."""

    def __call__(
        self, items: list[T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Sequence[R | Exception]]:
        """Call the function itself, here and now."""
        self.calling.check_given((items, *args), kwargs)
        coroutine: Coroutine[Any, Any, Sequence[R | Exception]] = self.function(
            items, *args, **kwargs
        )
        return coroutine


class SyncBatchTask(BatchTask[T, P, R]):
    """A batch task made of a plain `def`, which a worker runs in a thread or in a process."""

    def __call__(
        self, items: list[T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Sequence[R | Exception]:
        """Call the function itself, here and now."""
        self.calling.check_given((items, *args), kwargs)
        results: Sequence[R | Exception] = self.function(items, *args, **kwargs)
        return results


def make_batch_task(
    function: Callable[..., Any], settings: TaskSettings, home: Home, batch: BatchSettings
) -> BatchTask[Any, ..., Any]:
    """Return the kind of batch task that fits the function."""
    if inspect.iscoroutinefunction(function):
        return AsyncBatchTask[Any, ..., Any](function, settings, home, batch)
    return SyncBatchTask[Any, ..., Any](function, settings, home, batch)


def is_batch(task: Task[..., Any]) -> TypeGuard[BatchTask[Any, ..., Any]]:
    """Return whether a task is a batch task."""
    return isinstance(task, BatchTask)


class BatchDecorator(Protocol):
    """Makes a batch task of a function: what `@app.batch_task(…)` gives."""

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

"""Turn one function into an async method of one class and a sync method of another.

    class Operations:
        @reads
        def count(self) -> Operation[int]:
            return count_jobs(self.keys)

    class Queue(Operations, Awaited): ...       # await queue.count()
    class SyncQueue(Operations, Blocking): ...  # queue.count()

The function returns the Redis operation, and the class's `_run` executes it. Type checkers, editors
and `help()` see the function's signature, defaults and docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from taskbull.scripts.call import AnySteps, Operation, again

_RESULT = re.compile(r"(?:Operation|AnySteps)\[(.*)\]")

P = ParamSpec("P")
T = TypeVar("T")


class Awaited:
    """Base of classes whose operations are coroutines."""

    async def _run(self, operation: Any) -> Any:
        raise NotImplementedError


class Blocking:
    """Base of classes whose operations block and return their results."""

    def _run(self, operation: Any) -> Any:
        raise NotImplementedError


class Planned:
    """Base of classes whose operations are values that the caller runs."""


class Method(Generic[P, T]):
    """Descriptor that becomes an async, a sync or a plain method, depending on its owner."""

    def __init__(
        self, function: Callable[Concatenate[Any, P], Operation[T] | AnySteps[T]], *, repeat: bool
    ) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._repeat = repeat
        self._made: dict[type, Callable[..., Any]] = {}

    @overload
    def __get__(
        self, instance: None, owner: type[Awaited]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(
        self, instance: None, owner: type[Blocking]
    ) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(
        self, instance: Awaited, owner: type[Awaited]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: Blocking, owner: type[Blocking]) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Planned, owner: type[Planned]) -> Callable[P, Operation[T]]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        method = self._made.get(owner)
        if method is None:
            method = self._made[owner] = self._make(owner)
        return method if instance is None else method.__get__(instance, owner)

    def _make(self, owner: type) -> Callable[..., Any]:
        function, repeat = self._function, self._repeat
        if issubclass(owner, Awaited):

            @wraps(function)
            async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
                operation: Any = function(self, *args, **kwargs)
                return await self._run(again(operation) if repeat else operation)

            return _described(awaited, owner)
        if issubclass(owner, Blocking):

            @wraps(function)
            def blocking(self: Any, *args: Any, **kwargs: Any) -> Any:
                operation: Any = function(self, *args, **kwargs)
                return self._run(again(operation) if repeat else operation)

            return _described(blocking, owner)
        return function


def reads(function: Callable[Concatenate[Any, P], Operation[T]]) -> Method[P, T]:
    """Decorate a function that only reads. It is retried until Redis replies."""
    return Method(function, repeat=True)


def writes(function: Callable[Concatenate[Any, P], Operation[T]]) -> Method[P, T]:
    """Decorate a function that changes data. It is never sent twice."""
    return Method(function, repeat=False)


def server_operation(function: Callable[Concatenate[Any, P], AnySteps[T]]) -> Method[P, T]:
    """Decorate a function of a server, which runs it with its own rules for retries."""
    return Method(function, repeat=False)


def _described(method: Callable[..., Any], owner: type) -> Callable[..., Any]:
    """Set the result type that `help` and `inspect` show, instead of the operation type."""
    method.__qualname__ = f"{owner.__qualname__}.{method.__name__}"
    result = _RESULT.sub(r"\1", method.__annotations__["return"])
    method.__annotations__ = {**method.__annotations__, "return": result}
    signature = inspect.signature(method).replace(return_annotation=result)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method

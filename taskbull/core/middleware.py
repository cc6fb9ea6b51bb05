"""Middleware around task functions, and the context variable of the running job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar


class Running(Protocol):
    """The attributes of the running job that log lines and new jobs use."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def headers(self) -> dict[str, str]: ...


current: ContextVar[Running] = ContextVar("taskbull_current_job")
"""The running job. It is set for all code that a handler calls, including in worker threads."""


# Middleware: layers around a handler that can inspect the job and change the result.


J = TypeVar("J")
R = TypeVar("R")

CallNext: TypeAlias = Callable[[J], Awaitable[Any]]
"""The next layer, or the handler itself."""

Middleware: TypeAlias = Callable[[J, CallNext[J]], Awaitable[Any]]
"""`async def layer(job, call_next)`. It returns the result, usually `await call_next(job)`."""

PlainMiddleware: TypeAlias = Callable[[J, Callable[[J], Any]], Any]
"""`def layer(job, call_next)` around a sync function. Here, `call_next(job)` is the result."""


def compose(
    layers: Sequence[Callable[[J, Callable[[J], R]], R]], handler: Callable[[J], R]
) -> Callable[[J], R]:
    """Return the handler wrapped in layers, the first one outermost."""
    for layer in reversed(layers):
        handler = _around(layer, handler)
    return handler


def _around(
    layer: Callable[[J, Callable[[J], R]], R], call_next: Callable[[J], R]
) -> Callable[[J], R]:
    def call(job: J) -> R:
        return layer(job, call_next)

    return call

"""The job that is running here, for those who know nothing of workers: log lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

# The job that is running here, for those who know nothing of workers: log lines.


class Running(Protocol):
    """The running job, as log lines name it."""

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


current: ContextVar[Running] = ContextVar("taskbull_current_job")
"""Set while a handler runs: for all that it calls, in the worker's threads, too."""


# The onion around a handler: each layer may look at the job, and change what comes back.


J = TypeVar("J")
R = TypeVar("R")

CallNext: TypeAlias = Callable[[J], Awaitable[Any]]
"""What is further inside: the next layer, or the handler itself."""

Middleware: TypeAlias = Callable[[J, CallNext[J]], Awaitable[Any]]
"""`async def layer(job, call_next)` gives the result, mostly that of `await call_next(job)`."""

PlainMiddleware: TypeAlias = Callable[[J, Callable[[J], Any]], Any]
"""`def layer(job, call_next)`, around a plain function: there `call_next(job)` is the result."""


def compose(
    layers: Sequence[Callable[[J, Callable[[J], R]], R]], handler: Callable[[J], R]
) -> Callable[[J], R]:
    """Put layers around a handler, the first one outermost."""
    for layer in reversed(layers):
        handler = _around(layer, handler)
    return handler


def _around(
    layer: Callable[[J, Callable[[J], R]], R], call_next: Callable[[J], R]
) -> Callable[[J], R]:
    def call(job: J) -> R:
        return layer(job, call_next)

    return call

"""The onion around a handler: each layer may look at the job, and change what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

J = TypeVar("J")

CallNext: TypeAlias = Callable[[J], Awaitable[Any]]
"""What is further inside: the next layer, or the handler itself."""

Middleware: TypeAlias = Callable[[J, CallNext[J]], Awaitable[Any]]
"""`async def layer(job, call_next)` gives the result, mostly that of `await call_next(job)`."""


def compose(layers: Sequence[Middleware[J]], handler: CallNext[J]) -> CallNext[J]:
    """Put layers around a handler, the first one outermost."""
    for layer in reversed(layers):
        handler = _around(layer, handler)
    return handler


def _around(layer: Middleware[J], call_next: CallNext[J]) -> CallNext[J]:
    def call(job: J) -> Awaitable[Any]:
        return layer(job, call_next)

    return call

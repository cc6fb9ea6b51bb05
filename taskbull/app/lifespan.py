"""What surrounds an app's workers: one async context manager of the user's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from taskbull.core.checks import refusal

LifespanFunction: TypeAlias = Callable[..., AbstractAsyncContextManager[Any] | AsyncIterator[Any]]
"""An async generator that yields once, or what gives an async context manager."""

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""One form for all ways to write one; what it yields is given to tasks."""


def lifespan(function: LifespanFunction, app: object) -> Lifespan:
    """Return one form for all ways to write a lifespan; the function takes the app, or nothing."""
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise refusal(
            "app.lifespan", "be an async generator or an async context manager function", function
        )
    enter: Callable[..., Any] = function
    if inspect.isasyncgenfunction(function):
        enter = asynccontextmanager(function)
    parameters = inspect.signature(function).parameters
    match len(parameters):
        case 0:
            return enter
        case 1:
            return lambda: enter(app)
        case _:
            raise refusal("app.lifespan", "take the app or nothing", function)

"""Middleware that an app runs around its jobs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeAlias

from taskbull.core.middleware import Middleware, PlainMiddleware
from taskbull.core.validation import refusal

if TYPE_CHECKING:
    from taskbull.worker.running_job import RunningJob


JobMiddleware: TypeAlias = "Middleware[RunningJob]"
PlainJobMiddleware: TypeAlias = "PlainMiddleware[RunningJob]"


class Layers:
    """The middleware around jobs, outermost first."""

    def __init__(self) -> None:
        self.awaited: list[JobMiddleware] = []
        """Middleware around each job, in the event loop."""
        self.plain: list[PlainJobMiddleware] = []
        """Middleware around each plain function, in its thread, inside all async middleware."""

    def add(self, layer: JobMiddleware | PlainJobMiddleware) -> None:
        """Add middleware inside the existing middleware of the same kind.

        Raises:
            ConfigurationError: If it is not a function with the parameters `job` and `call_next`.
        """
        if not _is_layer(layer):
            raise refusal(
                "app.middleware", "be a def or async def that takes job, call_next", layer
            )
        if inspect.iscoroutinefunction(layer):
            self.awaited.append(layer)
        else:
            self.plain.append(layer)


def _is_layer(layer: object) -> bool:
    if not inspect.isfunction(layer) and not inspect.ismethod(layer):
        return False
    if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
        return False
    try:
        inspect.signature(layer).bind("job", "call_next")
    except TypeError:
        return False
    return True

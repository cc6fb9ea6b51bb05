"""How a worker runs a job: which function, called where, and by which rules for its errors."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from msgspec import Struct

from taskbull.core.checks import refusal
from taskbull.core.job import Job
from taskbull.core.middleware import Middleware
from taskbull.core.retry import NO_POLICY, RetryPolicy
from taskbull.core.site import Site
from taskbull.worker.batch import BatchRules
from taskbull.worker.running_job import RunningJob

Handler: TypeAlias = Callable[[RunningJob], Awaitable[Any]]
"""Runs a job and returns its result, which must be JSON."""

SyncHandler: TypeAlias = Callable[[RunningJob], Any]


class Route(Struct, frozen=True, dict=True):
    """How the jobs of a task are run."""

    function: Callable[[Any], Any]
    """Called with the job; a `Handler` or `SyncHandler`."""
    policy: RetryPolicy = NO_POLICY
    timeout: float | None = None
    """Seconds that one attempt may take; a job's own time wins."""
    site: Site = Site.LOOP
    """Where the function is called: one that blocks must not be called in the event loop."""
    grace: float = 5.0
    """Seconds that the function has to end when its process is told to."""
    layers: Sequence[Middleware[RunningJob]] = ()
    """What surrounds the call, in the event loop; the first one is outermost."""
    batch: BatchRules | None = None
    """How jobs are gathered for one call, if that takes many: then the function is called with a
    `Batch`, and returns one result for each job. The layers surround each job nevertheless."""

    @cached_property
    def is_awaited(self) -> bool:
        """Whether the function is awaited as it is: in the event loop, with nothing around it."""
        return self.site is Site.LOOP and self.batch is None and not self.layers

    @cached_property
    def is_threaded(self) -> bool:
        """Whether the function is called in a thread, with nothing around it."""
        return self.site is Site.THREAD and self.batch is None and not self.layers


Resolve: TypeAlias = Callable[[Job], Route]
"""Returns how a job is to be run; what it raises is the job's failure."""


def always(handler: Handler | SyncHandler | None, policy: RetryPolicy) -> Resolve:
    """Resolve every job to one function, which runs in a thread unless it is an `async def`."""
    if not callable(handler):
        raise refusal("handler", "be a function that takes the job", handler)
    # An object with an `async def __call__` is as good as a function.
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    )
    route = Route(handler, policy, site=Site.LOOP if is_async else Site.THREAD)
    return lambda _: route

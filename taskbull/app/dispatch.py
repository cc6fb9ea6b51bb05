"""From a job to the call of its task's function: what an app gives to its workers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeAlias

from taskbull.app.registry import Registry
from taskbull.app.task import Task
from taskbull.app.unclaimed import Unclaimed
from taskbull.core.job import Job
from taskbull.core.middleware import Middleware, compose
from taskbull.core.retry import RetryPolicy
from taskbull.worker.route import Handler, Route, in_thread
from taskbull.worker.running_job import RunningJob

JobMiddleware: TypeAlias = Middleware[RunningJob]


class Dispatch:
    """Finds out how jobs are run. What it needs for a task is prepared once."""

    def __init__(
        self, registry: Registry, policy: RetryPolicy, layers: Sequence[JobMiddleware] = ()
    ) -> None:
        self._registry = registry
        self._layers = [*layers]
        self._known: dict[str, Route] = {}
        self._unclaimed = Route(Unclaimed(registry).put_off, policy)

    def resolve(self, job: Job) -> Route:
        """Tell how a job is run; a task that cannot be prepared is a `ConfigurationError`."""
        route = self._known.get(job.name)
        return self._prepared(job.name) if route is None else route

    def add_middleware(self, layer: JobMiddleware) -> None:
        """Put a layer around all tasks, inside of those that are there."""
        self._layers.append(layer)
        self._known.clear()

    def prepare(self) -> None:
        """Prepare all tasks, so that what is wrong with one shows before the first job."""
        for name in self._registry.tasks:
            self._prepared(name)

    def _prepared(self, name: str) -> Route:
        task = self._registry.tasks.get(name)
        if task is None:
            return self._unclaimed  # not kept: what names stand in Redis is not in our hands
        handler = compose(self._layers, _handler(task))
        route = Route(handler, task.settings.policy, task.settings.timeout)
        self._known[name] = route
        return route


def _handler(task: Task[..., Any]) -> Handler:
    read, call = task.reader(), task.caller()
    if not task.is_async:
        return in_thread(lambda job: call(**read(job.job.raw_data)))

    def handler(job: RunningJob) -> Awaitable[Any]:
        coroutine: Awaitable[Any] = call(**read(job.job.raw_data))
        return coroutine

    return handler

"""From a job to the call of its task's function: what an app gives to its workers."""

from __future__ import annotations

from typing import Any

from taskbull.app.registry import Registry
from taskbull.app.task import Task
from taskbull.app.unclaimed import Unclaimed
from taskbull.core.job import Job
from taskbull.core.middleware import compose
from taskbull.core.retry import RetryPolicy
from taskbull.worker.route import Route, SyncHandler
from taskbull.worker.running_job import RunningJob


class Dispatch:
    """Finds out how jobs are run. What it needs for a task is prepared once."""

    def __init__(self, registry: Registry, policy: RetryPolicy) -> None:
        self._registry = registry
        registry.watchers.append(self.forget)
        self._known: dict[str, Route] = {}
        self._unclaimed = Route(Unclaimed(registry).put_off, policy)

    def resolve(self, job: Job) -> Route:
        """Return how a job is run; a task that cannot be prepared is a `ConfigurationError`."""
        route = self._known.get(job.name)
        return self._prepared(job.name) if route is None else route

    def forget(self) -> None:
        """Prepare all tasks anew when they are needed: what surrounds them has changed."""
        self._known.clear()

    def prepare(self) -> None:
        """Prepare all tasks, so that what is wrong with one shows before the first job."""
        for name in self._registry.tasks:
            self._prepared(name)

    def _prepared(self, name: str) -> Route:
        task = self._registry.tasks.get(name)
        if task is None:
            return self._unclaimed  # not kept: what names stand in Redis is not in our hands
        settings, function = task.settings, _function(task)
        around = [one.layers for one in self._registry.around(name)]
        if not task.is_async:  # in the function itself: wherever that is called, they are as well
            function = compose([layer for each in around for layer in each.plain], function)
        route = Route(
            function,
            settings.policy,
            settings.timeout,
            site=task.site,
            grace=settings.grace,
            layers=tuple(layer for each in around for layer in each.awaited),
        )
        self._known[name] = route
        return route


def _function(task: Task[..., Any]) -> SyncHandler:
    read, call = task.reader(), task.caller()
    receivers, injected = task.receivers(), task.injected
    if not receivers and not injected:
        return lambda job: call(**read(job.job.raw_data))

    def read_and_inject(job: RunningJob) -> dict[str, Any]:
        arguments = read(job.job.raw_data)
        if injected:
            arguments.update(dict.fromkeys(injected, job.resources))
        return arguments

    def receive(job: RunningJob) -> Any:
        arguments = read_and_inject(job)
        for one in receivers:
            if one.parameter not in arguments:
                arguments[one.parameter] = one.take(job.child_results(one.child))
        return call(**arguments)

    async def areceive(job: RunningJob) -> Any:
        arguments = read_and_inject(job)
        for one in receivers:
            if one.parameter not in arguments:
                arguments[one.parameter] = one.take(await job.achild_results(one.child))
        return await call(**arguments)

    return areceive if task.is_async else receive

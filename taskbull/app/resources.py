"""What the lifespans of an app, and of what it includes, yield to the tasks of one worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

from taskbull.app.registry import Registry
from taskbull.core.site import Site
from taskbull.errors import ConfigurationError

Yielded: TypeAlias = Mapping[Registry, Any]
"""What each lifespan yields, by whose it is."""


class Resources:
    """Knows which lifespans run around a worker, and which task is given what.

    Those of a process of the pool are others: each process has its own.
    """

    def __init__(self, registry: Registry, *, in_process: bool = False) -> None:
        """Refuse tasks that want what no lifespan yields, before anything is opened."""
        self._registry = registry
        self._site = Site.PROCESS if in_process else Site.LOOP
        self._tasks = [
            task
            for task in registry.tasks.values()
            if task.injected and (task.site is Site.PROCESS) == in_process
        ]
        for task in registry.tasks.values():
            if task.injected and registry.provider(task) is None:
                raise ConfigurationError(
                    f"Parameter {task.injected[0]} of task {task.name} ({task.place}) takes what "
                    f"the lifespan yields, but {registry.around(task.name)[-1].owner} has none: "
                    "declare one with @app.lifespan"
                )

    def __bool__(self) -> bool:
        """Return whether there is any lifespan."""
        return any(each.lifespans(self._site) for each in self._registry.all())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Yielded, None]:
        """Run all lifespans around the block, those of what is included inside of the app's own.

        Raises `ConfigurationError` for what does not fit the parameters that take it.
        """
        async with AsyncExitStack() as stack:
            yielded: dict[Registry, Any] = {}
            for each in self._registry.all():
                for lifespan in each.lifespans(self._site):
                    yielded[each] = await stack.enter_async_context(lifespan())
            for task in self._tasks:
                task.check_resources(self.of(yielded, task.name))
            yield yielded

    def of(self, yielded: Yielded, name: str) -> Any:
        """Return what the jobs of a task are given; None if no lifespan has anything for them."""
        task = self._registry.tasks.get(name)
        provider = None if task is None else self._registry.provider(task)
        return None if provider is None else yielded.get(provider)

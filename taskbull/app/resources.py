"""What the lifespans of an app, and of what it includes, yield to the tasks of one worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

from taskbull.app.registry import Registry
from taskbull.errors import ConfigurationError

Yielded: TypeAlias = Mapping[Registry, Any]
"""What each lifespan yields, by whose it is."""


class Resources:
    """Knows which lifespans run around a worker, and which task is given what."""

    def __init__(self, registry: Registry) -> None:
        """Refuse tasks that want what no lifespan yields, before anything is opened."""
        self._registry = registry
        for task in registry.tasks.values():
            if task.injected and registry.provider(task.name) is None:
                raise ConfigurationError(
                    f"Parameter {task.injected[0]} of task {task.name} ({task.place}) takes what "
                    f"the lifespan yields, but {registry.around(task.name)[-1].owner} has none: "
                    "declare one with @app.lifespan"
                )

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Yielded, None]:
        """Run all lifespans around the block, those of what is included inside of the app's own.

        Raises `ConfigurationError` for what does not fit the parameters that take it.
        """
        async with AsyncExitStack() as stack:
            yielded: dict[Registry, Any] = {}
            for each in self._registry.all():
                if each.lifespan is not None:
                    yielded[each] = await stack.enter_async_context(each.lifespan())
            for task in self._registry.tasks.values():
                if task.injected:
                    task.check_resources(self.of(yielded, task.name))
            yield yielded

    def of(self, yielded: Yielded, name: str) -> Any:
        """Return what the jobs of a task are given; None if no lifespan has anything for them."""
        provider = self._registry.provider(name)
        return None if provider is None else yielded.get(provider)

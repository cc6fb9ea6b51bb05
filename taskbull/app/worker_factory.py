"""The workers of an app: what surrounds their jobs, and how they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from taskbull.app.layers import JobMiddleware, Layers, PlainJobMiddleware
from taskbull.app.lifespan import Lifespan
from taskbull.app.queue_rules import QueueRules, Queues
from taskbull.app.registry import Registry
from taskbull.core import events
from taskbull.core.celery import WORKER
from taskbull.core.keywords import check_keywords
from taskbull.core.retry import RetryPolicy
from taskbull.core.worker_options import WorkerKeywords, WorkerOptions
from taskbull.errors import ConfigurationError
from taskbull.store.namespace import Namespace

if TYPE_CHECKING:
    from taskbull.app.dispatch import Dispatch
    from taskbull.core.declared_schedule import DeclaredSchedules
    from taskbull.worker.worker import Worker

E = TypeVar("E", bound=events.Event)


class WorkerFactory:
    """Makes workers, all of which serve the tasks of the app by the same rules.

    Whoever only adds jobs has the rules, but no worker: that, with anyio, is not imported before
    one is asked for.
    """

    def __init__(self, app: str, registry: Registry, policy: RetryPolicy) -> None:
        self._app = app
        self._registry = registry
        self._policy = policy
        self._dispatch: Dispatch | None = None
        self.rules = QueueRules()
        self._layers = Layers()
        self._lifespan: Lifespan | None = None
        self._listeners: list[tuple[type[events.Event], events.Listener[Any]]] = []

    def surround(self, lifespan: Lifespan) -> None:
        """Put a lifespan around each worker."""
        if self._lifespan is not None:
            raise ConfigurationError(
                f"App {self._app} already has a lifespan: an app can have only one"
            )
        self._lifespan = lifespan

    def surround_jobs(self, layer: JobMiddleware | PlainJobMiddleware) -> None:
        """Put a layer around each job, inside of those that are there."""
        self._layers.add(layer)
        if self._dispatch is not None:
            self._dispatch.forget()

    def tell(self, kind: type[E], listener: events.Listener[E]) -> None:
        """Call a function for each event of a kind."""
        events.check_listener(kind, listener)
        self._listeners.append((kind, listener))

    @property
    def dispatch(self) -> Dispatch:
        """From a job to the call of its task's function."""
        if self._dispatch is None:
            from taskbull.app.dispatch import Dispatch  # noqa: PLC0415 - see above

            self._dispatch = Dispatch(self._registry, self._policy, self._layers)
        return self._dispatch

    def worker(
        self,
        namespace: Namespace,
        queues: Queues | None,
        options: WorkerKeywords,
        schedules: DeclaredSchedules,
    ) -> Worker:
        """Return a worker for some queues, or for those of all tasks, which are loaded by now."""
        from taskbull.worker.worker import Worker  # noqa: PLC0415 - see above

        check_keywords("a worker", options, WorkerKeywords, WORKER)
        self.dispatch.prepare()
        self._check_injection()
        names = self._registry.queues if queues is None else queues
        if not names:
            raise ConfigurationError(
                f"App {self._app} has no tasks, so there is nothing to work on: name their modules "
                "by include=…, or the queues by queues=…"
            )
        rules = self.rules.for_worker(names)
        worker = Worker(
            list(rules) if isinstance(names, Mapping) else names,
            redis=namespace.address,
            options=WorkerOptions(**options),
            queue_options=rules,
            prefix=namespace.prefix,
            hash_tag=namespace.hash_tag,
            resolve=self.dispatch.resolve,
            circuit_breaker=self._registry.circuit_breakers,
            lifespan=self._around,
            tasks=self._registry.tasks,
            schedules=schedules,
        )
        for kind, listener in self._listeners:
            worker.on(kind, listener)
        return worker

    def _check_injection(self) -> None:
        """Refuse a task that wants what no lifespan yields, before anything is opened."""
        if self._lifespan is not None:
            return
        for task in self._registry.tasks.values():
            for name in task.injected:
                raise ConfigurationError(
                    f"Parameter {name} of task {task.name} ({task.place}) takes what the lifespan "
                    f"yields, but App {self._app} has none: declare one with @app.lifespan"
                )

    @asynccontextmanager
    async def _around(self) -> AsyncGenerator[Any, None]:
        """Be the lifespan, and check what it yields against the tasks that take it."""
        async with (self._lifespan or nullcontext)() as resources:
            for task in self._registry.tasks.values():
                task.check_resources(resources)
            yield resources

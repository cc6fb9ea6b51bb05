"""The workers of an app: what surrounds their jobs, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from taskbull.app.batch_task import is_batch
from taskbull.app.pool.source import AppSource
from taskbull.app.queue_rules import QueueRules, Queues
from taskbull.app.registry import Registry
from taskbull.app.resources import Resources
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

    def __init__(
        self,
        registry: Registry,
        policy: RetryPolicy,
        source: Callable[[Iterable[str]], AppSource],
    ) -> None:
        self._source = source
        self._registry = registry
        self._policy = policy
        self._dispatch: Dispatch | None = None
        self.rules = QueueRules()
        self._listeners: list[tuple[type[events.Event], events.Listener[Any]]] = []

    def tell(self, kind: type[E], listener: events.Listener[E]) -> None:
        """Call a function for each event of a kind."""
        events.check_listener(kind, listener)
        self._listeners.append((kind, listener))

    @property
    def dispatch(self) -> Dispatch:
        """From a job to the call of its task's function."""
        if self._dispatch is None:
            from taskbull.app.dispatch import Dispatch  # noqa: PLC0415 - see above

            self._dispatch = Dispatch(self._registry, self._policy)
        return self._dispatch

    def worker(
        self,
        namespace: Namespace,
        queues: Queues | None,
        options: WorkerKeywords,
        schedules: DeclaredSchedules,
    ) -> Worker:
        """Return a worker for some queues, or for those of all tasks, which are loaded by now."""
        from taskbull.app.pool.plan import plan_pool, with_pool  # noqa: PLC0415 - see above
        from taskbull.worker.worker import Worker  # noqa: PLC0415 - see above

        check_keywords("a worker", options, WorkerKeywords, WORKER)
        self.dispatch.prepare()
        resources = Resources(self._registry)
        names = self._registry.queues if queues is None else queues
        if not names:
            raise ConfigurationError(
                f"{self._registry.owner} has no tasks, so there is nothing to work on: name their "
                "modules by include=…, or the queues by queues=…"
            )
        rules = self.rules.for_worker(names)
        settings = WorkerOptions(**options)
        pool = plan_pool(self._registry.tasks.values(), list(rules), settings, self._source)
        if pool is not None:
            rules = with_pool(rules, settings, self._registry.tasks.values(), pool.size)
        worker = Worker(
            list(rules) if isinstance(names, Mapping) else names,
            redis=namespace.address,
            options=settings,
            queue_options=rules,
            prefix=namespace.prefix,
            hash_tag=namespace.hash_tag,
            resolve=self.dispatch.resolve,
            circuit_breaker=self._registry.circuit_breakers,
            lifespan=resources.open,
            share=resources.of,
            tasks=self._registry.tasks,
            schedules=schedules,
            pool=pool,
        )
        self._check_slots(worker.concurrency)
        for kind, listener in self._listeners:
            worker.on(kind, listener)
        return worker

    def _check_slots(self, concurrency: Mapping[str, int]) -> None:
        """Refuse a worker that could never fill a batch."""
        for task in self._registry.tasks.values():
            slots = concurrency.get(task.queue)
            if is_batch(task) and slots is not None and slots < task.batch.size:
                size, queue = task.batch.size, task.queue
                raise ConfigurationError(
                    f"Batch task {task.name} ({task.place}) takes {size} jobs at once, but this "
                    f"worker runs {slots} of queue {queue}: give the queue a concurrency of at "
                    f"least {size}, better {2 * size}, with app.queue_options({queue!r}, "
                    "concurrency=…) or taskbull worker -c …"
                )

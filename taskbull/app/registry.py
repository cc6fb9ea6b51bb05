"""The tasks of an app or group by name, what surrounds them, and their circuit breakers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from taskbull.app.layers import JobMiddleware, Layers, PlainJobMiddleware
from taskbull.app.lifespan import Lifespan
from taskbull.app.task import Task
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.checks import did_you_mean
from taskbull.core.site import Site
from taskbull.errors import ConfigurationError, TaskNotRegistered
from taskbull.observability.job_filter import cut

_SHOWN = 20


class Registry:
    """Knows the tasks of one app or group, and of all that it includes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        self.layers = Layers()
        self.lifespan: Lifespan | None = None
        self.process_lifespan: Lifespan | None = None
        """What surrounds the processes of a pool only."""
        self._included: list[Registry] = []
        self._sources: dict[str, Registry] = {}  # of the tasks that are not its own
        self.part_of: Registry | None = None
        """What includes it."""
        self.watchers: list[Callable[[], None]] = []
        """Called when what surrounds its tasks has changed."""

    def add(self, task: Task[..., Any], source: Registry | None = None) -> None:
        """Add a task; refuse a name that is taken, or another breaker for a queue that has one."""
        self.check([task])
        if self.part_of is not None:
            self.part_of.add(task, self)
        self._tasks[task.name] = task
        if source is not None:
            self._sources[task.name] = source

    def check(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Refuse tasks of which one cannot be added, here or to what this is a part of."""
        for task in tasks:
            if (other := self._tasks.get(task.name)) is not None:
                raise ConfigurationError(
                    f"{self.owner} has two tasks named {task.name!r}: at {other.place} and at "
                    f"{task.place}. Rename one of them with name=…"
                )
            breaker = task.settings.circuit_breaker
            if breaker is not None:
                self._check_breaker(task, breaker)
            if self.part_of is not None:
                self.part_of.check([task])

    def include(self, other: Registry) -> None:
        """Make tasks of another registry part of this one, also those that it is yet to get."""
        other.part_of = self
        self._included.append(other)
        for task in other.tasks.values():
            self.add(task, other)

    def surround(self, lifespan: Lifespan, *, process: bool = False) -> None:
        """Put a lifespan around each worker, or around the processes of its pool only."""
        if (self.process_lifespan if process else self.lifespan) is not None:
            kind = " for processes" if process else ""
            raise ConfigurationError(
                f"{self.owner} already has a lifespan{kind}: it can have only one"
            )
        if process:
            self.process_lifespan = lifespan
        else:
            self.lifespan = lifespan

    def surround_jobs(self, layer: JobMiddleware | PlainJobMiddleware) -> None:
        """Put a layer around each job, inside of those that are there."""
        self.layers.add(layer)
        self.changed()

    def changed(self) -> None:
        """Tell that what surrounds the tasks is not what it was."""
        for watcher in self.watchers:
            watcher()
        if self.part_of is not None:
            self.part_of.changed()

    def around(self, name: str) -> list[Registry]:
        """Return those whose middleware surrounds a task: this one first, the task's own last."""
        source = self._sources.get(name)
        return [self] if source is None else [self, *source.around(name)]

    def all(self) -> list[Registry]:
        """Return this registry, and all that it includes."""
        return [self, *(one for each in self._included for one in each.all())]

    def lifespans(self, site: Site) -> list[Lifespan]:
        """Return what surrounds the place where a task is called, outermost first."""
        inner = self.process_lifespan if site is Site.PROCESS else None
        return [one for one in (self.lifespan, inner) if one is not None]

    def provider(self, task: Task[..., Any]) -> Registry | None:
        """Return the one whose lifespan yields what a task is given: the nearest that has one."""
        around = reversed(self.around(task.name))
        return next((one for one in around if one.lifespans(task.site)), None)

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks, in the order in which they came up."""
        return list(dict.fromkeys(task.queue for task in self._tasks.values()))

    @property
    def circuit_breakers(self) -> dict[str, CircuitBreaker]:
        """The circuit breaker of each queue that has one."""
        return {
            task.queue: task.settings.circuit_breaker
            for task in self._tasks.values()
            if task.settings.circuit_breaker is not None
        }

    def missing(self, name: str, queue: str) -> TaskNotRegistered:
        """Return the error for a job whose task is not registered."""
        names = sorted(self._tasks)
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        hint = did_you_mean(cut(name), names)  # of a name of 10 MB that would take seconds
        return TaskNotRegistered(
            name,
            f"Task {cut(name)!r} of a job in queue {queue} is not registered in "
            f"{self.owner}{hint}. It has {shown or 'no tasks'}; if its module is not imported, "
            "name it with include=…, or find it with app.autodiscover(…); a task that is declared "
            "inside a function exists only where that function was called",
        )

    def _check_breaker(self, task: Task[..., Any], breaker: CircuitBreaker) -> None:
        for other in self._tasks.values():
            theirs = other.settings.circuit_breaker
            if other.queue == task.queue and theirs is not None and theirs != breaker:
                raise ConfigurationError(
                    f"Queue {task.queue} would have two different circuit breakers: of task "
                    f"{other.name} at {other.place} and of task {task.name} at {task.place}. A "
                    "breaker guards a whole queue: use the same one, or another queue"
                )

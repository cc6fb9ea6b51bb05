"""The tasks of an app by name, and the circuit breakers of their queues."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from taskbull.app.task import Task
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.checks import did_you_mean
from taskbull.errors import ConfigurationError, TaskNotRegistered
from taskbull.observability.job_filter import cut

_SHOWN = 20


class Registry:
    """Knows the tasks of one app."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)

    def add(self, task: Task[..., Any]) -> None:
        """Add a task; refuse a name that is taken, or another breaker for a queue that has one."""
        if (other := self._tasks.get(task.name)) is not None:
            raise ConfigurationError(
                f"App {self._app} has two tasks named {task.name!r}: at {other.place} and at "
                f"{task.place}. Rename one of them with name=…"
            )
        breaker = task.settings.circuit_breaker
        if breaker is not None:
            self._check_breaker(task, breaker)
        self._tasks[task.name] = task

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
            f"Task {cut(name)!r} of a job in queue {queue} is not registered in app "
            f"{self._app}{hint}. It has {shown or 'no tasks'}; if its module is not imported, name "
            "it with include=…, or find it with app.autodiscover(…); a task that is declared "
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

"""Schedules that an app declares with `@app.task(schedule=…)` or `app.schedule(…)`.

The modules that schedules need are imported only if an app declares one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from taskbull.app.producer import JobSpec
from taskbull.app.task import Task
from taskbull.core.flow import check_single
from taskbull.core.job import NewJob
from taskbull.core.validation import refusal
from taskbull.errors import ConfigurationError
from taskbull.queue.handle import Prepare

if TYPE_CHECKING:
    from taskbull.core.declared_schedule import DeclaredSchedule, DeclaredSchedules
    from taskbull.core.schedule import Rule


class Schedules:
    """Holds the schedules of an app or group and of everything that it includes."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._by_queue: dict[str, dict[str, DeclaredSchedule]] = {}
        self.part_of: Schedules | None = None
        """Schedules of the app or group that includes this one."""

    def of_task(self, task: Task[..., Any], rule: Rule) -> DeclaredSchedule:
        """Return a schedule that runs a task periodically with its default arguments.

        Raises:
            ConfigurationError: If a parameter has no default.
        """
        if required := task.calling.binder.required:
            missing = [name for name in task.calling.binder.parameters if name in required]
            raise ConfigurationError(
                f"Task '{task.name}' ({task.location}) has a schedule, but no default for "
                f"{', '.join(map(repr, missing))}: add defaults, or use app.schedule(id, rule, "
                f"{task.__name__}.job(…))"
            )
        # Each run has its own id, so the task's deduplication does not apply.
        job = NewJob(task.name, {}, replace(task.settings.options, dedup=None))
        return self.of_job(task.name, rule, JobSpec[Any](task.queue, job, task.calling))

    def of_job(self, schedule_id: str, rule: Rule, spec: JobSpec[Any]) -> DeclaredSchedule:
        """Return a schedule that adds a job periodically.

        Raises:
            ConfigurationError: If the job is invalid or has children.
        """
        if not isinstance(spec, JobSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal("the job of app.schedule()", "be created with task.job(…)", spec)
        check_single(spec.name, spec.children, spec.missing)  # A group has no branches yet.
        return _declared(schedule_id, spec.queue, rule, spec.job)

    def add(self, new: DeclaredSchedule) -> None:
        """Add a schedule.

        Raises:
            ConfigurationError: If its queue already has a schedule with this id.
        """
        self.check([new])
        if self.part_of is not None:
            self.part_of.add(new)
        self._by_queue.setdefault(new.queue, {})[new.id] = new

    def check(self, schedules: Iterable[DeclaredSchedule]) -> None:
        """Check that schedules can be added here and to everything that includes this one.

        Raises:
            ConfigurationError: If one of them cannot be added.
        """
        for new in schedules:
            if (other := self._by_queue.get(new.queue, {}).get(new.id)) is not None:
                raise ConfigurationError(
                    f"Queue '{new.queue}' has two schedules with id {new.id!r}: task "
                    f"'{other.job.name}' {other.rule.describe()}, and task '{new.job.name}' "
                    f"{new.rule.describe()}. Use another id with app.schedule(id, …)"
                )
            if self.part_of is not None:
                self.part_of.check([new])

    def include(self, other: Schedules) -> None:
        """Include other schedules, and those declared there later."""
        other.part_of = self
        for schedule in other.all():
            self.add(schedule)

    def all(self) -> list[DeclaredSchedule]:
        """Return all schedules."""
        return [one for known in self._by_queue.values() for one in known.values()]

    def declared(self, prepare: Prepare) -> DeclaredSchedules:
        """Return all schedules by queue, with their jobs as `prepare` leaves them."""
        from taskbull.core.declared_schedule import DeclaredSchedules  # noqa: PLC0415 - see above

        by_queue = {
            queue: [replace(one, job=prepare(queue, one.job)) for one in known.values()]
            for queue, known in self._by_queue.items()
        }
        return DeclaredSchedules(self._owner, by_queue)


def _declared(schedule_id: str, queue: str, rule: Rule, job: NewJob) -> DeclaredSchedule:
    from taskbull.core.declared_schedule import DeclaredSchedule  # noqa: PLC0415 - see above

    return DeclaredSchedule(schedule_id, queue, rule, job)

"""The schedules that an app declares: with `@app.task(schedule=…)`, or by `app.schedule(…)`.

Whoever declares one has imported `Cron` or `Every`; other apps do without what those need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from taskbull.app.producer import JobSpec
from taskbull.app.task import Task
from taskbull.core.flow import check_single
from taskbull.core.job import NewJob
from taskbull.core.validation import refusal
from taskbull.errors import ConfigurationError

if TYPE_CHECKING:
    from taskbull.core.declared_schedule import DeclaredSchedule, DeclaredSchedules
    from taskbull.core.schedule import Rule


class Schedules:
    """Knows the schedules of one app or group, and of all that it includes."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._by_queue: dict[str, dict[str, DeclaredSchedule]] = {}
        self.part_of: Schedules | None = None
        """What includes them."""

    def of_task(self, task: Task[..., Any], rule: Rule) -> DeclaredSchedule:
        """Return the schedule by which a task is called again and again, with its defaults."""
        if required := task.calling.binder.required:
            missing = [name for name in task.calling.binder.parameters if name in required]
            raise ConfigurationError(
                f"Task {task.name} ({task.place}) has a schedule, but nobody gives it "
                f"{', '.join(missing)}: give each parameter a default, or use app.schedule(id, "
                f"rule, {task.__name__}.job(…))"
            )
        job = NewJob(task.name, {}, task.settings.options)
        return self.of_job(task.name, rule, JobSpec[Any](task.queue, job, task.calling))

    def of_job(self, schedule_id: str, rule: Rule, spec: JobSpec[Any]) -> DeclaredSchedule:
        """Return the schedule by which a job is added again and again."""
        if not isinstance(spec, JobSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal("the job of app.schedule", "be made by task.job(…)", spec)
        check_single(spec.name, spec.children, spec.missing)  # a group has no branches yet
        return _declared(schedule_id, spec.queue, rule, spec.job)

    def add(self, new: DeclaredSchedule) -> None:
        """Add a schedule; refuse a second one of its id in its queue."""
        self.check([new])
        if self.part_of is not None:
            self.part_of.add(new)
        self._by_queue.setdefault(new.queue, {})[new.id] = new

    def check(self, schedules: Iterable[DeclaredSchedule]) -> None:
        """Refuse schedules of which one cannot be added, here or to what these are a part of."""
        for new in schedules:
            if (other := self._by_queue.get(new.queue, {}).get(new.id)) is not None:
                raise ConfigurationError(
                    f"Queue {new.queue} would have two schedules {new.id!r}: task {other.job.name} "
                    f"{other.rule.describe()}, and task {new.job.name} {new.rule.describe()}. Give "
                    "one of them another id, with app.schedule(id, …)"
                )
            if self.part_of is not None:
                self.part_of.check([new])

    def include(self, other: Schedules) -> None:
        """Make other schedules part of these, also those that are declared later."""
        other.part_of = self
        for schedule in other.all():
            self.add(schedule)

    def all(self) -> list[DeclaredSchedule]:
        """Return all of them."""
        return [one for known in self._by_queue.values() for one in known.values()]

    def declared(self) -> DeclaredSchedules:
        """Return all of them, by queue."""
        from taskbull.core.declared_schedule import DeclaredSchedules  # noqa: PLC0415 - see above

        by_queue = {queue: list(known.values()) for queue, known in self._by_queue.items()}
        return DeclaredSchedules(self._owner, by_queue)


def _declared(schedule_id: str, queue: str, rule: Rule, job: NewJob) -> DeclaredSchedule:
    from taskbull.core.declared_schedule import DeclaredSchedule  # noqa: PLC0415 - see above

    return DeclaredSchedule(schedule_id, queue, rule, job)

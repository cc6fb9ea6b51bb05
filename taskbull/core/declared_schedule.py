"""Schedules that an app declares in code. Its workers write them to Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from taskbull.core.job import NewJob
from taskbull.core.schedule import Rule, Schedule, check_rule, check_schedule_id
from taskbull.core.wire.schedule import check_template


class DeclaredSchedule(Struct, frozen=True):
    """A rule and the job that it adds to a queue."""

    id: str
    queue: str
    rule: Rule
    job: NewJob

    def __post_init__(self) -> None:
        check_schedule_id(self.id)
        check_rule(self.rule)
        check_template(self.job)


class DeclaredSchedules(Struct, frozen=True):
    """All schedules that an app declares, grouped by queue."""

    app: str
    by_queue: Mapping[str, Sequence[DeclaredSchedule]]

    def of(self, queue: str) -> Sequence[DeclaredSchedule]:
        """Return the schedules of a queue."""
        return self.by_queue.get(queue, ())

    def no_longer_include(self, schedule: Schedule) -> bool:
        """Return True if the app declared this schedule once, but does not now."""
        if schedule.declared_by != self.app:
            return False
        return all(each.id != schedule.id for each in self.of(schedule.queue))

"""Server methods that find the last runs of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from taskbull.core.schedule import Schedule, runs_before
from taskbull.core.validation import instant_to_ms
from taskbull.errors import TaskbullError
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import ask_each
from taskbull.scripts.call import AnySteps
from taskbull.scripts.schedulers import ScheduledRun, find_run
from taskbull.store.address import Namespace

__all__ = ["ScheduleLooks", "ScheduledRun"]

_EARLIER: Final = 2
"""Number of earlier runs to look for. A run may have been skipped while no worker was running."""


class ScheduleLooks:
    """Methods that read the runs of schedules."""

    namespace: Namespace

    @server_operation
    def last_runs(self, schedules: Sequence[Schedule]) -> AnySteps[list[ScheduledRun | None]]:
        """Find the last run of each schedule, or None if its job is not stored or not readable.

        It sends one call of at most 10 commands per schedule, all in one round trip.
        """
        calls = [
            find_run(self.namespace.keys(each.queue), each.id, _due_before(each))
            for each in schedules
        ]
        found = yield from ask_each(calls)
        return [None if isinstance(each, TaskbullError) else each for each in found]


def _due_before(schedule: Schedule) -> list[int]:
    if schedule.rule is None or schedule.last_due is None:
        return []
    due_ms = instant_to_ms(schedule.last_due)
    # If no run is pending, the schedule has ended or its worker died: `last_due` is the last run.
    last = [] if schedule.is_pending else [due_ms]
    return last + runs_before(schedule.rule, due_ms, _EARLIER)

"""A declared schedule in the virtual time of a box."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.rules import Cron, Every


class VirtualSchedule:
    """Knows when a schedule runs next, as Redis and the workers do; it is new at `began`."""

    def __init__(self, declared: DeclaredSchedule, began: datetime) -> None:
        self.declared = declared
        self._runs = 0
        self.due = self._bounded(self._first(began))
        """When it runs next; None when it has ended."""

    def run(self, now: datetime) -> None:
        """Go on to the run after this one; slots that were missed are left out."""
        rule = self.declared.rule
        self._runs += 1
        if self.due is None or self._runs == rule.limit:
            self.due = None
        elif isinstance(rule, Cron):
            self.due = self._bounded(rule.next(max(self.due, now)))
        else:
            interval = timedelta(milliseconds=rule.interval_ms)
            missed = max(0, (now - self.due) // interval)
            self.due = self._bounded(self.due + interval * (missed + 1))

    def _first(self, began: datetime) -> datetime | None:
        match self.declared.rule:
            case Cron() as rule:
                return began if rule.immediately else rule.next(began)
            case Every() as rule if rule.offset is None:
                return began if rule.start is None else max(began, rule.start)
            case rule:
                return rule.next(began - timedelta(milliseconds=1))

    def _bounded(self, due: datetime | None) -> datetime | None:
        end = self.declared.rule.end
        return None if due is None or (end is not None and due > end) else due

"""Failed attempts of a worker, counted by what they have in common, until they are written."""

from __future__ import annotations

from collections import defaultdict

from taskbull.core import events
from taskbull.core.fingerprint import Alike, alike
from taskbull.scripts.records import MOST_ERRORS

_OTHERS = Alike("", "", "other")


class FailedAttempts:
    """Counts them, retried or not: a bounded number of kinds for each queue."""

    def __init__(self) -> None:
        self._counted: defaultdict[str, dict[Alike, int]] = defaultdict(dict)

    def hear(self, event: events.Failed | events.Retried) -> None:
        """Count one."""
        failure, counted = event.failure, self._counted[event.queue]
        stack = failure.stack
        error = alike(event.job.name, failure.reason[:300], stack[:300], stack[-600:])
        if error not in counted and len(counted) >= MOST_ERRORS:
            error = _OTHERS
        counted[error] = counted.get(error, 0) + 1

    def take(self, queue: str) -> dict[Alike, int]:
        """Return what was counted since the last time."""
        return self._counted.pop(queue, {})

"""Whether Redis can be reached: told once per change, however many connections notice."""

from __future__ import annotations

from time import monotonic

from taskbull.core import events
from taskbull.store.reconnection import Change, Connected, DialFailed, LinkLost, log_change
from taskbull.worker.reporter import Reporter


class Availability:
    """Makes events, and log lines at growing intervals, of what the connections tell."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._away: set[str] = set()  # the one server, or parts of a Cluster
        self._lost_at = 0.0
        self._attempts = 0
        self._quiet_until = 0.0

    @property
    def lost(self) -> bool:
        """Whether Redis cannot be reached now."""
        return bool(self._away)

    def notice(self, change: Change) -> None:
        """Take in what a connection tells.

        A link that died is no outage yet: the next one may be there at once, and a connection that
        was not in use may find out long after the others. Of a Cluster all parts must be back.
        """
        match change:
            case LinkLost():
                self._log(change, 0.1)
            case DialFailed(reason, attempts, delay, part):
                self._log(change, delay)
                self._attempts = max(self._attempts, attempts)
                if not self._away:
                    self._lost_at = monotonic()
                    self._reporter.tell(events.RedisLost, reason=reason)
                self._away.add(part)
                self._reporter.tell(events.ReconnectFailed, reason=reason, delay=delay)
            case Connected(part=part):
                self._return(part)

    def _log(self, change: Change, quiet: float) -> None:
        now = monotonic()
        if now >= self._quiet_until:
            log_change(change)
            self._quiet_until = now + quiet

    def _return(self, part: str) -> None:
        if part not in self._away:
            return
        self._away.remove(part)
        if self._away:  # other parts of the Cluster cannot be reached yet
            return
        duration = monotonic() - self._lost_at
        attempts, self._attempts = self._attempts, 0
        self._quiet_until = 0.0
        self._reporter.tell(events.RedisBack, duration=duration, attempts=attempts)

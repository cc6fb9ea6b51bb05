"""Whether Redis can be reached: told once per change, however many connections notice."""

from __future__ import annotations

from time import monotonic

from taskbull.core import events
from taskbull.store.reconnection import Back, Change, Lost, Waiting, log_change
from taskbull.worker.reporter import Reporter


class Availability:
    """Makes events, and log lines at growing intervals, of what the connections tell."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lost_at: float | None = None
        self._attempts = 0
        self._quiet_until = 0.0

    @property
    def lost(self) -> bool:
        """Whether Redis cannot be reached now."""
        return self._lost_at is not None

    def notice(self, change: Change) -> None:
        """Take in what a connection tells.

        A link that died is no outage yet: the next one may be there at once, and a connection that
        was not in use may find out long after the others.
        """
        match change:
            case Lost():
                self._log(change, 0.1)
            case Waiting(reason, attempts, delay):
                self._log(change, delay)
                self._attempts = max(self._attempts, attempts)
                if self._lost_at is None:
                    self._lost_at = monotonic()
                    self._reporter.tell(events.RedisLost, reason=reason)
                self._reporter.tell(events.ReconnectFailed, reason=reason, delay=delay)
            case Back():
                self._return()

    def _log(self, change: Change, quiet: float) -> None:
        now = monotonic()
        if now >= self._quiet_until:
            log_change(change)
            self._quiet_until = now + quiet

    def _return(self) -> None:
        if self._lost_at is None:
            return
        duration = monotonic() - self._lost_at
        attempts, self._attempts = self._attempts, 0
        self._lost_at = None
        self._quiet_until = 0.0
        self._reporter.tell(events.RedisBack, duration=duration, attempts=attempts)

"""Where the HTTP server, or a parent process, gets metrics from."""

from __future__ import annotations

from typing import Protocol

from taskbull.observability.health import Health
from taskbull.observability.metrics import Metrics
from taskbull.observability.tally import Snapshot, Tally


class MetricsSource(Protocol):
    """A source of metrics and health; it may be read in any thread."""

    def snapshot(self) -> Snapshot:
        """Return all values."""
        ...

    def health(self) -> Health:
        """Return what probes want to know."""
        ...


class OwnMetrics:
    """The metrics and health of this process; `metrics` is for its worker."""

    def __init__(self) -> None:
        self._tally = Tally()
        self.metrics = Metrics(self._tally)

    def snapshot(self) -> Snapshot:
        """Return all values."""
        return self._tally.snapshot()

    def health(self) -> Health:
        """Return what probes want to know."""
        return self.metrics.vitals.health()

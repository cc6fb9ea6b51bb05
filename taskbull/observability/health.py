"""The health of a worker, for liveness and readiness probes."""

from __future__ import annotations

from math import inf
from time import monotonic

from msgspec import Struct


class Health(Struct, frozen=True):
    """The answer to probes. An empty string means that there is no problem."""

    stuck: str = ""
    """The reason why the process should be restarted."""
    idle: str = ""
    """The reason why the worker cannot run jobs."""

    @property
    def live(self) -> bool:
        """True unless the event loop is stuck, regardless of Redis."""
        return not self.stuck

    @property
    def ready(self) -> bool:
        """True if the worker is running, and Redis can be reached and accepts writes."""
        return not (self.stuck or self.idle)


class Vitals:
    """The state of a worker. The event loop writes it, and any thread may read its health."""

    def __init__(self) -> None:
        self.running = False
        """True while the worker fetches jobs."""
        self.connected = False
        """True if the last contact with Redis succeeded."""
        self.refusal = ""
        """The reason why Redis refuses writes, or an empty string."""
        self.block_limit = inf
        """Seconds without progress until the event loop counts as stuck."""
        self._moved_at = monotonic()

    def moved(self) -> None:
        """Record that the event loop is making progress."""
        self._moved_at = monotonic()

    def health(self) -> Health:
        """Return the worker's current health. Thread-safe."""
        if not self.running:  # A worker that fetches no jobs never counts as stuck.
            return Health(idle="the worker is not running")
        still = monotonic() - self._moved_at
        stuck = (
            f"the event loop has not moved for {still:.0f} s" if still > self.block_limit else ""
        )
        if not self.connected:
            return Health(stuck, "Redis cannot be reached")
        return Health(stuck, self.refusal and f"Redis refuses writes: {self.refusal}")

"""Signs of life of a worker, for probes: is it stuck, and can it work?"""

from __future__ import annotations

from math import inf
from time import monotonic

from msgspec import Struct


class Health(Struct, frozen=True):
    """What probes are told: why the process should be replaced, and why it cannot work."""

    stuck: str = ""
    idle: str = ""

    @property
    def live(self) -> bool:
        """Whether the event loop is running, whatever Redis does."""
        return not self.stuck

    @property
    def ready(self) -> bool:
        """Whether jobs are taken: the worker runs, and Redis can be reached."""
        return not (self.stuck or self.idle)


class Vitals:
    """The state of a worker. The event loop writes it; any thread may ask for the health."""

    def __init__(self) -> None:
        self.running = False
        """Whether the worker takes jobs."""
        self.connected = False
        """Whether Redis could be reached lately."""
        self.block_limit = inf
        """Seconds without a move of the loop after which it is taken to hang."""
        self._moved_at = monotonic()

    def moved(self) -> None:
        """Note that the event loop moves."""
        self._moved_at = monotonic()

    def health(self) -> Health:
        """Return its health."""
        if not self.running:  # before and after it runs there is no loop that could hang
            return Health(idle="the worker is not running")
        still = monotonic() - self._moved_at
        stuck = (
            f"the event loop has not moved for {still:.0f} s" if still > self.block_limit else ""
        )
        return Health(stuck, "" if self.connected else "Redis cannot be reached")

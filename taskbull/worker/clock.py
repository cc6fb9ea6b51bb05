"""The time by which a worker waits; tests bring one that they turn by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from anyio import CancelScope, current_time, sleep_forever, sleep_until


class Clock:
    """The event loop's time, and the wall's."""

    def now(self) -> float:
        """Return the time in seconds since some moment."""
        return current_time()

    def wall_ms(self) -> int:
        """Return the time as it stands in Redis."""
        return int(time.time() * 1000)

    async def sleep_until(self, at: float) -> None:
        """Wait until `now` is at `at`."""
        if at == inf:
            await sleep_forever()
        await sleep_until(at)


class Alarm:
    """Rings at the earliest of the times that were set; who waits for a later one sets it again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = inf
        self._sleep = CancelScope()

    def set(self, at: float) -> None:
        """Ring at `at`, or before."""
        if at < self._at:
            self._at = at
            self._sleep.cancel()

    async def run(self, ring: Callable[[], None]) -> None:
        """Ring, whenever it is time."""
        while True:
            with CancelScope() as self._sleep:
                await self._clock.sleep_until(self._at)
            if self._clock.now() >= self._at:
                self._at = inf
                ring()

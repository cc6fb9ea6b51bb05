"""The time by which a worker waits; tests bring one that they turn by hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from math import inf
from time import monotonic

from anyio import CancelScope, Event, current_time, sleep, sleep_forever

from taskbull.errors import ServerRefused, TaskbullError

logger = logging.getLogger(__name__)

SKEW = 1.0
"""Seconds by which the clocks of this machine and of Redis may differ without being corrected."""

_COMPARE = 300.0
"""Seconds between two comparisons of the clocks."""

_LOOK = 10.0
"""Seconds between two checks whether this machine's clock was changed."""

_ACCURATE = 0.5
"""Seconds that Redis may take to answer if the answer is to be used."""


def loop_offset() -> float:
    """Return how far the event loop's clock is ahead of `time.monotonic`; for code in a task.

    Code in a callback of the event loop cannot ask anyio for the loop's time: no task is current
    there, and then anyio knows only loops that it has started itself. With this offset it can
    compute the deadline of a cancel scope.
    """
    return current_time() - monotonic()


class Clock:
    """A steady clock to wait by, and the wall's as Redis has it.

    Producers, Redis and workers run on several machines. If the clock of this one differs from that
    of Redis by `SKEW` or more, the worker uses that of Redis: else it would fail jobs that have not
    expired, and run delayed and scheduled jobs too early or too late.
    """

    _local: Callable[[], float] = staticmethod(time.time)
    _server_ahead: float | None = None  # of `time.monotonic`; None: the local clock is right
    _warned_skew = 0.0
    _local_ahead = 0.0  # of `time.monotonic`, when the clocks were compared

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        """Make one; `local` is this machine's clock."""
        self._local = local

    def now(self) -> float:
        """Return the time in seconds since some moment; callable from anywhere."""
        return monotonic()

    def wall_ms(self) -> int:
        """Return the time of day in ms since 1970, by the clock of Redis; from any thread."""
        ahead = self._server_ahead
        return int((self._local() if ahead is None else ahead + monotonic()) * 1000)

    def compare(self, server: float, asked: float, answered: float) -> None:
        """Take in the server's time, which it had between two times of `time.monotonic`."""
        if answered - asked > _ACCURATE:
            return
        now = monotonic()
        self._local_ahead = self._local() - now
        server_ahead = server - (asked + answered) / 2
        skew = self._local_ahead - server_ahead
        is_skewed = abs(skew) >= SKEW
        self._server_ahead = server_ahead if is_skewed else None
        if is_skewed and abs(skew - self._warned_skew) >= max(SKEW, abs(self._warned_skew) / 2):
            self._warned_skew = skew
            logger.warning(
                "The clock of this machine is %.1f s %s that of Redis. The worker uses the time of "
                "Redis; synchronize the clocks, for example with NTP",
                abs(skew),
                "ahead of" if skew > 0 else "behind",
            )
        elif not is_skewed and self._warned_skew:
            self._warned_skew = 0.0
            logger.info("The clocks of this machine and of Redis agree again")

    async def follow(self, ask: Callable[[], Awaitable[float]], compared: Event) -> None:
        """Compare the clocks now and then; set `compared` after the first time.

        `ask` returns the server's time. A server that forbids to ask for it is not asked again.
        """
        due = 0.0
        while True:
            was_set = abs(self._local() - monotonic() - self._local_ahead) >= SKEW
            if was_set or monotonic() >= due:
                asked = monotonic()
                try:
                    self.compare(await ask(), asked, monotonic())
                    due = monotonic() + _COMPARE
                except ServerRefused as error:
                    logger.debug("Cannot compare the clocks of this machine and Redis: %s", error)
                    return
                except TaskbullError as error:
                    logger.debug("Redis did not say its time: %s", error)
                finally:
                    compared.set()
            await sleep(_LOOK)

    async def sleep_until(self, at: float) -> None:
        """Wait until `now` is at `at`."""
        if at == inf:
            await sleep_forever()
        await sleep(max(0.0, at - monotonic()))


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

"""Provide a worker's clock and alarm; tests replace the clock with one that they set by hand."""

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
"""Maximum difference in seconds between this machine's clock and Redis's that is not corrected."""

_COMPARE = 300.0
"""Seconds between comparisons with Redis's clock."""

_LOOK = 10.0
"""Seconds between checks for a change of this machine's clock."""

_ACCURATE = 0.5
"""Seconds that Redis may take to reply with its time; a slower reply is ignored."""


def loop_offset() -> float:
    """Return how far the event loop's clock is ahead of `time.monotonic`. Call it in a task.

    A callback of the event loop cannot ask anyio for the loop's time. No task is current there, and
    anyio then knows only loops that it started itself. With this offset, a callback can compute the
    deadline of a cancel scope.
    """
    return current_time() - monotonic()


class Clock:
    """A monotonic clock for waiting, and a wall clock that agrees with Redis's.

    Producers, Redis and workers run on several machines. If this machine's clock differs from
    Redis's by `SKEW` or more, the worker uses Redis's time. Otherwise it would fail jobs that have
    not expired, and run delayed and scheduled jobs too early or too late.
    """

    _local: Callable[[], float] = staticmethod(time.time)
    # relative to `time.monotonic`; None if the local clock is right
    _server_ahead: float | None = None
    _warned_skew = 0.0
    _local_ahead = 0.0  # relative to `time.monotonic`, at the last comparison

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        """Create a clock; `local` returns this machine's wall-clock time."""
        self._local = local

    def now(self) -> float:
        """Return the monotonic time in seconds. Thread-safe."""
        return monotonic()

    def wall_ms(self) -> int:
        """Return the wall-clock time in ms since 1970, corrected to Redis's clock. Thread-safe."""
        ahead = self._server_ahead
        return int((self._local() if ahead is None else ahead + monotonic()) * 1000)

    def compare(self, server: float, asked: float, answered: float) -> None:
        """Correct the wall clock by a server time.

        `asked` and `answered` are the times of the request and the reply, by `time.monotonic`.
        """
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
                "The clock of this machine is %.1f s %s the clock of Redis. The worker uses the "
                "time of Redis; synchronize the clocks, for example with NTP",
                abs(skew),
                "ahead of" if skew > 0 else "behind",
            )
        elif not is_skewed and self._warned_skew:
            self._warned_skew = 0.0
            logger.info("The clocks of this machine and Redis agree again")

    async def follow(self, ask: Callable[[], Awaitable[float]], compared: Event) -> None:
        """Compare the clocks periodically, until cancelled.

        `ask` returns the server's time. `compared` is set after the first comparison, even a failed
        one. If the server refuses the command, the method returns.
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
                    logger.debug("Cannot read the time from Redis: %s", error)
                finally:
                    compared.set()
            await sleep(_LOOK)

    async def sleep_until(self, at: float) -> None:
        """Wait until `now()` reaches `at`."""
        if at == inf:
            await sleep_forever()
        await sleep(max(0.0, at - monotonic()))


class Alarm:
    """An alarm that goes off once, at the earliest time set.

    Code that waits for a later time must set it again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = inf
        self._sleep = CancelScope()

    def set(self, at: float) -> None:
        """Go off at `at` or earlier."""
        if at < self._at:
            self._at = at
            self._sleep.cancel()

    async def run(self, ring: Callable[[], None]) -> None:
        """Call `ring` each time the alarm goes off, until cancelled."""
        while True:
            with CancelScope() as self._sleep:
                await self._clock.sleep_until(self._at)
            if self._clock.now() >= self._at:
                self._at = inf
                ring()

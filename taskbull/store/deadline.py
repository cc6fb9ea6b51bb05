"""How long a call may take in all, whatever it meets on the way."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from taskbull.errors import ConnectionLost, TaskbullError


class Deadline:
    """So many seconds from now, over all tries; None: no deadline."""

    __slots__ = ("_end", "clock", "seconds")

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.clock = clock
        self._end = inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left: below 0 when it is over, `inf` where there is no deadline."""
        return self._end - self.clock()

    @property
    def timeout(self) -> float | None:
        """The same for those who want None, and nothing below 0."""
        return None if self._end == inf else max(0.0, self._end - self.clock())

    @property
    def last_answer(self) -> float:
        """The seconds to keep for an answer: with fewer left, a call is not sent again."""
        return 0.0 if self.seconds is None else min(1.0, self.seconds / 3)

    def too_late_after(self, failed: TaskbullError) -> bool:
        """Tell whether a call that failed so is not to be sent again.

        What was refused was surely not executed, and keeps that by time for an answer; where that
        is uncertain already, any time will do.
        """
        return self.left <= (self.last_answer if isinstance(failed, ConnectionLost) else 0)

    def __str__(self) -> str:
        return "" if self.seconds is None else f" within {self.seconds:.3g} s"

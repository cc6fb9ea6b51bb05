"""How long a call may take in all, whatever it meets on the way."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from taskbull.errors import ConnectionLost, TaskbullError


class Deadline:
    """So many seconds from now, or since an instant, over all tries; None: no deadline."""

    __slots__ = ("_end", "clock", "seconds")

    def __init__(
        self, seconds: float | None, clock: Callable[[], float], since: float | None = None
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        self._end = inf if seconds is None else (clock() if since is None else since) + seconds

    @property
    def left(self) -> float:
        """The seconds left: below 0 when it is over, `inf` without a deadline."""
        return self._end - self.clock()

    @property
    def timeout(self) -> float | None:
        """The seconds left, as timeouts are given: None without a deadline, and never below 0."""
        return None if self._end == inf else max(0.0, self._end - self.clock())

    @property
    def last_answer(self) -> float:
        """The seconds reserved for an answer: with fewer left, a call is not sent again."""
        return 0.0 if self.seconds is None else min(1.0, self.seconds / 3)

    def too_late_after(self, failed: TaskbullError) -> bool:
        """Return whether it is too late to send a call again that failed with this error.

        A refused call was surely not executed, and stays so: it is sent again only if there is
        time for an answer. Where that is uncertain already, any time will do.
        """
        return self.left <= (self.last_answer if isinstance(failed, ConnectionLost) else 0)

    def __str__(self) -> str:
        return "" if self.seconds is None else f" within {self.seconds:.3g} s"

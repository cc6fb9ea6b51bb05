"""The time that an attempt has."""

from __future__ import annotations

from time import monotonic
from typing import Final

from anyio import CancelScope

from taskbull.worker.clock import loop_offset

THREAD_PATIENCE: Final = 60.0
"""Seconds for which a job with a timeout waits for a thread before it is put off."""


class TimeLimit:
    """Cancels a scope when an attempt has had its time; to wait for a thread costs none of it."""

    __slots__ = ("_left", "_loop_offset", "_scope", "stopped")

    def __init__(self, scope: CancelScope, seconds: float) -> None:
        self._scope = scope
        self._left = seconds
        self._loop_offset = loop_offset()
        self.stopped = False
        """Whether the attempt waits for a thread."""
        scope.deadline = self._now() + seconds

    def stop(self) -> None:
        """Stop the clock."""
        now = self._now()
        self._left = self._scope.deadline - now
        self._scope.deadline = now + THREAD_PATIENCE
        self.stopped = True

    def go_on(self) -> None:
        """Start the clock again."""
        self._scope.deadline = self._now() + self._left
        self.stopped = False

    def _now(self) -> float:
        """Return the event loop's time, also in a callback."""
        return monotonic() + self._loop_offset

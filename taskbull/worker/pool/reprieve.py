"""How long a process may still live that is to end."""

from __future__ import annotations

from threading import Lock
from time import monotonic


class Reprieve:
    """The time up to its kill: the event loop grants it, the thread of the process looks at it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._until: float | None = None

    def grant(self, seconds: float) -> None:
        """Let the process live for so long from now on."""
        with self._lock:
            self._until = monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Let it live no longer than that, if it is to end at all."""
        with self._lock:
            if self._until is not None:
                self._until = min(self._until, monotonic() + seconds)

    def left(self) -> float | None:
        """Return the seconds that it has left; None: it is not to end, or was killed."""
        with self._lock:
            return None if self._until is None else max(0.0, self._until - monotonic())

    def is_over(self) -> bool:
        """Return True once, when the time is up."""
        with self._lock:
            if self._until is None or monotonic() < self._until:
                return False
            self._until = None
            return True

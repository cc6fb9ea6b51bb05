"""The file where jobs note when they ran: each has a slot of its own, whoever runs it."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path


class Ticks:
    """Looks on while jobs run. The time is that of the monotonic clock, in ns."""

    def __init__(self, path: Path, slots: int) -> None:
        self.path = path
        path.write_bytes(bytes(8 * max(slots, 1)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._slots = memoryview(self._map).cast("q")
        self._in_a_row = 0

    def in_a_row(self) -> int:
        """Count the jobs that have run, up to the first that has not: cheap, but for a gap."""
        slots, at = self._slots, self._in_a_row
        while at < len(slots) and slots[at]:
            at += 1
        self._in_a_row = at
        return at

    def count(self) -> int:
        """Count all jobs that have run."""
        return len(self._slots) - self._slots.tolist().count(0)

    def times(self) -> list[int]:
        """Give the slots; 0 is a job that has not run."""
        return self._slots.tolist()

    def clear(self) -> None:
        """Forget what has run."""
        self._map[:] = bytes(len(self._map))
        self._in_a_row = 0

    def await_count(self, count: int, seconds: float, check: Callable[[], None]) -> bool:
        """Wait for so many jobs; tell whether they have run in that time."""
        end = time.monotonic() + seconds
        while self.in_a_row() < count:
            if time.monotonic() > end:
                return False
            check()
            time.sleep(0.002)
        return True

    def close(self) -> None:
        self._slots.release()
        self._map.close()

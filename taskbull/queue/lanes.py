"""The lanes of one producer: as many as it has calls under way, each used by one call at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from uuid import uuid4

from taskbull.scripts.add import Lane


class Lanes:
    """Lends lanes. Threads share it without a lock; a forked process must make its own."""

    def __init__(self) -> None:
        self._producer = uuid4().hex
        self._free: deque[Lane] = deque()
        self._numbers = count()

    @contextmanager
    def borrowed(self) -> Generator[Lane, None, None]:
        """Give a lane for one call, numbered as the next of its calls."""
        try:
            lane = self._free.pop()
        except IndexError:
            lane = Lane(self._producer, next(self._numbers))
        lane.calls += 1
        try:
            yield lane
        finally:
            self._free.append(lane)

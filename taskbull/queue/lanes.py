"""The lanes of one producer: as many as it has calls under way, each used by one call at a time."""

from __future__ import annotations

import os
from collections import deque
from itertools import count
from uuid import uuid4

from taskbull.scripts.add import Lane


class _Producer:
    """What one process lends: replaced as a whole, so that threads need no lock."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.id = uuid4().hex
        self.free: deque[Lane] = deque()
        self.numbers = count()

    def new_lane(self) -> Lane:
        return Lane(self.id, next(self.numbers))


class Lanes:
    """Lends lanes, to any thread, before and after a fork.

    The producer's id is drawn when the first lane is lent, not before: at import it would be the
    same in all processes that are started from one image.
    """

    def __init__(self) -> None:
        self._producer: _Producer | None = None

    def borrow(self) -> Lane:
        """Lend a lane for one call, numbered as the next of its calls."""
        producer = self._own()
        try:
            lane = producer.free.pop()
        except IndexError:
            lane = producer.new_lane()
        lane.begin_call()
        return lane

    def give_back(self, lane: Lane) -> None:
        """Take back a lane whose call is over."""
        producer = self._producer
        if producer is not None and producer.id == lane.producer:
            producer.free.append(lane)

    def reserve(self) -> Lane:
        """Give a lane for one call that is made later, by whomever: it is not lent any more."""
        lane = self._own().new_lane()
        lane.begin_call()
        lane.mark = uuid4().hex[:16]
        return lane

    def renew(self) -> None:
        """Be another producer: this one's lanes are used by a clone of the process."""
        self._producer = None

    def _own(self) -> _Producer:
        producer = self._producer
        if producer is None or producer.process != os.getpid():
            producer = self._producer = _Producer()
        return producer

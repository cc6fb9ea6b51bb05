"""How many jobs a worker asks for, and when: the bookkeeping of one queue, without IO.

Its rules:

- A call asks for as many jobs as there are free slots, never for more: others want theirs, too.
- One call may always be under way. Further ones, up to `CALLS`, are worth their price when enough
  has gathered for them: so Redis works on one while Python runs the jobs of another.
"""

from __future__ import annotations

from typing import Protocol

CALLS = 4
"""Calls under way at once, at the most."""

BATCH = 50
"""Jobs to end and to take in one call, at the most: Redis serves nobody else meanwhile."""

_ENOUGH = 25
"""Jobs that are worth a further call while another is under way, where there are many slots."""


class Allowance(Protocol):
    """Says how many jobs may be taken of those that are wanted: a circuit breaker does."""

    def allowed(self, wanted: int, asked: int) -> int: ...


class Demand:
    """Knows the slots of a queue, what was asked for, and whether there may be more."""

    def __init__(self, concurrency: int, allowance: Allowance | None = None) -> None:
        self._concurrency = concurrency
        self._allowance = allowance
        self.enough = max(1, min(_ENOUGH, concurrency // 2))
        """How many jobs are worth a call of their own."""
        self.occupied = 0
        """Slots with a job, taken and not ended."""
        self.asked = 0
        """Jobs that calls under way may bring."""
        self.under_way = 0
        """Calls that were sent and are not yet done with."""
        self.hungry = True
        """Whether there may be jobs in Redis that nobody has asked for."""
        self.wakes = 0
        """How often somebody has said that there may be some."""
        self.limited_until = 0.0
        """When jobs may be taken again, by the worker's clock; 0: they may."""
        self.held_until = 0.0
        """When the longest `RateLimited` of a job here is over, by the worker's clock."""
        self.stopping = False

    def room(self) -> int:
        """Return how many jobs may be asked for now."""
        if self.stopping or self.limited_until:
            return 0
        free = self._concurrency - self.occupied - self.asked
        return free if self._allowance is None else self._allowance.allowed(free, self.asked)

    def wake(self) -> None:
        """Note that there may be jobs."""
        self.wakes += 1
        self.hungry = True

    def due(self, outcomes: int, apart: int) -> int | None:
        """Return how many jobs a call is to ask for that is due now; None if none is.

        So many `outcomes` are to be written. If `apart` of them go one by one, no jobs are asked
        for.
        """
        under_way = self.under_way
        if apart:
            return 0 if outcomes and not under_way else None
        if under_way >= CALLS:
            return None
        least = self.enough if under_way else 1
        room = self.room()
        if outcomes >= least or (self.hungry and room >= least):
            return min(BATCH, room)
        return None

    def sent(self, want: int) -> None:
        """Note a call that asks for `want` jobs."""
        self.asked += want
        self.under_way += 1

    def answered(self, want: int, taken: int, wakes: int) -> None:
        """Note what a call has brought that was sent when there had been so many `wakes`."""
        if taken == want:
            self.hungry = True
        elif wakes == self.wakes:  # else somebody knows of jobs that came after this call
            self.hungry = False

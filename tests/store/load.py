"""Callers that increment counters in Redis continuously, and a record of their replies."""

from __future__ import annotations

from collections import Counter

import anyio

from taskbull.errors import MaybeExecuted
from taskbull.store.async_store import Store
from tests.store.sample import count


class Load:
    """Each caller counts in its own field. `stop` ends all of them."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._stopped = False
        self._goal = 0
        self._reached = anyio.Event()
        self.seen: Counter[str] = Counter()

    async def call(self, caller: int) -> None:
        while not self._stopped:
            try:
                await self._store.run(count(self._key, f"caller {caller}"))
                self.seen["answered"] += 1
                if self.seen["answered"] == self._goal:
                    self._reached.set()
            except MaybeExecuted:
                self.seen["maybe executed"] += 1

    async def answered(self, more: int) -> None:
        """Wait until this many more calls have been answered."""
        self._reached = anyio.Event()
        self._goal = self.seen["answered"] + more
        await self._reached.wait()

    def stop(self) -> None:
        self._stopped = True

"""Samples of all queues, taken once and shared by all viewers.

There is no sampling task. A request that needs the next sample acquires a lock (the baton), waits
until a sample is due and takes it. Requests that wait for the lock then find the new sample.
Without viewers, Redis is not queried. If the request that holds the lock is cancelled, the next
one takes over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from anyio import Lock, sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.queue_health import QueueFacts
from taskbull.core.trouble import Trouble, find_trouble
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.monitor.browse import ConnectedWorker, QueueSample, Workers
from taskbull.monitor.overview import Overview
from taskbull.monitor.queue_watch import QueueWatch
from taskbull.monitor.server import Server

INTERVAL: Final = 2.0
"""Seconds between samples."""

_SEARCH_SECONDS: Final = 0.05
"""Seconds that the first page view may spend searching the keys for queues."""

_ON_SCREEN: Final = 10.0
"""Seconds that a queue keeps its priority in samples after a view."""


class QueueState(Struct, frozen=True):
    """The sampled state of one queue."""

    found: QueueSample
    facts: QueueFacts
    troubles: list[Trouble]
    workers: tuple[ConnectedWorker, ...] = ()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.facts.name


class BoardSample(Struct, frozen=True):
    """A sample of all queues."""

    number: int = 0
    at: float = 0.0
    """Time of the sample, in seconds since 1970."""
    queues: dict[str, QueueState] = {}
    workers: Workers = Workers({})
    problem: str | None = None
    """Error if Redis was unavailable, so that the data is from an earlier sample."""
    is_denied: bool = False
    """True if the error is that the Redis user lacks a permission."""
    searched: float = 0.0
    """Approximate share of the keys searched for queues; 1 after a full pass."""

    @property
    def stale_since(self) -> datetime | None:
        """Time of the data if it is stale, otherwise `None`."""
        return None if self.problem is None else datetime.fromtimestamp(self.at, UTC)

    @property
    def troubles(self) -> list[Trouble]:
        """The problems of all queues, the most severe first."""
        found = [trouble for state in self.queues.values() for trouble in state.troubles]
        return sorted(found, key=lambda trouble: -trouble.weight)


class DashboardSampler:
    """Takes samples on demand and shares them between requests."""

    def __init__(self, server: Server, *, writes: bool = False) -> None:
        self._server = server
        self._writes = writes
        """True to store the names of discovered queues in Redis."""
        self._baton = Lock()
        self._overview = Overview(_SEARCH_SECONDS, apart=True)
        self._current = BoardSample()
        self._tried = 0.0
        """Monotonic time of the last attempt to take a sample."""
        self._searched = 0.0
        """Monotonic time of the last search of the keys."""
        self._on_screen: dict[str, float] = {}
        """Queues shown on a page, with the time of the last view."""

    async def latest(self, wanted: Sequence[str] = ()) -> BoardSample:
        """Return a sample that is at most 2 s old. Concurrent callers share it.

        It includes the queues in `wanted` if they exist, even if they were not discovered yet.
        """
        for name in wanted:
            self._server.queue(name)  # rejects invalid names
        async with self._baton:
            if time.monotonic() - self._tried >= INTERVAL or not self._current.number:
                await self._take(wanted)
            elif self._current.problem is None:
                missing = [name for name in wanted if name not in self._current.queues]
                if there := [name for name in missing if await self._server.exists(name)]:
                    await self._take(there)
            for name in wanted:
                if name in self._current.queues:
                    self._on_screen[name] = time.monotonic()
            return self._current

    async def next(self, seen: int) -> BoardSample:
        """Wait for a sample that is newer than number `seen`."""
        async with self._baton:
            if self._current.number <= seen:
                await sleep(max(0.0, self._tried + INTERVAL - time.monotonic()))
                await self._take(())
            return self._current

    async def search(self) -> None:
        """Continue the search for queues if it is due.

        Call it when no browser is waiting for a response.
        """
        now = time.monotonic()
        if not self._current.number or now - self._searched < INTERVAL:
            return
        self._searched = now
        with suppress(TaskbullError):  # the next sample reports the error
            await self._server.find_more_queues(self._overview, write=self._writes)

    def expire(self, queue: str) -> None:
        """Make the next call take a new sample, because a queue was changed or removed."""
        self._tried = 0.0
        self._overview.expire(queue)

    async def _take(self, wanted: Iterable[str]) -> None:
        now = self._tried = time.monotonic()
        recent = {name: at for name, at in self._on_screen.items() if now - at < _ON_SCREEN}
        self._on_screen = recent
        number = self._current.number + 1
        overview = self._overview
        try:
            await self._server.watch(overview, {*wanted, *recent})
        except TaskbullError as error:
            is_denied = isinstance(error, ServerRefused) and error.code == "NOPERM"
            self._current = replace(
                self._current, number=number, problem=str(error), is_denied=is_denied
            )
            return
        workers = overview.workers or Workers({})
        states = {name: self._state(watch, workers) for name, watch in overview.watches.items()}
        searched = overview.names.searched
        self._current = BoardSample(number, time.time(), states, workers, searched=searched)

    def _state(self, watch: QueueWatch, workers: Workers) -> QueueState:
        """Return a queue's state; the same object as before if it was not sampled again."""
        known = self._current.queues.get(watch.name)
        if known is not None and watch.name not in self._overview.seen:
            return known
        assert watch.sample is not None, "the first round looks at all"  # noqa: S101
        facts = watch.facts()
        there = tuple(workers.by_queue.get(watch.name, ()))
        return QueueState(watch.sample, facts, find_trouble(facts), there)

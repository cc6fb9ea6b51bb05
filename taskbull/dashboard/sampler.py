"""What all queues are like now, looked at once for everybody who watches.

There is no task that samples. Whoever wants the next sample takes the baton, a lock: the holder
waits until a sample is due, and takes it; the others wait for the baton, and find it taken. If
nobody watches, nothing is asked; if the holder goes, the baton is passed on.
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
from taskbull.errors import TaskbullError
from taskbull.monitor.browse import ConnectedWorker, Crew, Surveyed
from taskbull.monitor.overview import Overview
from taskbull.monitor.queue_watch import QueueWatch
from taskbull.monitor.server import Server

INTERVAL: Final = 2.0
"""Seconds between samples."""

_SEARCH_SECONDS: Final = 0.05
"""For how long the first page may search the keys for queues."""

_ON_SCREEN: Final = 10.0
"""Seconds for which a queue that somebody has looked at comes first."""


class QueueState(Struct, frozen=True):
    """What is known of one queue."""

    found: Surveyed
    facts: QueueFacts
    troubles: list[Trouble]
    workers: tuple[ConnectedWorker, ...] = ()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.facts.name


class BoardSample(Struct, frozen=True):
    """All queues at one moment."""

    number: int = 0
    at: float = 0.0
    """In seconds since 1970."""
    queues: dict[str, QueueState] = {}
    crew: Crew = Crew({})
    problem: str | None = None
    """Why it is not of now: Redis was away."""
    searched: float = 0.0
    """About how much of the keys has been searched for queues; 1: all of them, at least once."""

    @property
    def stale_since(self) -> datetime | None:
        """When it was taken, if that is not now."""
        return None if self.problem is None else datetime.fromtimestamp(self.at, UTC)

    @property
    def troubles(self) -> list[Trouble]:
        """All that is wrong, the worst first."""
        found = [trouble for state in self.queues.values() for trouble in state.troubles]
        return sorted(found, key=lambda trouble: -trouble.weight)


class BoardSampler:
    """Takes samples for those who ask."""

    def __init__(self, server: Server, *, writes: bool = False) -> None:
        self._server = server
        self._writes = writes
        """Whether it writes down which queues it has found."""
        self._baton = Lock()
        self._overview = Overview(_SEARCH_SECONDS, apart=True)
        self._current = BoardSample()
        self._tried = 0.0
        """When the last sample was tried, by a clock that never jumps."""
        self._searched = 0.0
        """When the keys were last searched."""
        self._on_screen: dict[str, float] = {}
        """The queues that somebody looks at, and when that was last."""

    async def latest(self, wanted: Sequence[str] = ()) -> BoardSample:
        """Return a sample that is at most 2 s old; those who ask at the same time share it.

        Queues that are wanted are among them if they exist, whether or not they were found yet.
        """
        for name in wanted:
            self._server.queue(name)  # refuses what cannot be a name
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
        """Wait for a sample after the one with this number."""
        async with self._baton:
            if self._current.number <= seen:
                await sleep(max(0.0, self._tried + INTERVAL - time.monotonic()))
                await self._take(())
            return self._current

    async def search(self) -> None:
        """Go on searching the keys for queues, if it is time: when nobody waits for an answer."""
        now = time.monotonic()
        if not self._current.number or now - self._searched < INTERVAL:
            return
        self._searched = now
        with suppress(TaskbullError):  # the next sample tells
            await self._server.find_more_queues(self._overview, write=self._writes)

    def expire(self, queue: str) -> None:
        """Have the next who asks take a new sample: a queue has been changed, or even removed."""
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
            self._current = replace(self._current, number=number, problem=str(error))
            return
        crew = overview.crew or Crew({})
        states = {name: self._state(watch, crew) for name, watch in overview.watches.items()}
        searched = overview.names.searched
        self._current = BoardSample(number, time.time(), states, crew, None, searched)

    def _state(self, watch: QueueWatch, crew: Crew) -> QueueState:
        """Return what is known of a queue: as before, if it was not looked at again."""
        known = self._current.queues.get(watch.name)
        if known is not None and watch.name not in self._overview.seen:
            return known
        assert watch.sample is not None, "the first round looks at all"  # noqa: S101
        facts = watch.facts()
        workers = tuple(crew.workers.get(watch.name, ()))
        return QueueState(watch.sample.found, facts, find_trouble(facts), workers)

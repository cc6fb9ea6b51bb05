"""What all queues are like now, looked at once for everybody who watches.

There is no task that samples. Whoever wants the next sample takes the baton, a lock: the holder
waits until a sample is due, and takes it; the others wait for the baton, and find it taken. If
nobody watches, nothing is asked; if the holder goes, the baton is passed on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from anyio import Lock, sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.queue_facts import QueueFacts
from taskbull.core.trouble import Trouble, find_trouble
from taskbull.dashboard.watching import WatchedQueue
from taskbull.errors import TaskbullError
from taskbull.queue.looked import ConnectedWorker, Crew, QueueSample, Surveyed
from taskbull.queue.queue_search import SearchPlace
from taskbull.queue.server import Server

INTERVAL: Final = 2.0
"""Seconds between samples."""

_CREW_EVERY: Final = 5.0
_CREW_RARELY: Final = 30.0
_MANY_CLIENTS: Final = 1000
_CALLS_PER_SECOND: Final = 25
_SEARCH_EVERY: Final = 60.0
_SEARCH_SECONDS: Final = 0.05
_MINUTES: Final = 60


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
    searched: bool = False
    """Whether all keys have been searched for queues once."""

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

    def __init__(self, server: Server) -> None:
        self._server = server
        self._baton = Lock()
        self._current = BoardSample()
        self._tried = 0.0
        """When the last sample was tried, by a clock that never jumps."""
        self._names = _Names(server)
        self._crew_at = -_CREW_RARELY
        self._watched: dict[str, WatchedQueue] = {}

    async def latest(self, wanted: Sequence[str] = ()) -> BoardSample:
        """Return a sample that is at most 2 s old; those who ask at the same time share it.

        Queues that are wanted are among them if they exist, whether or not they were found yet.
        """
        for name in wanted:
            self._server.queue(name)  # refuses what cannot be a name
        async with self._baton:
            if time.monotonic() - self._tried >= self._pace or not self._current.number:
                await self._take(wanted)
            elif self._current.problem is None:
                await self._add([name for name in wanted if name not in self._current.queues])
            return self._current

    async def next(self, seen: int) -> BoardSample:
        """Wait for a sample after the one with this number."""
        async with self._baton:
            if self._current.number <= seen:
                await sleep(max(0.0, self._tried + self._pace - time.monotonic()))
                await self._take(())
            return self._current

    def expire(self, queue: str) -> None:
        """Have the next who asks take a new sample: a queue has been changed, or even removed."""
        self._tried = 0.0
        self._names.changed.add(queue)

    @property
    def _pace(self) -> float:
        return max(INTERVAL, len(self._current.queues) / _CALLS_PER_SECOND)

    async def _take(self, wanted: Iterable[str]) -> None:
        self._tried = time.monotonic()
        number = self._current.number + 1
        try:
            crew = await self._look_at_crew()
            names = await self._names.all(crew, wanted)
            samples = await self._server.sample(names, minutes=_MINUTES)
            states = {each.name: await self._state(each, crew) for each in samples}
        except TaskbullError as error:
            self._current = replace(self._current, number=number, problem=str(error))
            return
        searched = self._names.searched_once
        self._current = BoardSample(number, time.time(), states, crew, None, searched)

    async def _add(self, names: list[str]) -> None:
        """Look at queues that nobody has found yet, if they are there."""
        there = [name for name in names if await self._server.exists(name)]
        if there:
            self._names.known.update(there)
            for each in await self._server.sample(there, minutes=_MINUTES):
                self._current.queues[each.name] = await self._state(each, self._current.crew)

    async def _state(self, sample: QueueSample, crew: Crew) -> QueueState:
        name = sample.name
        watched = self._watched.setdefault(name, WatchedQueue(self._server, name))
        facts = await watched.facts(sample, crew)
        workers = tuple(crew.workers.get(name, ()))
        return QueueState(sample.found, facts, find_trouble(facts), workers)

    async def _look_at_crew(self) -> Crew:
        crew, now = self._current.crew, time.monotonic()
        every = _CREW_RARELY if crew.clients > _MANY_CLIENTS else _CREW_EVERY
        if now - self._crew_at < every:
            return crew
        crew = await self._server.crew()
        self._crew_at = now
        return crew


class _Names:
    """Finds the queues: by what is known, and by a search that goes on where it stopped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.known: set[str] = set()
        self.changed: set[str] = set()
        """Queues that may not be there any more."""
        self.searched_once = False
        self._round: set[str] = set()
        """What the search has found since it began anew."""
        self._place: SearchPlace | None = None
        self._rests_until = 0.0

    async def all(self, crew: Crew, wanted: Iterable[str]) -> list[str]:
        """Return the names of all queues that are known by now."""
        for name in list(self.changed):
            if not await self._server.exists(name):
                self.known.discard(name)
            self.changed.discard(name)
        await self._search()
        self.known.update(crew.workers, await self._server.registered_queues())
        self.known.update(self._server.known_queues)
        for name in wanted:
            if name not in self.known and await self._server.exists(name):
                self.known.add(name)
        return sorted(self.known)

    async def _search(self) -> None:
        """Go on with the search for a twentieth of a second; a round per minute."""
        start = time.monotonic()
        if start < self._rests_until:
            return
        while time.monotonic() - start < _SEARCH_SECONDS:
            names, self._place = await self._server.find_queues(self._place)
            self.known.update(names)
            self._round.update(names)
            if self._place is None:
                # What was not found is gone, unless somebody else still speaks of it.
                self.known, self._round = self._round, set()
                self.searched_once = True
                self._rests_until = time.monotonic() + _SEARCH_EVERY
                return

"""All queues over time: one round of looks after the other, each at a bounded price."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from taskbull.core.queue_facts import QueueFacts
from taskbull.core.trouble import Trouble, find_trouble
from taskbull.queue.looked import Crew
from taskbull.queue.methods import looks
from taskbull.queue.questions import Look, ask, ask_together
from taskbull.queue.queue_search import SearchPlace, all_queues, find_queues
from taskbull.queue.queue_watch import QueueWatch
from taskbull.queue.server_whys import ServerWhys
from taskbull.scripts import records, survey

_CREW: Final = 5.0
"""Seconds between two looks at the connections of the servers."""

_MANY_CLIENTS: Final = 1000
_CREW_OF_MANY: Final = 30.0
_WORKERS: Final = 10.0
"""Seconds between two looks at records, at locks and at what ended by minute."""

_SEARCH: Final = 60.0
"""Seconds between two searches for queues."""

_STEPS: Final = 5
"""Steps of such a search in one round."""

_AT_ONCE: Final = 50
"""How many queues are asked for in one trip."""

_OLDEST: Final = 20
_MINUTE_MS: Final = 60_000


class Overview:
    """What is known of all queues; `Server.watch` adds to it."""

    def __init__(self) -> None:
        self.watches: dict[str, QueueWatch] = {}
        self.place: SearchPlace | None = None
        self.searched_at = self.crew_at = self.workers_at = float("-inf")
        self.crew: Crew | None = None

    def add(self, names: Iterable[str]) -> None:
        """Watch these queues, too."""
        for name in names:
            self.watches.setdefault(name, QueueWatch(name))

    def facts(self, now: datetime | None = None) -> list[QueueFacts]:
        """Return what is known of each queue, by name."""
        now = datetime.now(UTC).astimezone() if now is None else now
        seen = [watch for watch in self.watches.values() if watch.sample is not None]
        return [watch.facts(now) for watch in sorted(seen, key=lambda watch: watch.name)]


def all_trouble(facts: Iterable[QueueFacts]) -> list[Trouble]:
    """Return what is wrong with all queues, the worst first."""
    found = [trouble for one in facts for trouble in find_trouble(one)]
    return sorted(found, key=lambda trouble: (-trouble.weight, trouble.queue))


class ServerOverview(ServerWhys):
    """The round of looks at all queues."""

    _known: frozenset[str]

    @looks
    def watch(self, overview: Overview) -> Look[None]:
        """Look at all queues once more; what is due seldom is asked seldom.

        One call for each queue; every 5 s one CLIENT LIST for each server; every 10 s three calls
        more for each queue; five steps of a search for queues, until that is done for a minute.
        """
        now = time.monotonic()
        yield from self._find(overview, now)
        clients = 0 if overview.crew is None else overview.crew.clients
        if now - overview.crew_at >= (_CREW if clients < _MANY_CLIENTS else _CREW_OF_MANY):
            overview.crew_at = now
            overview.crew = yield from self._crew()
            overview.add(overview.crew.workers)
        names = list(overview.watches)
        for some in _pieces(names):
            for sample in (yield from self._sample(some, 60)):
                overview.watches[sample.name].sampled(sample)
        if now - overview.workers_at >= _WORKERS or any(
            watch.unmet for watch in overview.watches.values()
        ):
            overview.workers_at = now
            yield from self._meet(overview, names)
        for watch in overview.watches.values():
            watch.crew = overview.crew

    def _find(self, overview: Overview, now: float) -> Look[None]:
        if overview.searched_at == float("-inf"):
            overview.searched_at = now
            overview.add((yield from all_queues(self.namespace, self._known)))
            overview.add((yield from ask(records.get_registered(self.namespace.prefix))))
            return
        if overview.place is None and now - overview.searched_at < _SEARCH:
            return
        for _ in range(_STEPS):
            names, overview.place = yield from find_queues(self.namespace, overview.place)
            overview.add(names)
            if overview.place is None:
                overview.searched_at = now
                return

    def _meet(self, overview: Overview, names: Sequence[str]) -> Look[None]:
        minute_ms = int(time.time() * 1000) // _MINUTE_MS * _MINUTE_MS
        for some in _pieces(names):
            keys = [self.namespace.keys(name) for name in some]
            seen = yield from ask_together([records.get_records(each) for each in keys])
            ends = yield from ask_together(
                [survey.count_ends(each, minute_ms, 60) for each in keys]
            )
            active = yield from ask_together(
                [survey.peek_active(each, 0, _OLDEST - 1) for each in keys]
            )
            for name, those, ended, jobs in zip(some, seen, ends, active, strict=True):
                watch = overview.watches[name]
                watch.met(overview.crew, those)
                watch.counted(ended)
                watch.peeked(jobs)


def _pieces(names: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(names), _AT_ONCE):
        yield names[start : start + _AT_ONCE]

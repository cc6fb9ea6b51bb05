"""All queues over time: one round of looks after the other, each at a bounded price.

Both `taskbull top` and the dashboard look by these rounds. A round samples at most 50 queues, those
first that somebody wants to see or that were not seen for longest; what changes slowly is asked for
less often, and only as many queues are asked about that. So a round costs the same with a
thousand queues as with a hundred: it only takes more of them until all were seen again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Final

from taskbull.core.queue_health import QueueFacts
from taskbull.core.trouble import LEAST_FAILED, MINUTES, Trouble, find_trouble
from taskbull.errors import SerializationError, ServerRefused, TaskbullError
from taskbull.monitor.browse import Crew
from taskbull.monitor.explain import ServerWhys
from taskbull.monitor.queue_watch import QueueWatch
from taskbull.monitor.search import QueueNames, find_names
from taskbull.queue.methods import looks
from taskbull.queue.questions import LOST, Look, ask_queues
from taskbull.scripts import browse, records

_CREW: Final = 5.0
"""Seconds between two looks at the connections of the servers."""

_MANY_CLIENTS: Final = 1000
_CREW_OF_MANY: Final = 30.0

_SAMPLED: Final = 50
"""How many queues are sampled in a round, and how many are asked for in one trip."""

_SLOWLY: Final = 10.0
"""Seconds between two looks at a queue's records, at its locks and at what ended by minute."""

_MET: Final = 16
"""About how many queues a round asks for these: three calls each."""

_FAILING: Final = 30.0
"""Seconds between two looks at why jobs of a queue fail, if many do."""

_FAILURES: Final = 200
_FAILING_AT_ONCE: Final = 2
_OLDEST: Final = 20
_MINUTE_MS: Final = 60_000


class Overview:
    """What is known of all queues; `Server.watch` adds to it.

    `patience` is for how many seconds the first round may search the keys for queues. `apart`: no
    other round does so, but `Server.find_more_queues`.
    """

    def __init__(self, patience: float = inf, *, apart: bool = False) -> None:
        self.names = QueueNames(patience, apart=apart)
        self.watches: dict[str, QueueWatch] = {}
        self.crew: Crew | None = None
        self.crew_at = -inf
        self.seen: set[str] = set()
        """The queues that the last round has looked at."""

    def facts(self, now: datetime | None = None) -> list[QueueFacts]:
        """Return what is known of each queue, by name."""
        now = datetime.now(UTC).astimezone() if now is None else now
        seen = [watch for watch in self.watches.values() if watch.sample is not None]
        return [watch.facts(now) for watch in sorted(seen, key=lambda watch: watch.name)]

    def keep(self, names: Collection[str]) -> None:
        """Watch these queues, and no others."""
        self.watches = {name: self.watches.get(name) or QueueWatch(name) for name in names}

    def expire(self, queue: str) -> None:
        """Have the next round look at a queue: it has been changed, or even removed."""
        self.names.changed.add(queue)
        if queue in self.watches:
            self.watches[queue].sampled_at = -inf

    def next_sampled(self, wanted: Collection[str]) -> list[QueueWatch]:
        """Choose the queues of a round: new ones, wanted ones, and those not seen for longest."""
        new = [watch for watch in self.watches.values() if watch.sampled_at == -inf]
        others = [watch for watch in self.watches.values() if watch.sampled_at > -inf]
        others.sort(key=lambda watch: (watch.name not in wanted, watch.sampled_at))
        return new + others[: max(0, _SAMPLED - len(new))]

    def next_met(self, now: float) -> list[QueueWatch]:
        """Choose the queues of which a round asks what changes slowly."""
        due = [watch for watch in self.watches.values() if now - watch.met_at >= _SLOWLY]
        due.sort(key=lambda watch: watch.met_at)
        new = sum(watch.met_at == -inf for watch in due)
        return due[: max(new, _MET)]

    def next_failing(self, now: float) -> list[QueueWatch]:
        """Choose some queues of which many jobs have failed."""
        seen = [self.watches[name] for name in self.seen]
        due = [watch for watch in seen if watch.has_failed and now - watch.failures_at >= _FAILING]
        due = [each for each in due if each.facts().failed.total(MINUTES) >= LEAST_FAILED]
        return sorted(due, key=lambda watch: watch.failures_at)[:_FAILING_AT_ONCE]


def all_trouble(facts: Iterable[QueueFacts]) -> list[Trouble]:
    """Return what is wrong with all queues, the worst first."""
    found = [trouble for one in facts for trouble in find_trouble(one)]
    return sorted(found, key=lambda trouble: (-trouble.weight, trouble.queue))


class ServerOverview(ServerWhys):
    """The round of looks at all queues."""

    _known: frozenset[str]

    @looks
    def watch(self, overview: Overview, wanted: Collection[str] = ()) -> Look[None]:
        """Look at all queues once more, or at 50 of them; what is due seldom is asked seldom.

        One call for each of these queues, three more for 16 of them; every 5 s one CLIENT LIST for
        each server; a search for queues, for a twentieth of a second, once a minute; and six calls
        for each of two queues of which many jobs fail. The first round asks about all queues.
        """
        now = time.monotonic()
        overview.seen = set()
        clients = 0 if overview.crew is None else overview.crew.clients
        if now - overview.crew_at >= (_CREW if clients < _MANY_CLIENTS else _CREW_OF_MANY):
            overview.crew = yield from self._crew()
            overview.crew_at = now
        there = self._there(overview)
        overview.keep((yield from find_names(self.namespace, overview.names, there, wanted)))
        for some in _pieces(overview.next_sampled(wanted)):
            yield from self._sample_some(overview, some, now)
        for some in _pieces(overview.next_met(now)):
            yield from self._meet(overview, some, now)
        for watch in overview.watches.values():
            watch.crew = overview.crew
        for watch in overview.next_failing(now):
            watch.failures_at = now
            # What is wrong, the sample says.
            with suppress(ServerRefused, SerializationError, *LOST):
                watch.failed((yield from self._failures(watch.name, _FAILURES)))

    @looks
    def find_more_queues(self, overview: Overview, *, write: bool = False) -> Look[None]:
        """Go on searching the keys for queues, with at most 40 commands; a search begins each
        minute. `write`: write down what was found, for others who look."""
        names = overview.names
        yield from names.search(self.namespace)
        if write and names.may_write:
            yield from names.write(self.namespace, self._there(overview))

    def _there(self, overview: Overview) -> set[str]:
        """Return the queues that are known whether or not there is a key of them."""
        return {*self._known, *(overview.crew.workers if overview.crew else ())}

    def _sample_some(
        self, overview: Overview, some: Sequence[QueueWatch], now: float
    ) -> Look[None]:
        samples = yield from self._sample([watch.name for watch in some], 60)
        for watch, sample in zip(some, samples, strict=True):
            watch.sampled(sample)
            watch.sampled_at = now
            overview.seen.add(watch.name)

    def _meet(self, overview: Overview, some: Sequence[QueueWatch], now: float) -> Look[None]:
        minute_ms = int(time.time() * 1000) // _MINUTE_MS * _MINUTE_MS
        names = [watch.name for watch in some]
        seen = yield from ask_queues(self.namespace, names, records.get_records)
        ends = yield from ask_queues(
            self.namespace, names, lambda keys: browse.count_ends(keys, minute_ms, 60)
        )
        for watch in some:
            those, ended = seen[watch.name], ends[watch.name]
            if isinstance(those, TaskbullError):
                watch.misread(those)
            elif isinstance(ended, TaskbullError):
                watch.misread(ended)
            else:
                watch.misread(None)
                watch.met(overview.crew, those)
                watch.counted(ended)
            watch.met_at = now
            overview.seen.add(watch.name)
        busy = [watch.name for watch in some if watch.is_busy]
        active = yield from ask_queues(
            self.namespace, busy, lambda keys: browse.peek_active(keys, 0, _OLDEST - 1)
        )
        for watch in some:
            jobs = active.get(watch.name, ())
            watch.peeked(() if isinstance(jobs, TaskbullError) else jobs)


def _pieces(watches: Sequence[QueueWatch]) -> Iterable[Sequence[QueueWatch]]:
    for start in range(0, len(watches), _SAMPLED):
        yield watches[start : start + _SAMPLED]

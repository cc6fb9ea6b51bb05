"""Monitoring of all queues over time, in rounds of bounded cost.

`taskbull top` and the dashboard both use these rounds. A round samples all new queues and fills up
to 50 with others: requested ones first, then those not sampled for the longest time. Slowly
changing information is read less often, and for fewer queues per round. So a round costs the same
with a thousand queues as with a hundred. It only takes more rounds to refresh all queues.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Final

from taskbull.core.queue_health import QueueFacts, RedisNode, read_node
from taskbull.core.trouble import LEAST_FAILED, MINUTES, Trouble, find_trouble
from taskbull.errors import SerializationError, ServerRefused, TaskbullError
from taskbull.monitor.browse import JobRows, Workers
from taskbull.monitor.explain import ServerExplanations, count_ends, next_delayed, oldest_running
from taskbull.monitor.queue_watch import QueueWatch
from taskbull.monitor.search import QueueNames, find_names
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import LOST, ask_on, ask_queues, list_servers
from taskbull.scripts import records, servers
from taskbull.scripts.call import AnySteps

_WORKERS: Final = 5.0
"""Seconds between two reads of the servers' client lists."""

_MANY_CLIENTS: Final = 1000
_WORKERS_OF_MANY: Final = 30.0

_SAMPLED: Final = 50
"""Number of queues sampled per round, and maximum number of queues per round trip."""

_SLOWLY: Final = 10.0
"""Seconds between two reads of a queue's records, locks and per-minute counts."""

_MET: Final = 16
"""Approximate number of queues per round for these reads, with up to four calls each."""

_FAILING: Final = 30.0
"""Seconds between two reads of a queue's failures, if many jobs fail."""

_FAILURES: Final = 200
_FAILING_AT_ONCE: Final = 2

_ROUNDS: Final = 20
"""Maximum number of rounds of `Server.measure`. They refresh 1,000 queues."""

_SNAPSHOTS: Final = ("save", "stop-writes-on-bgsave-error")
"""Settings that decide whether Redis refuses writes after a failed snapshot."""


class Overview:
    """The collected information about all queues. `Server.watch` updates it.

    `patience` limits the search for queues in the first round, in seconds. With `apart`, later
    rounds do not search; call `Server.find_more_queues` to continue the search.
    """

    def __init__(self, patience: float = inf, *, apart: bool = False) -> None:
        self.names = QueueNames(patience, apart=apart)
        self.watches: dict[str, QueueWatch] = {}
        self.workers: Workers | None = None
        self.workers_at = -inf
        self.nodes: Sequence[RedisNode] = ()
        """The Redis servers, as of the last call of `Server.measure`."""
        self.seen: set[str] = set()
        """Names of the queues that the last round has read."""

    def facts(self, now: datetime | None = None) -> list[QueueFacts]:
        """Return the facts about each sampled queue, sorted by name."""
        now = datetime.now(UTC).astimezone() if now is None else now
        seen = [watch for watch in self.watches.values() if watch.sample is not None]
        return [watch.facts(now) for watch in sorted(seen, key=lambda watch: watch.name)]

    def keep(self, names: Collection[str]) -> None:
        """Watch only these queues. Known queues keep their history."""
        self.watches = {name: self.watches.get(name) or QueueWatch(name) for name in names}

    def expire(self, queue: str) -> None:
        """Make the next round sample a queue that was changed or removed."""
        self.names.changed.add(queue)
        if queue in self.watches:
            self.watches[queue].sampled_at = -inf

    def next_sampled(self, wanted: Collection[str]) -> list[QueueWatch]:
        """Choose the queues to sample: new ones, then wanted ones, then the least recent."""
        new = [watch for watch in self.watches.values() if watch.sampled_at == -inf]
        others = [watch for watch in self.watches.values() if watch.sampled_at > -inf]
        others.sort(key=lambda watch: (watch.name not in wanted, watch.sampled_at))
        return new + others[: max(0, _SAMPLED - len(new))]

    def next_met(self, now: float) -> list[QueueWatch]:
        """Choose the queues whose slowly changing information is due."""
        due = [watch for watch in self.watches.values() if now - watch.met_at >= _SLOWLY]
        due.sort(key=lambda watch: watch.met_at)
        new = sum(watch.met_at == -inf for watch in due)
        return due[: max(new, _MET)]

    def next_failing(self, now: float) -> list[QueueWatch]:
        """Choose some queues with many failed jobs whose failures are due to be read."""
        seen = [self.watches[name] for name in self.seen]
        due = [watch for watch in seen if watch.has_failed and now - watch.failures_at >= _FAILING]
        due = [each for each in due if each.facts().failed.total(MINUTES) >= LEAST_FAILED]
        return sorted(due, key=lambda watch: watch.failures_at)[:_FAILING_AT_ONCE]


def all_trouble(facts: Iterable[QueueFacts]) -> list[Trouble]:
    """Return the problems of all queues, the worst first."""
    found = [trouble for one in facts for trouble in find_trouble(one)]
    return sorted(found, key=lambda trouble: (-trouble.weight, trouble.queue))


class ServerOverview(ServerExplanations):
    """Methods that update an overview of all queues."""

    _known: frozenset[str]

    @server_operation
    def watch(self, overview: Overview, wanted: Collection[str] = ()) -> AnySteps[None]:
        """Run one round: update the overview of all queues, or of 50 if there are more.

        A round sends one call per sampled queue and up to four more for about 16 of them. Every
        5 s it sends one CLIENT LIST per server, or every 30 s if there are 1,000 clients or more.
        Once a minute, a search for queues starts, which takes at most 0.05 s per round. For up to
        two queues with many failed jobs, it sends six calls each. The first round reads all queues.
        """
        return self._round(overview, wanted)

    @server_operation
    def measure(self, overview: Overview) -> AnySteps[None]:
        """Run rounds until all queues are up to date, at most 20, and read the servers' INFO.

        If Redis cannot save its data, it also sends two CONFIG GET per server.
        """
        begun = time.monotonic()
        for _ in range(_ROUNDS):
            yield from self._round(overview, ())
            if all(watch.sampled_at >= begun for watch in overview.watches.values()):
                break
        overview.nodes = yield from _read_nodes()

    def _round(self, overview: Overview, wanted: Collection[str]) -> AnySteps[None]:
        now = time.monotonic()
        overview.seen = set()
        clients = 0 if overview.workers is None else overview.workers.clients
        if now - overview.workers_at >= (_WORKERS if clients < _MANY_CLIENTS else _WORKERS_OF_MANY):
            overview.workers = yield from self._workers()
            overview.workers_at = now
        there = self._there(overview)
        overview.keep((yield from find_names(self.namespace, overview.names, there, wanted)))
        for some in _pieces(overview.next_sampled(wanted)):
            yield from self._sample_some(overview, some, now)
        for some in _pieces(overview.next_met(now)):
            yield from self._meet(overview, some, now)
        for watch in overview.watches.values():
            watch.workers = overview.workers
        for watch in overview.next_failing(now):
            watch.failures_at = now
            # The sample already reports the problem.
            with suppress(ServerRefused, SerializationError, *LOST):
                watch.failed((yield from self._failures(watch.name, _FAILURES)))

    @server_operation
    def find_more_queues(self, overview: Overview, *, write: bool = False) -> AnySteps[None]:
        """Continue the search of all keys for queues, with at most 40 commands.

        A new search starts every minute. With `write`, the names found are stored in the registry.
        """
        names = overview.names
        yield from names.search(self.namespace)
        if write and names.may_write:
            yield from names.write(self.namespace, self._there(overview))

    def _there(self, overview: Overview) -> set[str]:
        """Return the queues that are listed even if Redis has no key of them."""
        return {*self._known, *(overview.workers.by_queue if overview.workers else ())}

    def _sample_some(
        self, overview: Overview, some: Sequence[QueueWatch], now: float
    ) -> AnySteps[None]:
        samples = yield from self._sample([watch.name for watch in some], 60)
        for watch, sample in zip(some, samples, strict=True):
            watch.sampled(sample)
            watch.sampled_at = now
            overview.seen.add(watch.name)

    def _meet(self, overview: Overview, some: Sequence[QueueWatch], now: float) -> AnySteps[None]:
        names = [watch.name for watch in some]
        seen = yield from ask_queues(self.namespace, names, records.get_records)
        ends = yield from ask_queues(self.namespace, names, count_ends)
        for watch in some:
            those, ended = seen[watch.name], ends[watch.name]
            if isinstance(those, TaskbullError):
                watch.misread(those)
            elif isinstance(ended, TaskbullError):
                watch.misread(ended)
            else:
                watch.misread(None)
                watch.met(overview.workers, those)
                watch.counted(ended)
            watch.met_at = now
            overview.seen.add(watch.name)
        busy = [watch.name for watch in some if watch.is_busy]
        active = yield from ask_queues(self.namespace, busy, oldest_running)
        for watch in some:
            page = active.get(watch.name)
            watch.checked(page.rows if isinstance(page, JobRows) else ())
        names = [watch.name for watch in some if watch.has_delayed]
        delayed = yield from ask_queues(self.namespace, names, next_delayed)
        for watch in some:
            page = delayed.get(watch.name)
            watch.delayed(page.rows if isinstance(page, JobRows) else ())


def _read_nodes() -> AnySteps[list[RedisNode]]:
    nodes: list[RedisNode] = []
    for server in (yield from list_servers()):
        name, settings = str(server), dict[str, str]()
        try:
            info = yield from ask_on(server, servers.get_info())
            if info.get("rdb_last_bgsave_status") == "err":
                for setting in _SNAPSHOTS:
                    with suppress(ServerRefused):
                        settings[setting] = yield from ask_on(server, servers.get_setting(setting))
        except ServerRefused:  # An ACL rule or the provider forbids INFO.
            nodes.append(RedisNode(name))
        except LOST as error:
            nodes.append(RedisNode(name, problem=str(error)))
        else:
            nodes.append(read_node(name, info, settings))
    return nodes


def _pieces(watches: Sequence[QueueWatch]) -> Iterable[Sequence[QueueWatch]]:
    for start in range(0, len(watches), _SAMPLED):
        yield watches[start : start + _SAMPLED]

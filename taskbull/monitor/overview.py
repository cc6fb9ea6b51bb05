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
from statistics import median
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from taskbull.core.diagnosis import Trouble, find_trouble
from taskbull.core.keys import JobState
from taskbull.core.queue_health import (
    MINUTE_MS,
    EndCounts,
    QueueFacts,
    RedisNode,
    Source,
    better_counts,
    from_metrics,
)
from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.job import TIMES_FIELDS
from taskbull.errors import SerializationError, ServerRefused, TaskbullError
from taskbull.monitor.browse import JobRows, Workers
from taskbull.monitor.inspect import (
    FAILURES,
    QueueWatch,
    ServerOperations,
    count_ends,
    next_delayed,
    oldest_running,
    read_servers,
)
from taskbull.monitor.search import QueueNames, find_names
from taskbull.queue.questions import (
    LOST,
    ask,
    ask_on,
    ask_queues,
    ask_together,
    list_servers,
    server_operation,
)
from taskbull.scripts import browse, records
from taskbull.scripts.browse import After, SlowCall
from taskbull.scripts.call import AnySteps
from taskbull.scripts.groups import MOST_GROUPS, count_group_jobs

__all__ = ["Overview", "ServerOverview", "SlowCall", "all_trouble"]


# The activity of one queue over the last hour or day, in periods of equal length.


Range: TypeAlias = Literal["hour", "day"]
"""The time range of an `Activity`."""

STEPS: Final[dict[Range, tuple[int, int]]] = {"hour": (2, 30), "day": (30, 48)}
"""Length of a period in minutes, and number of periods, by range."""

_PAGE: Final = 9
"""Maximum number of jobs per period whose times are read."""


class Period(Struct, frozen=True):
    """The activity of a queue in one period. Unknown values are `None`."""

    start: datetime
    completed: int | None
    failed: int | None
    waited: float | None
    """Median of the seconds that the sampled jobs waited for their first attempt."""
    took: float | None
    """Median of the run times of the sampled jobs, in seconds."""
    longest: float | None
    """Longest run time of the sampled jobs, in seconds."""
    sampled: int
    """Number of jobs that these times come from."""


class Activity(Struct, frozen=True):
    """The activity of a queue, oldest period first. The last period is not over yet."""

    minutes: int
    """Length of a period."""
    periods: list[Period]
    completed_from: Source | None
    """Source of the counts of completed jobs, or `None` if they are not recorded."""
    failed_from: Source | None


def _by_period(
    counts: EndCounts | None, now_ms: int, starts: Sequence[int], step_ms: int
) -> list[int | None] | None:
    """Return BullMQ's counts per minute as counts per period, newest first."""
    if counts is None:
        return None
    found: list[int | None] = [None] * len(starts)
    minute_ms = now_ms // MINUTE_MS * MINUTE_MS
    for count in from_metrics(counts, now_ms, len(starts) * step_ms // MINUTE_MS):
        place = (starts[0] - minute_ms + step_ms - 1) // step_ms
        if count is not None and place < len(found):
            found[place] = (found[place] or 0) + count
        minute_ms -= MINUTE_MS
    return found


def _known(
    counts: Sequence[int], since_ms: float | None, starts: Sequence[int]
) -> list[int | None]:
    """Return the counts of kept jobs. Periods that began before the oldest one are unknown."""
    return [
        None if since_ms is None or start < since_ms else count
        for start, count in zip(starts, counts, strict=True)
    ]


def _period(start_ms: int, completed: int | None, failed: int | None, page: JobRows) -> Period:
    jobs = [row.job for row in page.rows if not row.gone]
    took = [
        max(job.finished_ms - job.processed_ms, 0) / 1000
        for job in jobs
        if job.finished_ms is not None and job.processed_ms is not None
    ]
    waited = [
        max(job.processed_ms - job.created_ms - job.delay_ms, 0) / 1000
        for job in jobs
        if job.processed_ms is not None and job.created_ms is not None and job.attempts_made <= 1
    ]
    start = instant_from_ms(start_ms)
    assert start is not None, "a time in this millennium"  # noqa: S101
    return Period(
        start,
        completed,
        failed,
        median(waited) if waited else None,
        median(took) if took else None,
        max(took, default=None),
        len(took),
    )


_WORKERS: Final = 5.0
"""Seconds between two reads of the servers' client lists."""

_MANY_CLIENTS: Final = 1000
_WORKERS_OF_MANY: Final = 30.0

_SAMPLED: Final = 50
"""Number of queues sampled per round, and maximum number of queues per round trip."""

_SLOWLY: Final = 10.0
"""Seconds between two reads of a queue's records, locks and per-minute counts."""

_SETTLING: Final = 5.0
"""Seconds after a change during which each round reads a queue's records, locks and counts.

A worker writes its record within a second after it was made quiet.
"""

_MET: Final = 16
"""Approximate number of queues per round for these reads, with up to four calls each."""

_FAILING: Final = 30.0
"""Seconds between two reads of a queue's failures, if many jobs fail."""

_FAILING_AT_ONCE: Final = 2

_GROUPS_SECONDS: Final = 2.0

_ROUNDS: Final = 20
"""Maximum number of rounds of `Server.measure`. They refresh 1,000 queues."""


class Overview:
    """The collected information about all queues. `Server.watch` updates it.

    `patience` limits the search for queues in the first round, in seconds. With `separate_search`,
    later rounds do not search; call `Server.find_more_queues` to continue the search.
    """

    def __init__(self, patience: float = inf, *, separate_search: bool = False) -> None:
        self.names = QueueNames(patience, separate_search=separate_search)
        self.watches: dict[str, QueueWatch] = {}
        self.workers: Workers | None = None
        self.workers_at = -inf
        self.nodes: Sequence[RedisNode] = ()
        """The Redis servers, read together with the workers."""
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
        """Make the next round sample a queue that was changed or removed.

        The rounds of the next 5 s also read its records, and those of its workers' other queues.
        """
        self.names.changed.add(queue)
        if (changed := self.watches.get(queue)) is None:
            return
        changed.sampled_at = -inf
        workers = {each.id for each in changed.seen}
        for watch in self.watches.values():
            if watch is changed or not workers.isdisjoint(each.id for each in watch.seen):
                watch.changed_at = time.monotonic()

    def next_sampled(self, wanted: Collection[str]) -> list[QueueWatch]:
        """Choose the queues to sample: new ones, then wanted ones, then the least recent."""
        new = [watch for watch in self.watches.values() if watch.sampled_at == -inf]
        others = [watch for watch in self.watches.values() if watch.sampled_at > -inf]
        others.sort(key=lambda watch: (watch.name not in wanted, watch.sampled_at))
        return new + others[: max(0, _SAMPLED - len(new))]

    def next_to_describe(self, now: float) -> list[QueueWatch]:
        """Choose the queues whose slowly changing information is due."""
        due = [
            watch
            for watch in self.watches.values()
            if now - watch.details_read_at >= _SLOWLY or now - watch.changed_at < _SETTLING
        ]
        due.sort(key=lambda watch: watch.details_read_at)
        new = sum(watch.details_read_at == -inf for watch in due)
        return due[: max(new, _MET)]

    def next_failing(self, now: float) -> list[QueueWatch]:
        """Choose some queues with many failed jobs whose failures are due to be read."""
        seen = [self.watches[name] for name in self.seen]
        due = [each for each in seen if now - each.failures_at >= _FAILING]
        due = [each for each in due if each.has_many_failures]
        return sorted(due, key=lambda watch: watch.failures_at)[:_FAILING_AT_ONCE]


def all_trouble(facts: Iterable[QueueFacts]) -> list[Trouble]:
    """Return the problems of all queues, the worst first.

    A problem of Redis or of a worker's machine is returned for one of its queues.
    """
    found = [trouble for one in facts for trouble in find_trouble(one)]
    found.sort(key=lambda trouble: (-trouble.weight, trouble.queue))
    shared = {one.text: one for one in reversed(found) if one.is_shared}
    return [one for one in found if shared.get(one.text, one) is one]


class ServerOverview(ServerOperations):
    """Methods that update an overview of all queues, and read the activity of one."""

    @server_operation
    def watch(self, overview: Overview, wanted: Collection[str] = ()) -> AnySteps[None]:
        """Run one round: update the overview of all queues, or of 50 if there are more.

        A round sends one call per sampled queue and up to four more for about 16 of them. Every
        5 s it sends CLIENT LIST and INFO to each server, or every 30 s if there are 1,000 clients
        or more. Once a minute, a search for queues starts, which takes at most 0.05 s per round.
        For up to two queues with many failed jobs, it sends six calls each. The first round reads
        all queues.
        """
        return self._round(overview, wanted)

    @server_operation
    def measure(self, overview: Overview) -> AnySteps[None]:
        """Run rounds until all queues are up to date, at most 20, and read the servers' INFO.

        If Redis cannot save its data, it also sends two CONFIG GET per server. Each queue with
        prioritized jobs takes up to four calls for its groups, for at most two seconds in all.
        """
        begun = time.monotonic()
        for _ in range(_ROUNDS):
            yield from self._round(overview, ())
            if all(watch.sampled_at >= begun for watch in overview.watches.values()):
                break
        overview.nodes = yield from read_servers()
        begun = time.monotonic()
        known_first = sorted(
            overview.watches.values(), key=lambda each: each.name not in self._known
        )
        for watch in known_first:
            watch.nodes = overview.nodes
            watch.group_jobs = {}
            # Producers can invent queues, so the time for all of them is limited.
            if watch.has_prioritized and time.monotonic() - begun < _GROUPS_SECONDS:
                with suppress(TaskbullError):
                    keys = self.namespace.keys(watch.name)
                    watch.group_jobs = yield from count_group_jobs(keys, MOST_GROUPS)

    @server_operation
    def nodes(self) -> AnySteps[list[RedisNode]]:
        """Read the state of each Redis server, with one INFO each."""
        return read_servers()

    @server_operation
    def slow_calls(self, most: int = 10) -> AnySteps[dict[str, list[SlowCall] | None]]:
        """Read the newest slow calls of each Redis server, or None if it does not list them."""
        found: dict[str, list[SlowCall] | None] = {}
        for server in (yield from list_servers()):
            found[str(server)] = None
            with suppress(ServerRefused, *LOST):
                found[str(server)] = yield from ask_on(server, browse.get_slow_calls(most))
        return found

    def _round(self, overview: Overview, wanted: Collection[str]) -> AnySteps[None]:
        now = time.monotonic()
        overview.seen = set()
        clients = 0 if overview.workers is None else overview.workers.clients
        if now - overview.workers_at >= (_WORKERS if clients < _MANY_CLIENTS else _WORKERS_OF_MANY):
            overview.workers = yield from self._workers()
            overview.nodes = yield from read_servers()
            overview.workers_at = now
        there = self._there(overview)
        overview.keep((yield from find_names(self.namespace, overview.names, there, wanted)))
        for some in _batches(overview.next_sampled(wanted)):
            yield from self._sample_some(overview, some, now)
        for some in _batches(overview.next_to_describe(now)):
            yield from self._read_details(overview, some, now)
        for watch in overview.watches.values():
            watch.workers, watch.nodes = overview.workers, overview.nodes
        for watch in overview.next_failing(now):
            watch.failures_at = now
            # The sample already reports the problem.
            with suppress(ServerRefused, SerializationError, *LOST):
                watch.failures = yield from self._failures(watch.name, FAILURES)

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

    def _read_details(
        self, overview: Overview, some: Sequence[QueueWatch], now: float
    ) -> AnySteps[None]:
        names = [watch.name for watch in some]
        seen = yield from ask_queues(self.namespace, names, records.get_records)
        ends = yield from ask_queues(self.namespace, names, count_ends)
        for watch in some:
            those, ended = seen[watch.name], ends[watch.name]
            if isinstance(those, TaskbullError):
                watch.problem = str(those)
            elif isinstance(ended, TaskbullError):
                watch.problem = str(ended)
            else:
                watch.problem, watch.seen, watch.ends = None, those, ended
            watch.details_read_at = now
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

    @server_operation
    def activity(self, queue: str, over: Range) -> AnySteps[Activity]:
        """Read the activity of a queue over the last hour or day.

        It sends two calls for the counts, and one per period for the times of up to 9 jobs each.
        The cost does not depend on the number of jobs.
        """
        keys = self.namespace.keys(queue)
        minutes, number = STEPS[over]
        step_ms = minutes * MINUTE_MS
        now_ms = int(time.time() * 1000)
        newest_ms = now_ms // step_ms * step_ms
        sample = yield from ask(browse.survey_queue(keys, minutes * number))
        ends = yield from ask(browse.count_ends(keys, newest_ms, number, step_ms))
        starts = [newest_ms - place * step_ms for place in range(number)]
        pages: list[JobRows] = yield from ask_together(
            [
                browse.list_jobs(
                    keys,
                    JobState.COMPLETED,
                    After(score=str(start + step_ms - 1), id="\uffff"),
                    _PAGE,
                    fields=TIMES_FIELDS,
                    bound=start,
                )
                for start in starts
            ]
        )
        completed = better_counts(
            _by_period(sample.completed, now_ms, starts, step_ms),
            _known(ends.completed, ends.completed_since_ms, starts),
        )
        failed = better_counts(
            _by_period(sample.failed, now_ms, starts, step_ms),
            _known(ends.failed, ends.failed_since_ms, starts),
        )
        periods = [
            _period(*each)
            for each in zip(starts, completed.minutes, failed.minutes, pages, strict=True)
        ]
        return Activity(minutes, periods[::-1], completed.source, failed.source)


def _batches(watches: Sequence[QueueWatch]) -> Iterable[Sequence[QueueWatch]]:
    for start in range(0, len(watches), _SAMPLED):
        yield watches[start : start + _SAMPLED]

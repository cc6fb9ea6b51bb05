"""Samples of all queues, and a queue's row in the overview."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import isinf
from typing import Final, Literal, TypeAlias

from anyio import Lock, sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.diagnosis import Trouble, find_trouble
from taskbull.core.keys import JobState
from taskbull.core.queue_health import QueueFacts, Throughput
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.layout import number
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.monitor.browse import ConnectedWorker, QueueSample, Workers
from taskbull.monitor.inspect import QueueWatch
from taskbull.monitor.overview import Overview
from taskbull.monitor.server import Server

# Samples of all queues, taken once and shared by all viewers.
#
# There is no sampling task. A request that needs the next sample acquires a lock, waits until a
# sample is due and takes it. Requests that wait for the lock then find the new sample. Without
# viewers, Redis is not queried. If the request that holds the lock is cancelled, the next one takes
# over.


INTERVAL: Final = 2.0
"""Seconds between samples."""

_SEARCH_SECONDS: Final = 0.05
"""Seconds that the first page view may spend searching the keys for queues."""

_ON_SCREEN: Final = 10.0
"""Seconds that a queue keeps its priority in samples after a view."""


SERIOUS: Final = 50
"""Minimum weight of a serious problem."""

Health: TypeAlias = Literal["good", "warn", "bad", "off"]


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

    @property
    def health(self) -> Health:
        """`bad` or `warn` with a problem or no worker, `off` if it is paused, otherwise `good`."""
        worst = max((trouble.weight for trouble in self.troubles), default=0)
        if worst >= SERIOUS:
            return "bad"
        if self.facts.paused:
            return "off"
        unserved = self.facts.connected is not None and not self.facts.workers
        return "warn" if worst or unserved else "good"


class Sample(Struct, frozen=True):
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

    def __init__(
        self,
        server: Server,
        record: Callable[[Sequence[QueueFacts]], object] = lambda _: None,
        *,
        writes: bool = False,
    ) -> None:
        self._server = server
        self._record = record
        """Function to call with the facts of all sampled queues."""
        self._writes = writes
        """True to store the names of discovered queues in Redis."""
        self._sampling = Lock()
        self._overview = Overview(_SEARCH_SECONDS, separate_search=True)
        self._current = Sample()
        self._tried = 0.0
        """Monotonic time of the last attempt to take a sample."""
        self._searched = 0.0
        """Monotonic time of the last search of the keys."""
        self._on_screen: dict[str, float] = {}
        """Queues shown on a page, with the time of the last view."""

    async def latest(self, wanted: Sequence[str] = ()) -> Sample:
        """Return a sample that is at most 2 s old. Concurrent callers share it.

        It includes the queues in `wanted` if they exist, even if they were not discovered yet.
        """
        for name in wanted:
            self._server.queue(name)  # rejects invalid names
        async with self._sampling:
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

    async def next(self, seen: int) -> Sample:
        """Wait for a sample that is newer than number `seen`."""
        async with self._sampling:
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
        self._record([states[name].facts for name in overview.seen if name in states])
        searched = overview.names.searched
        self._current = Sample(number, time.time(), states, workers, searched=searched)

    def _state(self, watch: QueueWatch, workers: Workers) -> QueueState:
        """Return a queue's state; the same object as before if it was not sampled again."""
        known = self._current.queues.get(watch.name)
        if known is not None and watch.name not in self._overview.seen:
            return known
        assert watch.sample is not None, "the first round looks at all"  # noqa: S101
        facts = watch.facts()
        there = tuple(workers.by_queue.get(watch.name, ()))
        return QueueState(watch.sample, facts, find_trouble(facts), there)


# A queue's row in the overview.


_WAITING = (JobState.WAITING, JobState.PRIORITIZED, JobState.PAUSED)


def draw_line(state: QueueState) -> h.Rendered:
    """Draw a queue's row."""
    name, facts = state.name, state.facts
    counts, paused, problem = facts.counts, facts.paused, facts.problem
    parts = ", ".join(f"{number(counts[each])} {each}" for each in _WAITING if counts[each])
    return h.prerender(
        h.tr(
            ui.cell(
                "Queue",
                link_to(name, "queue", q=name),
                h.span(" ‖ paused", class_="warn") if paused else None,
                h.span(" cannot be read", class_="bad", title=problem) if problem else None,
                kind="lead",
            ),
            ui.cell("Waiting", _count(name, facts.waiting, JobState.WAITING, parts), kind="n"),
            ui.cell("Oldest", ui.since(facts.waiting_since), kind="nw"),
            ui.cell("Active", _count(name, counts[JobState.ACTIVE], JobState.ACTIVE), kind="n"),
            ui.cell("Delayed", _count(name, counts[JobState.DELAYED], JobState.DELAYED), kind="n"),
            ui.cell("Failed", _count(name, counts[JobState.FAILED], JobState.FAILED), kind="n"),
            ui.cell("In/s", ui.rate(facts.arrivals), kind="n"),
            ui.cell("Out/s", ui.rate(facts.out), kind="n"),
            ui.cell("Last hour", _hour(facts.completed, facts.failed)),
            ui.cell("Workers", _workers(state), kind="nw"),
            ui.cell("Drained in", _empty_in(state), kind="nw"),
            id=f"queue-{name}",
        )
    )


def _count(queue: str, count: int, tab: JobState, words: str = "") -> h.Node:
    if not count:
        return h.span("0", class_="zero")
    shown = link_to(number(count), "queue", q=queue, state=tab)
    return h.span(shown, title=words or None, class_="bad" if tab is JobState.FAILED else None)


def _hour(completed: Throughput, failed: Throughput) -> h.Node:
    if completed.source is None and failed.source is None:
        help_text = "Enable metrics in the workers, or keep some completed jobs"
        return h.span("no data", class_="quiet", title=help_text)
    source = (
        "from BullMQ metrics" if completed.source == "metrics" else "from the jobs still stored"
    )
    done, broken = completed.total(60), failed.total(60)
    return h.div(
        ui.sparkline(
            completed.minutes[::-1],
            f"{ui.plural(done, 'job')} completed in the last hour, {source}",
        ),
        ui.sparkline(
            failed.minutes[::-1], f"{ui.plural(broken, 'job')} failed in the last hour", "failed"
        )
        if broken
        else None,
        class_="sparks",
    )


def _workers(state: QueueState) -> h.Node:
    """Return the numbers of connected workers."""
    facts = state.facts
    if facts.workers:
        words = [
            f"{facts.python_workers} Python" if facts.python_workers else "",
            f"{facts.other_workers} Node" if facts.other_workers else "",
        ]
        return ", ".join(word for word in words if word)
    if facts.connected is None:
        return h.span("unknown", class_="quiet")
    return h.span("none", class_="bad" if facts.waiting else "quiet")


def _empty_in(state: QueueState) -> h.Node:
    """Return the estimated time until no job waits."""
    facts = state.facts
    if facts.paused and facts.waiting:
        return "paused"
    if facts.is_stuck:
        return h.span("never", class_="warn")
    left = facts.seconds_left
    if left is None:
        return "–"
    if isinf(left):
        return h.span("growing" if facts.out else "never", class_="warn")
    return "now" if left == 0 else ui.duration(left)


HEALTH_SIGNS: Final[dict[Health, tuple[str, str]]] = {
    "good": ("✓", "Healthy."),
    "warn": ("·", "Needs a look."),
    "bad": ("!", "Problem."),
    "off": ("‖", "Paused."),
}
"""Symbol and word of each health, because color alone is not accessible."""

_MOST_LISTED: Final = 500


def queue_list(sample: Sample, current: str) -> h.Element:
    """Return the list of all queues at the side of the pages of one queue."""
    shown = list(sample.queues.values())[:_MOST_LISTED]
    more = len(sample.queues) - len(shown)
    return h.nav(
        h.details(
            h.summary("Queues"),
            h.ul([_listed(state, current) for state in shown]),
            link_to(f"and {number(more)} more", "") if more else None,
            open_=True,
        ),
        id="queue-list",
        class_="side",
        aria_label="Queues",
    )


def _listed(state: QueueState, current: str) -> h.Element:
    sign, word = HEALTH_SIGNS[state.health]
    return h.li(
        h.a(
            h.span(sign, class_=f"sign {state.health}", title=word),
            h.span(state.name, class_="name"),
            h.span(number(state.facts.waiting), class_="n", title="waiting")
            if state.facts.waiting
            else None,
            href=h.url("queue", q=state.name),
            aria_current="page" if state.name == current else None,
        )
    )

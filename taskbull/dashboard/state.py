"""State that a dashboard keeps between requests, and the streams that update open pages.

The state holds notices, cached reads, rendered rows and open streams. All of it is bounded in size.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from secrets import token_hex
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from anyio import CancelScope, Lock, sleep
from msgspec import Struct

from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.charts import Backlog
from taskbull.dashboard.forms import Notice
from taskbull.dashboard.html import Element, Rendered, prerender
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.queue_line import DashboardSampler, QueueState
from taskbull.errors import TaskbullError
from taskbull.monitor.overview import Overview
from taskbull.monitor.server import Server
from taskbull.queue.failures import Failures

T = TypeVar("T")

_FRESH: Final = 1.0
"""Lifetime of a cached read, in seconds."""

_SEARCH_SECONDS: Final = 0.5
"""Seconds that the first request for metrics may search the keys for queues."""

MOST_STREAMS: Final = 100

STREAM_SECONDS: Final = 8.0
"""Lifetime of a stream in seconds. It closes after its next message; the page opens a new one.

A web server waits for open streams before it stops, and does not notify a mounted app.
"""


class OneTimeStore(Generic[T]):
    """A bounded store whose items expire. Keys are random tokens by default."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def put(self, thing: T, number: str | None = None) -> str:
        """Store an item and return its key."""
        number = number or token_hex(16)
        self._kept[number] = (time.monotonic(), thing)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return number

    def get(self, number: str) -> T | None:
        """Return an item, or `None` if it has expired or was evicted."""
        at, thing = self._kept.get(number, (0.0, None))
        return thing if time.monotonic() - at < self._seconds else None

    def take(self, number: str) -> T | None:
        """Remove an item and return it, or `None` if it has expired or was evicted."""
        thing = self.get(number)
        self._kept.pop(number, None)
        return thing


class Views:
    """A short-lived cache of reads, shared by all viewers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[float, Any]] = OrderedDict()
        self._locks: dict[tuple[Hashable, ...], Lock] = {}

    async def read(
        self, view: tuple[Hashable, ...], read: Callable[[], Awaitable[T]], fresh: float = _FRESH
    ) -> T:
        """Return the cached value of a view, or read it.

        Concurrent callers with the same view wait for a single read.
        """
        lock = self._locks.setdefault(view, Lock())
        try:
            async with lock:
                at, known = self._kept.get(view, (-fresh, None))
                if time.monotonic() - at < fresh:
                    found: T = known
                    return found
                found = await read()
                self._kept[view] = (time.monotonic(), found)
                self._kept.move_to_end(view)
                while len(self._kept) > 200:
                    self._kept.popitem(last=False)
                return found
        finally:
            state = lock.statistics()
            if not state.locked and not state.tasks_waiting and self._locks.get(view) is lock:
                del self._locks[view]

    def forget(self) -> None:
        """Drop all cached views, except those that change slowly, because data has changed."""
        slow = {"figures"}
        for view in [view for view in self._kept if view[0] not in slow]:
            del self._kept[view]


class LiveFrames:
    """Rendered page updates for the latest sample, shared by all viewers of a page."""

    def __init__(self) -> None:
        self._number = 0
        self._kept: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, Lock] = {}

    async def read(self, number: int, view: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return the update of a page for the sample with this number or a later one."""
        if number > self._number:
            self._number = number
            self._kept.clear()
            self._locks.clear()
        async with self._locks.setdefault(view, Lock()):
            if view not in self._kept:
                self._kept[view] = await read()
            found: T = self._kept[view]
            return found


class RenderedRows(Generic[T]):
    """A cache of rendered table rows, for immutable items.

    A row is drawn again only if its item is a different object.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[T, Rendered]] = {}

    def of(self, things: Mapping[str, T], draw: Callable[[T], Rendered]) -> dict[str, Rendered]:
        """Return the rows of the items by name, and cache them for the next call."""
        rows: dict[str, tuple[T, Rendered]] = {}
        for name, thing in things.items():
            known = self._kept.get(name)
            if known is None or known[0] is not thing:
                known = thing, draw(thing)
            rows[name] = known
        self._kept = rows
        return {name: rendered for name, (_, rendered) in rows.items()}


class RateLimiter:
    """Rate limiter for all scans together: 20 calls per second after a short burst."""

    def __init__(self, per_second: float = 20.0, burst: int = 20) -> None:
        self._step = 1 / per_second
        self._ahead = burst * self._step
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next call may be sent."""
        now = time.monotonic()
        self._next = max(self._next, now - self._ahead) + self._step
        await sleep(max(0.0, self._next - now))


class OpenStreams:
    """The streams of open pages: at most 100, shared fairly between viewers."""

    def __init__(self) -> None:
        self._viewers: dict[CancelScope, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._viewers)

    def make_room(self, viewer: tuple[str, str]) -> bool:
        """Return True if a viewer may open another stream.

        At the limit, this closes the oldest stream of the viewer with the most streams, unless
        this viewer has about as many.
        """
        if len(self._viewers) < MOST_STREAMS:
            return True
        counts = Counter(self._viewers.values())
        [(greedy, most)] = counts.most_common(1)
        if most <= counts[viewer] + 1:
            return False
        oldest = next(scope for scope, each in self._viewers.items() if each == greedy)
        oldest.cancel()
        del self._viewers[oldest]
        return True

    def add(self, scope: CancelScope, viewer: tuple[str, str]) -> None:
        """Register a viewer's stream, which runs in this cancel scope."""
        self._viewers[scope] = viewer

    def discard(self, scope: CancelScope) -> None:
        """Remove a stream that has closed."""
        self._viewers.pop(scope, None)

    def end_all(self) -> None:
        """Close all streams."""
        for scope in self._viewers:
            scope.cancel()


class LeftStream(Struct, frozen=True):
    """State of a closed stream, so that the browser's next stream can continue it."""

    view: Hashable
    seen: int
    """Number of the last sample sent."""
    difference: Any


class DashboardState:
    """The state of a dashboard, apart from its settings."""

    def __init__(self, server: Server, *, writes: bool = False) -> None:
        self.backlog = Backlog()
        self.sampler = DashboardSampler(server, self.backlog.record, writes=writes)
        self.views = Views()
        self.metrics = Overview(_SEARCH_SECONDS)
        """All queues as of the last request for metrics."""
        self.throttle = RateLimiter()
        self.live = LiveFrames()
        self.queue_rows = RenderedRows[QueueState]()
        self.notices = OneTimeStore[Notice](1000, 600.0)
        self.failures: dict[str, Failures] = {}
        """Last summary of failed jobs per queue. The next read continues from it."""
        self.streams = OpenStreams()
        self.stream_seconds = STREAM_SECONDS
        self.left_streams = OneTimeStore[LeftStream](MOST_STREAMS, 60.0)
        """Recently closed streams, by the id of their last message."""

    def forget_views(self, queue: str) -> None:
        """Drop cached reads, so that the next page shows a change to a queue."""
        self.views.forget()
        self.sampler.expire(queue)


# Live updates: HTML fragments of an open page, sent when they change.


STREAM_LIMIT: Final = 30.0
"""Hard time limit of a stream in seconds, in case Redis or the browser blocks it."""


class Parts(Struct, frozen=True):
    """The parts of a page that change, by their ids."""

    elements: Mapping[str, Element | Rendered] = {}
    lists: Mapping[str, Mapping[str, Element | Rendered]] = {}
    """Rows of each list or table body, in order, by their ids."""
    problem: str | None = None

    def rendered(self) -> Parts:
        """Return a copy with all elements rendered, to share between viewers."""
        lists = {name: _prerendered(rows) for name, rows in self.lists.items()}
        return Parts(_prerendered(self.elements), lists, self.problem)


def _prerendered(elements: Mapping[str, Element | Rendered]) -> dict[str, Element | Rendered]:
    return {name: prerender(element) for name, element in elements.items()}


LivePage: TypeAlias = Callable[[DashboardState, RequestContext], Awaitable[Parts]]


class Difference:
    """Tracks what one browser has received, to send only changes."""

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}
        self._orders: dict[str, list[str]] = {}

    def of(self, parts: Parts) -> dict[str, Any]:
        """Return the message that brings a browser up to date."""
        elements = self._changed(parts.elements)
        lists: dict[str, Any] = {}
        for name, rows in parts.lists.items():
            order, items = list(rows), self._changed(rows)
            if items or order != self._orders.get(name):
                lists[name] = {"order": order, "items": items}
                self._orders[name] = order
        found = {"elements": elements, "lists": lists, "problem": parts.problem}
        return {key: value for key, value in found.items() if value}

    # Changes in relative times are not sent: browsers update them themselves.
    def _changed(self, elements: Mapping[str, Element | Rendered]) -> dict[str, str]:
        changed: dict[str, str] = {}
        for name, element in elements.items():
            rendered = prerender(element)
            if self._sent.get(name) != rendered.timeless:
                changed[name], self._sent[name] = rendered.markup, rendered.timeless
        return changed


async def _read(dashboard: DashboardState, ctx: RequestContext, page: LivePage) -> Parts:
    try:
        return (await page(dashboard, ctx)).rendered()
    except (TaskbullError, Refused) as error:
        return Parts(problem=str(error))


async def follow(
    dashboard: DashboardState, ctx: RequestContext, page: LivePage
) -> AsyncGenerator[bytes, None]:
    """Yield the changes of a page with each new sample, for a few seconds.

    Then the page opens a new stream, which continues this one from its `Last-Event-ID`.
    """
    end = time.monotonic() + dashboard.stream_seconds
    view = (page, ctx.query.pairs, ctx.access.may)
    message_id = ctx.request.headers.get("last-event-id", "")
    left = dashboard.left_streams.take(message_id)
    difference, seen = Difference(), 0
    if left is not None and left.view == view:
        difference, seen = left.difference, left.seen
    try:
        yield b"retry: 1000\n\n"
        while True:
            sample = await dashboard.sampler.next(seen)
            seen = sample.number
            parts = await dashboard.live.read(seen, view, lambda: _read(dashboard, ctx, page))
            message_id = token_hex(8)
            data = msgspec.json.encode(difference.of(parts))
            yield b"id: " + message_id.encode() + b"\ndata: " + data + b"\n\n"
            await dashboard.sampler.search()
            if time.monotonic() >= end:
                return
    finally:
        if seen:
            dashboard.left_streams.put(LeftStream(view, seen, difference), message_id)

"""What a dashboard remembers between requests: notices, views, searches. All of it is bounded."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from secrets import token_hex
from typing import Any, Final, Generic, TypeVar

from anyio import CancelScope, Lock, sleep
from msgspec import Struct

from taskbull.dashboard.board_order import Notice
from taskbull.dashboard.html import Drawn
from taskbull.dashboard.queue_line import QueueLine
from taskbull.dashboard.sampler import BoardSampler, QueueState
from taskbull.queue.failures import Failures
from taskbull.queue.server import Server

T = TypeVar("T")
L = TypeVar("L")

_FRESH: Final = 1.0
"""Seconds for which what was read for one viewer does for others."""

MOST_STREAMS: Final = 100

STREAM_SECONDS: Final = 8.0
"""Seconds after which a stream ends with its next message, and the page opens another one.

Web servers wait for open streams before they stop, and a mounted app does not learn that they do.
"""


class Shelf(Generic[T]):
    """Keeps some things for a while under numbers that nobody can guess."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def put(self, thing: T, number: str | None = None) -> str:
        """Keep a thing; return its number."""
        number = number or token_hex(16)
        self._kept[number] = (time.monotonic(), thing)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return number

    def get(self, number: str) -> T | None:
        """Return a thing, if it is still there."""
        at, thing = self._kept.get(number, (0.0, None))
        return thing if time.monotonic() - at < self._seconds else None

    def take(self, number: str) -> T | None:
        """Return a thing, if it is still there, and forget it."""
        thing = self.get(number)
        self._kept.pop(number, None)
        return thing


class Views:
    """What was read a moment ago: identical looks of several people are one read."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[float, Any]] = OrderedDict()
        self._locks: dict[tuple[Hashable, ...], Lock] = {}

    async def read(
        self, view: tuple[Hashable, ...], read: Callable[[], Awaitable[T]], fresh: float = _FRESH
    ) -> T:
        """Return what is known of a view, or read it; who asks meanwhile waits for that."""
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
        """Read everything anew, except what changes slowly: something has been changed."""
        slow = {"figures"}
        for view in [view for view in self._kept if view[0] not in slow]:
            del self._kept[view]


class LiveFrames:
    """What open pages show after one sample, by what they are: drawn once for all who see it."""

    def __init__(self) -> None:
        self._number = 0
        self._kept: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, Lock] = {}

    async def read(self, number: int, view: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return what a page shows after the sample with this number, or a later one."""
        if number > self._number:
            self._number = number
            self._kept.clear()
            self._locks.clear()
        async with self._locks.setdefault(view, Lock()):
            if view not in self._kept:
                self._kept[view] = await read()
            found: T = self._kept[view]
            return found


class DrawnRows(Generic[T, L]):
    """Rows of things that are replaced as a whole when they change.

    Of a thing that was replaced, what its row says is asked; whoever draws it gets what was said
    and drawn before.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[T, L, Drawn]] = {}

    def of(
        self,
        things: Mapping[str, T],
        line_of: Callable[[T], L],
        draw: Callable[[L, tuple[L, Drawn] | None], Drawn],
    ) -> dict[str, Drawn]:
        """Return the rows of these things by their names, and keep them for the next time."""
        rows: dict[str, tuple[T, L, Drawn]] = {}
        for name, thing in things.items():
            known = self._kept.get(name)
            if known is None or known[0] is not thing:
                line = line_of(thing)
                known = (thing, line, draw(line, None if known is None else known[1:]))
            rows[name] = known
        self._kept = rows
        return {name: drawn for name, (_, _, drawn) in rows.items()}


class Pace:
    """Lets scans through at 20 calls a second, all together, after a short burst."""

    def __init__(self, per_second: float = 20.0, burst: int = 20) -> None:
        self._step = 1 / per_second
        self._ahead = burst * self._step
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until it is one's turn."""
        now = time.monotonic()
        self._next = max(self._next, now - self._ahead) + self._step
        await sleep(max(0.0, self._next - now))


class OpenStreams:
    """The streams of open pages: at most 100, and none for one viewer at the cost of others."""

    def __init__(self) -> None:
        self._viewers: dict[CancelScope, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._viewers)

    def make_room(self, viewer: tuple[str, str]) -> bool:
        """Return whether a viewer may open one more.

        If there are too many, the oldest one of the viewer with the most streams is ended, unless
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
        """Note that a viewer has opened a stream, which runs in a scope."""
        self._viewers[scope] = viewer

    def discard(self, scope: CancelScope) -> None:
        """Note that a stream has ended."""
        self._viewers.pop(scope, None)

    def end_all(self) -> None:
        """End all streams."""
        for scope in self._viewers:
            scope.cancel()


class LeftStream(Struct, frozen=True):
    """What the browser at the other end of a stream has, so that its next stream continues it."""

    view: Hashable
    seen: int
    """The number of the last sample that was sent."""
    difference: Any


class Board:
    """All that one dashboard knows beside its settings."""

    def __init__(self, server: Server, *, writes: bool = False) -> None:
        self.sampler = BoardSampler(server, writes=writes)
        self.views = Views()
        self.pace = Pace()
        self.live = LiveFrames()
        self.queue_rows = DrawnRows[QueueState, QueueLine]()
        self.notices = Shelf[Notice](1000, 600.0)
        self.failures: dict[str, Failures] = {}
        """What was last read of failed jobs, by queue: the next read goes on from there."""
        self.streams = OpenStreams()
        self.stream_seconds = STREAM_SECONDS
        self.left_streams = Shelf[LeftStream](MOST_STREAMS, 60.0)
        """Streams that ended a moment ago, each under the id of its last message."""

    def forget_views(self, queue: str) -> None:
        """Have the next page show what was just done to a queue."""
        self.views.forget()
        self.sampler.expire(queue)

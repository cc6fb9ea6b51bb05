"""Run functions that yield, and write their items to Redis.

Items of all jobs of a worker are collected for a moment and written together. Redis accepts them
only while the job's lock is held. A function that yields faster than Redis accepts its items waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from threading import Event, Lock
from time import monotonic
from typing import Any, Final

from anyio import move_on_after, sleep

from taskbull.core import payload
from taskbull.core.keys import QueueKeys
from taskbull.core.options import SIZE_LIMIT, StreamRules
from taskbull.errors import (
    ConnectionLost,
    LockLost,
    MaybeExecuted,
    SerializationError,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.scripts.call import REFUSALS, text
from taskbull.scripts.streams import Unwritten, write_items
from taskbull.store.async_store import Store
from taskbull.store.backend import Waiter, poster, waiters, wake
from taskbull.store.protocol import ReplyError, read_refusal
from taskbull.worker.run import Run
from taskbull.worker.running_job import current_job, port_of

# Running a generator.


CLOSING_TIME: Final = 5.0
"""Seconds that an async generator has to clean up when its job is stopped."""


class _Collected:
    """Items of one run, kept for the job's result."""

    def __init__(self, rules: StreamRules, limit: int) -> None:
        self._reduce = rules.reduce
        self._limit = limit
        self._size = 0
        self._items: list[Any] = []

    def add(self, item: Any, size: int) -> None:
        if self._reduce is None:
            return
        self._items.append(item)
        if self._reduce is list:
            self._size += size + 1
            if self._size > self._limit:
                raise SerializationError(
                    f"the items are the job's result, and have more than {self._limit:,} bytes: "
                    "pass reduce=… to the task to store something smaller, or reduce=None to "
                    "store nothing"
                )

    def result(self) -> Any:
        return None if self._reduce is None else self._reduce(self._items)


def awaited_call(
    call: Callable[..., AsyncGenerator[Any, None]], rules: StreamRules
) -> Callable[..., Any]:
    """Return an async function that runs an async generator function and streams its items."""

    async def run(**arguments: Any) -> Any:
        job = current_job()
        port = port_of(job)
        await port.acall("open_stream", rules.limit, rules.life_ms)
        collected = _Collected(rules, job.job.options.result_limit)
        generator = call(**arguments)
        try:
            async for item in generator:
                raw = _encode(item)
                await port.acall("emit", raw)
                collected.add(item, len(raw))
            await port.acall("flush_stream")
        except BaseException:
            with move_on_after(CLOSING_TIME, shield=True):
                await generator.aclose()
                with suppress(TaskbullError):
                    await port.acall("flush_stream")
            raise
        return collected.result()

    return run


def plain_call(
    call: Callable[..., Generator[Any, None, Any]], rules: StreamRules
) -> Callable[..., Any]:
    """Return a function that runs a generator function and streams its items."""

    def run(**arguments: Any) -> Any:
        job = current_job()
        port = port_of(job)
        port.call("open_stream", rules.limit, rules.life_ms)
        collected = _Collected(rules, job.job.options.result_limit)
        generator = call(**arguments)
        try:
            for item in generator:
                raw = _encode(item)
                port.call("emit", raw)
                collected.add(item, len(raw))
                job.check()
            port.call("flush_stream")
        except Exception:
            generator.close()
            with suppress(TaskbullError):
                port.call("flush_stream")
            raise
        finally:
            generator.close()
        return collected.result()

    return run


def _encode(item: Any) -> bytes:
    raw = payload.encode(item, "item")
    payload.check_size(len(raw), SIZE_LIMIT, "Item")
    return raw


# Writing items.


WINDOW: Final = 0.01
"""Seconds to collect items before they are written together."""

_CALL_ITEMS: Final = 500
"""Maximum number of items per call. Redis takes about 2 ms for them."""

_CALL_BYTES: Final = 1 << 20

_JOB_ITEMS: Final = 500
"""Number of unwritten items that makes a job wait."""

_JOB_BYTES: Final = 1 << 20

_TRY: Final = 2.0
"""Time limit of one call in seconds."""

_PATIENCE: Final = 10.0
"""Seconds to retry before a job whose items are not accepted gets the error."""

_PAUSE: Final = 0.1

_LOOK: Final = 0.5
"""Seconds between the checks of a waiting thread for a stopped job."""

_PASSING: Final = frozenset({"OOM", "MISCONF"})
"""Error codes of commands that were not executed and may succeed later, besides those of
`ServerUnavailable`."""


def is_passing(error: TaskbullError) -> bool:
    """Return True if a write that failed with this error may succeed later."""
    if isinstance(error, ServerRefused):
        return isinstance(error, ServerUnavailable) or error.code in _PASSING
    return isinstance(error, ConnectionLost | MaybeExecuted)


class JobStream:
    """Items of one run on their way to Redis.

    The lock of its `StreamWriter` guards the items and `waiting`. The run's function adds items,
    in the event loop or a thread. The writer's task takes them.
    """

    def __init__(self, run: Run, keys: QueueKeys, limit: int, life_ms: int) -> None:
        self.run = run
        self.keys = keys
        self.limit = limit
        self.life_ms = life_ms
        self.number = 0
        """Number of the run in the stream, or 0 before the first write."""
        self.written = 0
        """Number of items that Redis has."""
        self.new: deque[bytes] = deque()
        self.size = 0
        """Bytes that are not written."""
        self.in_flight: list[bytes] | None = None
        self.is_repeated = False
        """True if the items in flight may have been written."""
        self.failing_since: float | None = None
        self.error: TaskbullError | None = None
        self.waiting: list[Callable[[], object]] = []

    @property
    def is_flushed(self) -> bool:
        """True if Redis has all items."""
        return self.number > 0 and self.in_flight is None and not self.new

    @property
    def is_full(self) -> bool:
        """True if the job must wait before it yields more."""
        in_flight = 0 if self.in_flight is None else len(self.in_flight)
        return len(self.new) + in_flight >= _JOB_ITEMS or self.size >= _JOB_BYTES

    def check(self) -> None:
        """Raise the error that ends the stream, if any."""
        if self.error is not None:
            raise self.error
        if self.run.lost is not None or self.run.decided:
            raise LockLost(self.keys.queue, self.run.job.id)


class StreamWriter:
    """Writes the items of all jobs of a worker, in calls that they share."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._unwritten: dict[JobStream, None] = {}  # An ordered set.
        self._new_waiter: Callable[[], Waiter]
        self._post: Callable[[Callable[[], object]], object]
        self._sleeper: Waiter | None = None

    def add(self, stream: JobStream, raw: bytes | None = None) -> None:
        """Add an item, or only announce the run. Thread-safe."""
        stream.check()
        with self._lock:
            if raw is not None:
                stream.new.append(raw)
                stream.size += len(raw)
            is_first = not self._unwritten
            self._unwritten[stream] = None
        if is_first:
            self._post(self._wake)

    async def aput(self, stream: JobStream, raw: bytes) -> None:
        """Add an item, and wait if there are too many."""
        self.add(stream, raw)
        while stream.is_full:
            await self._await_change(stream)

    def put(self, stream: JobStream, raw: bytes) -> None:
        """Add an item from a thread. Wait if there are too many, unless the job is cancelled."""
        self.add(stream, raw)
        while stream.is_full and stream.run.cancelled is None:
            self._wait_for_change(stream, lambda: not stream.is_full)

    async def aflush(self, stream: JobStream) -> None:
        """Wait until Redis has all items."""
        stream.check()
        while not stream.is_flushed:
            await self._await_change(stream)

    def flush(self, stream: JobStream) -> None:
        """Wait in a thread until Redis has all items."""
        stream.check()
        while not stream.is_flushed:
            self._wait_for_change(stream, lambda: stream.is_flushed)

    async def _await_change(self, stream: JobStream) -> None:
        waiter = self._new_waiter()
        with self._lock:
            stream.waiting.append(lambda: wake(waiter))
        await waiter
        stream.check()

    def _wait_for_change(self, stream: JobStream, is_met: Callable[[], bool]) -> None:
        event = Event()
        with self._lock:
            stream.waiting.append(event.set)
        if not is_met():
            event.wait(_LOOK)
        stream.check()

    async def run(self) -> None:
        """Write items until cancelled."""
        self._new_waiter, self._post = waiters(), poster()
        while True:
            while not self._unwritten:
                self._sleeper = waiter = self._new_waiter()
                if not self._unwritten:  # A thread may have added an item before.
                    await waiter
            await sleep(WINDOW)
            while self._is_call_full():
                await self._write(self._take())
            await self._write(self._take())

    def _wake(self) -> None:
        if self._sleeper is not None:
            wake(self._sleeper)

    def _is_call_full(self) -> bool:
        with self._lock:
            return sum(len(stream.new) for stream in self._unwritten) > _CALL_ITEMS

    def _take(self) -> list[JobStream]:
        """Return the streams of the next call, with their items in flight."""
        count = size = 0
        taken: list[JobStream] = []
        with self._lock:
            for stream in list(self._unwritten):
                if taken and (count >= _CALL_ITEMS or size >= _CALL_BYTES):
                    break
                if stream.in_flight is None:
                    items: list[bytes] = []
                    stream.in_flight = items
                    while stream.new and count < _CALL_ITEMS and size < _CALL_BYTES:
                        items.append(stream.new.popleft())
                        count, size = count + 1, size + len(items[-1])
                del self._unwritten[stream]
                taken.append(stream)
        return taken

    async def _write(self, streams: Sequence[JobStream]) -> None:
        parts: dict[tuple[str, bool], list[JobStream]] = {}
        for stream in streams:
            if stream.run.decided or stream.run.lost is not None:
                self._end(stream, None)
            else:
                parts.setdefault((stream.keys.base, stream.is_repeated), []).append(stream)
        calls = [
            write_items(part[0].keys, [_unwritten(one) for one in part], is_repeated=is_repeated)
            for (_, is_repeated), part in parts.items()
        ]
        replies = await self._store.run_each(calls, timeout=_TRY) if calls else []
        is_failing = False
        for part, reply in zip(parts.values(), replies, strict=True):
            if isinstance(reply, TaskbullError):
                is_failing = True
                for stream in part:
                    self._fail(stream, reply)
            else:
                for stream, code in zip(part, reply, strict=True):
                    self._settle(stream, code)
        if is_failing:
            await sleep(_PAUSE)

    def _settle(self, stream: JobStream, code: int | bytes) -> None:
        if isinstance(code, bytes):
            self._end(stream, read_refusal(ReplyError(text(code))).error)
            return
        if code < 0:
            self._end(stream, REFUSALS[code](stream.keys.queue, stream.run.job.id))
            return
        with self._lock:
            items = stream.in_flight or ()
            stream.number = code
            stream.written += len(items)
            stream.run.yielded_items = stream.written
            stream.size -= sum(map(len, items))
            stream.in_flight = None
            stream.is_repeated = False
            stream.failing_since = None
            if stream.new:
                self._unwritten[stream] = None
        self._notify(stream)

    def _fail(self, stream: JobStream, error: TaskbullError) -> None:
        now = monotonic()
        since = stream.failing_since = now if stream.failing_since is None else stream.failing_since
        if not is_passing(error) or now - since >= _PATIENCE:
            self._end(stream, error)
            return
        stream.is_repeated = stream.is_repeated or isinstance(error, MaybeExecuted)
        with self._lock:
            self._unwritten[stream] = None
        self._notify(stream)  # Its run may be lost or cancelled.

    def _end(self, stream: JobStream, error: TaskbullError | None) -> None:
        stream.error = error
        with self._lock:
            self._unwritten.pop(stream, None)
            stream.new.clear()
            stream.in_flight, stream.size = None, 0
        self._notify(stream)

    def _notify(self, stream: JobStream) -> None:
        with self._lock:
            waiting, stream.waiting = stream.waiting, []
        for notify in waiting:
            notify()


def _unwritten(stream: JobStream) -> Unwritten:
    run = stream.run
    return Unwritten(
        run.job.id,
        run.token,
        stream.number,
        run.job.attempt,
        stream.limit,
        stream.life_ms,
        stream.written + 1,
        stream.in_flight or (),
    )

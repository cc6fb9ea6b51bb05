"""What a worker writes down for whoever looks: who it is, how it fares, and which errors it meets.

A worker that runs jobs writes every 5 s, an idle one every 20: that is one command in 20 s for each
of its queues. Nothing is written per job, all of it expires, and nothing depends on it.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyio import CancelScope, create_task_group, current_time, move_on_after, sleep_until
from msgspec.structs import replace

from taskbull import __version__
from taskbull.core.record import BreakerRecord, WorkerRecord
from taskbull.core.worker_options import WorkerOptions
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.observability.metrics import Declared
from taskbull.scripts.call import Call
from taskbull.scripts.records import (
    forget_worker,
    note_errors,
    note_worker,
    register_queues,
)
from taskbull.store.backend import on_trio
from taskbull.worker.context import QueueContext
from taskbull.worker.failed_attempts import FailedAttempts
from taskbull.worker.shutdown import Shutdown

logger = logging.getLogger(__name__)

PULSE = 1.0
"""Seconds between two looks at the event loop, and at what is to be written."""

BUSY, IDLE, ERRORS = 5.0, 25.0, 10.0
"""Seconds between two records of a worker that runs jobs, of one that does not, and of errors."""

_PAUSE_PER_QUEUE = 0.005
"""Seconds between two looks at a queue for each queue there is, up to `BUSY`: a worker of 200 or
less looks at all of them with each pulse."""

_LIMIT = 5.0
"""Seconds that one write may take."""

_PIECE = 25
"""Queues whose records go in one trip: jobs wait for it, and a worker may have 1,000 queues."""

_LAGS = 300
"""How many looks at the event loop are remembered."""


class Recorder:
    """Writes records while a worker runs."""

    def __init__(
        self,
        contexts: Sequence[QueueContext],
        options: Mapping[str, WorkerOptions],
        worker_id: str,
        tasks: Mapping[str, Declared],
        attempts: FailedAttempts,
    ) -> None:
        self._contexts = contexts
        self._id = worker_id
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self._pages = [
            _Page(context, _about(worker_id, options[context.keys.queue], tasks, context), attempts)
            for context in contexts
        ]

    async def run(self, shutdown: Shutdown) -> None:
        """Write until cancelled; then strike the worker off."""
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._register)
                tasks.start_soon(self._stop, shutdown)
                looks_at = current_time()
                while True:
                    if current_time() >= looks_at:
                        looks_at = current_time() + min(BUSY, len(self._pages) * _PAUSE_PER_QUEUE)
                        await self._write(stopping=shutdown.begun)
                    due = current_time() + PULSE
                    await sleep_until(due)
                    self._lags.append(current_time() - due)
        finally:
            with CancelScope(shield=True), move_on_after(1.0), suppress(TaskbullError):
                await self._send(lambda page: page.last(self._id))

    async def _register(self) -> None:
        context = self._contexts[0]
        names = [each.keys.queue for each in self._contexts]
        command = register_queues(context.keys.prefix, names, context.clock.wall_ms())
        try:
            await context.store.run(command, timeout=_LIMIT)
        except TaskbullError as error:
            logger.debug("The names of the queues were not written down: %s", error)

    async def _stop(self, shutdown: Shutdown) -> None:
        await shutdown.wait()
        await self._write(stopping=True)

    async def _write(self, *, stopping: bool) -> None:
        now = current_time()
        state = {"lag_ms": round(self._lag * 1000, 1), "memory": _memory(), "stopping": stopping}
        await self._send(lambda page: page.due(now, state))

    async def _send(self, calls_of: Callable[[_Page], list[Call[None]]]) -> None:
        first, size = 0, 1  # the first alone: Redis may not know the scripts yet
        while pages := self._pages[first : first + size]:
            first, size = first + size, _PIECE
            calls = [(page, call) for page in pages for call in calls_of(page)]
            if calls:
                for (page, _), result in zip(calls, await self._run(calls), strict=True):
                    if isinstance(result, TaskbullError):
                        page.failed(result)

    async def _run(self, calls: Sequence[tuple[_Page, Call[None]]]) -> list[TaskbullError | None]:
        store = self._contexts[0].store
        try:
            return await store.run_each([call for _, call in calls], timeout=_LIMIT)
        except TaskbullError as error:  # The connection was closed before anything was sent.
            return [error] * len(calls)

    @property
    def _lag(self) -> float:
        """The lag that 99 of 100 looks stayed below, in seconds."""
        return sorted(self._lags)[len(self._lags) * 99 // 100] if self._lags else 0.0


class _Page:
    """What is written for one queue."""

    def __init__(
        self, context: QueueContext, about: WorkerRecord, attempts: FailedAttempts
    ) -> None:
        self.queue = context.keys.queue
        self._context = context
        self._attempts = attempts
        self._about = about
        self._written: WorkerRecord = about
        self._written_at = self._errors_at = float("-inf")
        self._refused = False

    def due(self, now: float, state: Mapping[str, Any]) -> list[Call[None]]:
        """Return what is to be written now; `state` is that of the whole worker."""
        calls: list[Call[None]] = []
        if now - self._errors_at >= ERRORS:
            self._errors_at = now
            calls = self._errors()
        age, written, context = now - self._written_at, self._written, self._context
        is_quiet = not context.runs and not written.running and context.circuit is None
        has_changed = state["stopping"] is not written.stopping
        if not is_quiet or age >= IDLE or has_changed:
            record = self._now(state)
            if age >= IDLE or has_changed or (age >= BUSY and _is_news(record, written)):
                self._written, self._written_at = record, now
                calls.append(note_worker(context.keys, record))
        return [] if self._refused else calls

    def last(self, worker_id: str) -> list[Call[None]]:
        """Return what is left to be written, and that the worker is gone."""
        calls = self._errors()
        if self._written_at > float("-inf"):
            keys, now_ms = self._context.keys, self._context.clock.wall_ms()
            calls.append(forget_worker(keys, worker_id, now_ms))
        return [] if self._refused else calls

    def failed(self, error: TaskbullError) -> None:
        """Take in why something was not written."""
        if isinstance(error, ServerRefused) and error.code == "NOPERM":
            self._refused = True  # it will not change while we run
        logger.debug("Queue %s: no record of this worker: %s", self.queue, error)

    def _errors(self) -> list[Call[None]]:
        counted = self._attempts.take(self.queue)
        keys, now_ms = self._context.keys, self._context.clock.wall_ms()
        return [note_errors(keys, counted, now_ms)] if counted else []

    def _now(self, state: Mapping[str, Any]) -> WorkerRecord:
        context = self._context
        circuit = None
        if context.circuit is not None:
            wakes_at, failures = context.circuit.wakes_at, context.circuit.failures
            until_ms = None
            if wakes_at is not None:
                left = wakes_at - context.clock.now()
                until_ms = context.clock.wall_ms() + round(left * 1000)
            circuit = BreakerRecord(context.circuit.state, until_ms, failures)
        running, at_ms = context.runs.running(), context.clock.wall_ms()
        return replace(self._about, running=running, circuit=circuit, at_ms=at_ms, **state)


def _is_news(record: WorkerRecord, written: WorkerRecord) -> bool:
    circuits = [None if one.circuit is None else one.circuit.state for one in (record, written)]
    return record.running > 0 or written.running > 0 or circuits[0] != circuits[1]


def _about(
    worker_id: str,
    options: WorkerOptions,
    tasks: Mapping[str, Declared],
    context: QueueContext,
) -> WorkerRecord:
    """Return what does not change while a worker runs."""
    queue, limiter = context.keys.queue, options.limiter
    # Those of the queue come first: a record has no room for the names of all.
    names = sorted(tasks, key=lambda name: (tasks[name].queue != queue, name))
    return WorkerRecord(
        id=worker_id,
        host=socket.gethostname()[:100],
        pid=os.getpid(),
        version=__version__,
        python=platform.python_version(),
        backend="trio" if on_trio() else "asyncio",
        started_ms=context.clock.wall_ms(),
        concurrency=options.concurrency,
        tasks=names or None,
        limiter=None if limiter is None else (limiter.max, limiter.duration),
        lock_duration=options.lock_duration,
    )


_STATM = Path("/proc/self/statm")


def _memory() -> int:
    """Return the bytes of memory that this process has; where nobody tells, the most it had."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

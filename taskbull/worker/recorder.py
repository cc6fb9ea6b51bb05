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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

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

_LIMIT = 5.0
"""Seconds that one write may take."""

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
                while True:
                    await self._write(stopping=shutdown.begun)
                    due = current_time() + PULSE
                    await sleep_until(due)
                    self._lags.append(current_time() - due)
        finally:
            with CancelScope(shield=True), move_on_after(1.0), suppress(TaskbullError):
                for page in self._pages:
                    await page.end(self._id)

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
        now, lag = current_time(), self._lag  # once for all: there may be a thousand queues
        for page in self._pages:
            await page.write(now, lag, stopping=stopping)

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

    async def write(self, now: float, lag: float, *, stopping: bool) -> None:
        """Write what is due."""
        if now - self._errors_at >= ERRORS:
            self._errors_at = now
            await self._write_errors()
        age, written, context = now - self._written_at, self._written, self._context
        is_quiet = not context.runs and not written.running and context.circuit is None
        if is_quiet and age < IDLE and stopping is written.stopping:
            return
        record = self._now(stopping=stopping)
        is_due = age >= IDLE or (age >= BUSY and _is_news(record, self._written))
        if is_due or record.stopping is not self._written.stopping:
            self._written, self._written_at = record, now
            at_ms = self._context.clock.wall_ms()
            lag_ms = round(lag * 1000, 1)
            told = replace(record, at_ms=at_ms, lag_ms=lag_ms, memory=_memory())
            await self._send(note_worker(self._context.keys, told))

    async def end(self, worker_id: str) -> None:
        """Write what is left, and that the worker is gone."""
        await self._write_errors()
        if self._written_at > float("-inf"):
            keys, now_ms = self._context.keys, self._context.clock.wall_ms()
            await self._send(forget_worker(keys, worker_id, now_ms))

    async def _write_errors(self) -> None:
        if counted := self._attempts.take(self.queue):
            keys, now_ms = self._context.keys, self._context.clock.wall_ms()
            await self._send(note_errors(keys, counted, now_ms))

    def _now(self, *, stopping: bool) -> WorkerRecord:
        context = self._context
        circuit = None
        if context.circuit is not None:
            wakes_at, failures = context.circuit.wakes_at, context.circuit.failures
            until_ms = None
            if wakes_at is not None:
                left = wakes_at - context.clock.now()
                until_ms = context.clock.wall_ms() + round(left * 1000)
            circuit = BreakerRecord(context.circuit.state, until_ms, failures)
        running = context.runs.running()
        return replace(self._about, running=running, circuit=circuit, stopping=stopping)

    async def _send(self, call: Call[None]) -> None:
        if self._refused:
            return
        try:
            await self._context.store.run(call, timeout=_LIMIT)
        except ServerRefused as error:
            self._refused = error.code == "NOPERM"  # it will not change while we run
            logger.debug("Queue %s: no record of this worker: %s", self.queue, error)
        except TaskbullError as error:
            logger.debug("Queue %s: no record of this worker: %s", self.queue, error)


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

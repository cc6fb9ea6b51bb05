"""Publish a running worker's status, error counts and metrics.

`Recorder` writes status records and error counts to Redis. `Sampler` measures values that have no
event, such as event-loop lag and queue length.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyio import CancelScope, create_task_group, current_time, move_on_after, sleep, sleep_until
from msgspec.structs import replace

from taskbull import __version__
from taskbull.core import events
from taskbull.core.fingerprint import ErrorFingerprint, make_fingerprint
from taskbull.core.options import WorkerOptions
from taskbull.core.validation import from_ms, to_ms
from taskbull.core.worker_record import BreakerRecord, WorkerRecord
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.observability.metrics import NO_TASKS, Declared, Metrics
from taskbull.scripts import records
from taskbull.scripts.call import Call
from taskbull.store.backend import on_trio
from taskbull.worker.context import PAUSE_PER_QUEUE, QueueContext
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.run import SKEW, Shutdown
from taskbull.worker.threads import ThreadPool

# Error counts, kept until they are written.


_OTHERS = ErrorFingerprint("", "", "other")


class FailedAttempts:
    """Counts of attempts that failed and are retried, by kind of error.

    The number of kinds per queue is limited. Jobs that failed permanently are stored with their
    errors, so they need no count.
    """

    def __init__(self) -> None:
        self._counted: defaultdict[str, dict[ErrorFingerprint, int]] = defaultdict(dict)

    def on_event(self, event: events.Retried) -> None:
        """Count one failed attempt."""
        failure, counted = event.failure, self._counted[event.queue]
        stack = failure.stack
        error = make_fingerprint(event.job.name, failure.reason[:300], stack[:300], stack[-600:])
        if error not in counted and len(counted) >= records.MOST_ERRORS:
            error = _OTHERS
        counted[error] = counted.get(error, 0) + 1

    def take(self, queue: str) -> dict[ErrorFingerprint, int]:
        """Return and reset a queue's counts."""
        return self._counted.pop(queue, {})


# Records for monitoring. A worker that runs jobs writes every 5 s, an idle one every 25 s: one
# command per queue. Nothing is written per job, all records expire, and no job depends on them.


logger = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between checks of the event loop and of the records that are due."""

BUSY, IDLE, ERRORS = 5.0, 25.0, 10.0
"""Seconds between records of a busy worker, of an idle worker, and of errors."""

_PAUSE_PER_QUEUE = 0.005
"""Seconds between checks per queue of the worker, up to `BUSY`. With 200 queues or fewer, every
check covers all of them."""

_WRITE_TIMEOUT = 5.0
"""Timeout of one write in seconds."""

_PIECE = 25
"""Number of queues per round trip. Jobs wait for it, and a worker may have 1,000 queues."""

_LAGS = 300
"""Number of lag measurements to keep."""


class Recorder:
    """The writer of a running worker's records."""

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
        """Write records until cancelled, then remove the worker's record."""
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._register)
                tasks.start_soon(self._stop, shutdown)
                looks_at, was_quiet = current_time(), False
                while True:
                    is_quiet = self._contexts[0].is_quiet
                    if current_time() >= looks_at or is_quiet is not was_quiet:
                        was_quiet = is_quiet
                        looks_at = current_time() + min(BUSY, len(self._pages) * _PAUSE_PER_QUEUE)
                        await self._write(stopping=shutdown.begun)
                    due = current_time() + CHECK_INTERVAL
                    await sleep_until(due)
                    self._lags.append(current_time() - due)
        finally:
            with CancelScope(shield=True), move_on_after(1.0), suppress(TaskbullError):
                await self._send(lambda page: page.last(self._id))

    async def _register(self) -> None:
        context = self._contexts[0]
        names = [each.keys.queue for each in self._contexts]
        command = records.register_queues(context.keys.prefix, names, context.clock.wall_ms())
        try:
            await context.store.run(command, timeout=_WRITE_TIMEOUT)
        except TaskbullError as error:
            logger.debug("Could not store the names of the queues: %s", error)

    async def _stop(self, shutdown: Shutdown) -> None:
        await shutdown.wait()
        await self._write(stopping=True)

    async def _write(self, *, stopping: bool) -> None:
        now = current_time()
        state = {"lag_ms": round(self._lag * 1000, 1), "memory": _memory(), "stopping": stopping}
        await self._send(lambda page: page.due(now, state))

    async def _send(self, calls_of: Callable[[_Page], list[Call[None]]]) -> None:
        # Send the first queue alone, because Redis may not have the scripts yet.
        first, size = 0, 1
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
            return await store.run_each([call for _, call in calls], timeout=_WRITE_TIMEOUT)
        except TaskbullError as error:  # The connection closed before anything was sent.
            return [error] * len(calls)

    @property
    def _lag(self) -> float:
        """The 99th percentile of event-loop lag in seconds."""
        return sorted(self._lags)[len(self._lags) * 99 // 100] if self._lags else 0.0


class _Page:
    """The records of one queue."""

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
        """Return the calls that are due now; `state` describes the whole worker."""
        calls: list[Call[None]] = []
        if now - self._errors_at >= ERRORS:
            self._errors_at = now
            calls = self._errors()
        age, written, context = now - self._written_at, self._written, self._context
        has_runs = bool(context.runs or context.runs.lost)
        is_idle = not has_runs and not written.running and context.circuit is None
        has_changed = (state["stopping"], context.is_quiet) != (written.stopping, written.quiet)
        if not is_idle or age >= IDLE or has_changed:
            record = self._now(state)
            if age >= IDLE or has_changed or (age >= BUSY and _has_changed(record, written)):
                self._written, self._written_at = record, now
                calls.append(records.record_worker(context.keys, record))
        return [] if self._refused else calls

    def last(self, worker_id: str) -> list[Call[None]]:
        """Return the final calls: remaining errors, and the removal of the worker's record."""
        calls = self._errors()
        if self._written_at > float("-inf"):
            keys, now_ms = self._context.keys, self._context.clock.wall_ms()
            calls.append(records.forget_worker(keys, worker_id, now_ms))
        return [] if self._refused else calls

    def failed(self, error: TaskbullError) -> None:
        """Handle a failed write. Stop writing if Redis does not permit it."""
        if isinstance(error, ServerRefused) and error.code == "NOPERM":
            self._refused = True  # Permissions will not change while the worker runs.
        logger.debug("Queue %s: could not write the record of this worker: %s", self.queue, error)

    def _errors(self) -> list[Call[None]]:
        counted = self._attempts.take(self.queue)
        keys, now_ms = self._context.keys, self._context.clock.wall_ms()
        return [records.record_errors(keys, counted, now_ms)] if counted else []

    def _now(self, state: Mapping[str, Any]) -> WorkerRecord:
        context = self._context
        circuit = None
        if context.circuit is not None:
            breaker, until_ms = context.circuit.breaker, None
            if breaker.wakes_at is not None:
                left = breaker.wakes_at - context.clock.now()
                until_ms = context.clock.wall_ms() + round(left * 1000)
            circuit = BreakerRecord(breaker.state, until_ms, breaker.failures)
        lost, at_ms = context.runs.lost, context.clock.wall_ms()
        skew = context.clock.skew if abs(context.clock.skew) >= SKEW else 0.0
        return replace(
            self._about,
            running=context.runs.running() + lost,
            lost=lost,
            circuit=circuit,
            at_ms=at_ms,
            skew=round(skew, 1),
            quiet=context.is_quiet,
            **state,
        )


def _has_changed(record: WorkerRecord, written: WorkerRecord) -> bool:
    circuits = [None if one.circuit is None else one.circuit.state for one in (record, written)]
    return record.running > 0 or written.running > 0 or circuits[0] != circuits[1]


def _about(
    worker_id: str,
    options: WorkerOptions,
    tasks: Mapping[str, Declared],
    context: QueueContext,
) -> WorkerRecord:
    """Return a record with the fields that do not change while the worker runs."""
    queue, limiter = context.keys.queue, options.limiter
    # List the queue's own tasks first: a record has no room for all names.
    names = sorted(tasks, key=lambda name: (tasks[name].queue != queue, name))
    return WorkerRecord(
        id=worker_id,
        host=socket.gethostname()[:100],
        pid=os.getpid(),
        version=__version__,
        python=platform.python_version(),
        backend="trio" if on_trio() else "asyncio",
        started_ms=context.started_ms,
        concurrency=options.concurrency,
        tasks=names or None,
        limiter=None if limiter is None else (limiter.max, limiter.duration),
        lock_duration=options.lock_duration,
    )


_STATM = Path("/proc/self/statm")


def _memory() -> int:
    """Return this process's memory in bytes, or its peak if only that is available."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Metrics that have no event: event-loop lag, pool usage and queue length.


SAMPLING = 5.0
"""Minimum seconds between samples of a queue."""

_SAMPLE_TIMEOUT = SAMPLING
"""Timeout of one sample in seconds."""

_NO_WRITES = frozenset({"OOM", "MISCONF", "READONLY", "NOREPLICAS"})
"""Codes of errors that refuse all writes, but no reads."""

_TERM = 2.5
"""Number of periods before other workers may sample the queues of a worker that died."""


class Sampler:
    """Samples a running worker and passes the values to all metrics sinks."""

    def __init__(
        self,
        contexts: Sequence[QueueContext],
        threads: ThreadPool,
        options: WorkerOptions,
        worker_id: str,
        sinks: Sequence[Metrics],
        tasks: Mapping[str, Declared] = NO_TASKS,
    ) -> None:
        self._contexts = contexts
        self._threads = threads
        self._worker_id = worker_id
        self._block_limit = options.loop_block_limit
        self._sinks = sinks
        self._tasks = tasks
        self.processes: ProcessPool | None = None
        """The worker's process pool, or None."""
        self._chosen: set[str] = set()  # queues that this worker samples
        self._unreached: set[str] = set()  # queues whose server does not answer
        self._refused: dict[str, str] = {}  # queues whose server refuses writes, with the error

    async def run(self, shutdown: Shutdown) -> None:
        """Sample until cancelled. From shutdown on, the worker counts as not ready for jobs."""
        circuits = {
            context.keys.queue: None if context.circuit is None else context.circuit.breaker.state
            for context in self._contexts
        }
        running = {context.keys.queue: context.runs.running for context in self._contexts}
        for sink in self._sinks:
            sink.begin(self._worker_id, circuits, running, self._block_limit, self._tasks)
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._report_load)
                for context in self._contexts:
                    tasks.start_soon(self._sample, context)
                await shutdown.wait()
                for sink in self._sinks:
                    sink.stop_taking()
        finally:
            for sink in self._sinks:
                sink.end(self._worker_id)
            with CancelScope(shield=True), move_on_after(1.0), suppress(TaskbullError):
                await self._resign()

    @property
    def _period(self) -> float:
        """Seconds between samples of a queue."""
        return max(SAMPLING, len(self._contexts) * PAUSE_PER_QUEUE)

    async def _report_load(self) -> None:
        threads = self._threads
        while True:
            due = current_time() + CHECK_INTERVAL
            for sink in self._sinks:
                sink.threads(
                    self._worker_id,
                    size=threads.size,
                    busy=threads.busy,
                    abandoned=threads.abandoned,
                )
                pool = self.processes
                sink.processes(
                    self._worker_id,
                    size=0 if pool is None else pool.size,
                    busy=0 if pool is None else pool.busy,
                )
            await sleep_until(due)
            for context in self._contexts:
                # Otherwise long-running jobs would be counted late.
                context.reporter.count_started()
            for sink in self._sinks:
                sink.loop_lag(current_time() - due)

    async def _sample(self, context: QueueContext) -> None:
        while True:
            await self.refresh(context)
            await sleep(self._period)

    async def refresh(self, context: QueueContext) -> None:
        """Sample a queue once if it is this worker's turn, and record whether Redis answered."""
        queue, sample = context.keys.queue, None
        try:
            sample = await self._read(context)
            self._unreached.discard(queue)
        except ServerRefused as error:
            self._unreached.discard(queue)
            logger.debug("Queue %s: could not sample its length: %s", queue, error)
        except TaskbullError:
            self._unreached.add(queue)
        for sink in self._sinks:
            sink.reached(reached=not self._unreached)
            sink.writes_refused(next(iter(self._refused.values()), ""))
        if sample is not None:
            self._chosen.add(queue)
            for sink in self._sinks:
                sink.sampled(queue, sample.counts, _age(context, sample.waiting_since_ms))
                sink.groups_sampled(queue, sample.group_jobs)
        elif queue in self._chosen:  # Another worker may still sample it otherwise.
            self._forget(queue)

    async def _read(self, context: QueueContext) -> records.Sample | None:
        queue = context.keys.queue
        held, term_ms = queue in self._chosen, to_ms(_TERM * self._period)
        steps = records.sample_queue(context.keys, self._worker_id, term_ms, held=held)
        try:
            sample = await context.store.run(steps, timeout=_SAMPLE_TIMEOUT)
        except ServerRefused as error:
            if error.code not in _NO_WRITES:
                raise
            # No worker can take the turn, so each one reports the queue.
            self._refused[queue] = str(error)
            return await context.store.run(
                records.read_sample(context.keys), timeout=_SAMPLE_TIMEOUT
            )
        self._refused.pop(queue, None)
        return sample

    def _forget(self, queue: str) -> None:
        self._chosen.discard(queue)
        for sink in self._sinks:
            sink.not_sampled(queue)

    async def _resign(self) -> None:
        """Let other workers sample this worker's queues."""
        held = [context for context in self._contexts if context.keys.queue in self._chosen]
        for context in held:
            self._forget(context.keys.queue)
        for context in held:
            await context.store.run(records.resign(context.keys), timeout=1.0)


def _age(context: QueueContext, since_ms: int | None) -> float:
    age = 0.0 if since_ms is None else from_ms(context.clock.wall_ms() - since_ms)
    return max(0.0, age)  # Its clock may be ahead.

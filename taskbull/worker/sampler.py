"""What is measured while a worker runs, and no event tells: how the loop lags, how long queues are.

The length of a queue is sampled by one of its workers, whoever holds a key in Redis that expires.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from anyio import CancelScope, create_task_group, current_time, move_on_after, sleep, sleep_until

from taskbull.core.durations import to_ms
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.options import decode_options
from taskbull.core.worker_options import WorkerOptions
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.observability.metrics import NO_TASKS, Declared, Metrics
from taskbull.scripts.call import Command, Steps
from taskbull.scripts.inspection import count_jobs
from taskbull.scripts.replies import texts
from taskbull.worker.context import QueueContext
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.threads import ThreadPool

logger = logging.getLogger(__name__)

PULSE = 1.0
"""Seconds between two looks at the event loop."""

SAMPLING = 5.0
"""Seconds between two looks at a queue."""

_LIMIT = SAMPLING
"""Seconds that one look may take."""

_TERM_MS = to_ms(2.5 * SAMPLING)
"""How long a worker that is gone keeps others from sampling its queues."""


class Sampler:
    """Measures a running worker, and gives it to all who keep metrics."""

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
        self._chosen: set[str] = set()  # the queues that this worker samples

    async def run(self, shutdown: Shutdown) -> None:
        """Measure until cancelled; from the shutdown on, the worker is not ready for jobs."""
        circuits = {
            context.keys.queue: None if context.circuit is None else context.circuit.state
            for context in self._contexts
        }
        running = {context.keys.queue: context.runs.running for context in self._contexts}
        for sink in self._sinks:
            sink.begin(self._worker_id, circuits, running, self._block_limit, self._tasks)
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._pulse)
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

    async def _pulse(self) -> None:
        threads = self._threads
        while True:
            due = current_time() + PULSE
            for sink in self._sinks:
                sink.threads(
                    self._worker_id,
                    size=threads.size,
                    busy=threads.busy,
                    abandoned=threads.abandoned,
                )
            await sleep_until(due)
            for context in self._contexts:
                context.reporter.count_started()  # else those that run for long would come late
            for sink in self._sinks:
                sink.pulse(current_time() - due)

    async def _sample(self, context: QueueContext) -> None:
        while True:
            await self.look(context)
            await sleep(SAMPLING)

    async def look(self, context: QueueContext) -> None:
        """Sample a queue once, if it is this worker's to do; that Redis answers is worth noting."""
        queue = context.keys.queue
        reached, sample = True, None
        try:
            steps = sample_queue(context.keys, self._worker_id, held=queue in self._chosen)
            sample = await context.store.run(steps, timeout=_LIMIT)
        except ServerRefused as error:
            logger.debug("Queue %s: its length cannot be sampled: %s", queue, error)
        except TaskbullError:
            reached = False
        for sink in self._sinks:
            sink.reached(reached=reached)
        if sample is not None:
            self._chosen.add(queue)
            for sink in self._sinks:
                sink.sampled(queue, *sample)
        elif queue in self._chosen:  # else it is not ours to forget
            self._forget(queue)

    def _forget(self, queue: str) -> None:
        self._chosen.discard(queue)
        for sink in self._sinks:
            sink.not_sampled(queue)

    async def _resign(self) -> None:
        """Leave it to another worker to sample what this one did."""
        held = [context for context in self._contexts if context.keys.queue in self._chosen]
        for context in held:
            self._forget(context.keys.queue)
        for context in held:
            key = _key(context.keys)
            await context.store.run(Command(("DEL", key), key, int), timeout=1.0)


def sample_queue(
    keys: QueueKeys, worker_id: str, *, held: bool
) -> Steps[tuple[dict[str, int], float] | None]:
    """Return the counts of a queue and the age of its next job; None if that is another's to do.

    `held`: it was this worker's the last time.
    """
    if not (yield from _chosen(keys, worker_id, held=held)):
        return None
    counts: dict[str, int] = yield count_jobs(keys)
    oldest = 0.0
    for state, words in (
        (JobState.WAITING, ("LRANGE", keys.wait, -1, -1)),
        (JobState.PRIORITIZED, ("ZRANGE", keys.prioritized, 0, 0)),
    ):
        if not counts[state]:
            continue
        found: list[str] = yield Command(words, keys.wait, texts)
        for job_id in found:
            key = keys.job(job_id)
            age: float = yield Command(("HMGET", key, "timestamp", "opts"), key, _age)
            oldest = max(oldest, age)
    return counts, oldest


def _chosen(keys: QueueKeys, worker_id: str, *, held: bool) -> Steps[bool]:
    # Between these commands the key may pass to another: then two workers tell the same, once.
    key = _key(keys)
    take = Command(("SET", key, worker_id, "NX", "PX", _TERM_MS), key, bool)
    if not held and (yield take):
        return True
    holder: bytes | None = yield Command(("GET", key), key, lambda found: found)
    if holder is None:
        return bool((yield take))
    if holder != worker_id.encode():
        return False
    return bool((yield Command(("PEXPIRE", key, _TERM_MS), key, int)))


def _key(keys: QueueKeys) -> str:
    return keys.private("sampler")


def _age(reply: list[bytes | None]) -> float:
    created, options = reply
    try:
        due_ms = float(created or "nan")
        due_ms += decode_options(options).delay_ms or 0 if options else 0
    except ValueError:
        return 0.0
    age = time.time() - due_ms / 1000
    return age if age > 0 else 0.0  # not a number, or ahead of us

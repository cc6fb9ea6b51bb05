"""What is measured while a worker runs, and no event tells: the loop's lag, the queues' lengths."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from anyio import CancelScope, create_task_group, current_time, move_on_after, sleep, sleep_until

from taskbull.core.durations import from_ms, to_ms
from taskbull.core.worker_options import WorkerOptions
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.observability.metrics import NO_TASKS, Declared, Metrics
from taskbull.scripts.sampling import resign, sample_queue
from taskbull.worker.context import PAUSE_PER_QUEUE, QueueContext
from taskbull.worker.pool.pool import ProcessPool
from taskbull.worker.shutdown import Shutdown
from taskbull.worker.threads import ThreadPool

logger = logging.getLogger(__name__)

PULSE = 1.0
"""Seconds between two looks at the event loop."""

SAMPLING = 5.0
"""Seconds between two looks at a queue."""

_LIMIT = SAMPLING
"""Seconds that one look may take."""

_TERM = 2.5
"""How long a worker that is gone keeps others from sampling its queues, in looks."""


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
        self.processes: ProcessPool | None = None
        """The worker's pool, if it has one."""
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

    @property
    def _period(self) -> float:
        """Seconds between two looks at a queue."""
        return max(SAMPLING, len(self._contexts) * PAUSE_PER_QUEUE)

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
                pool = self.processes
                sink.processes(
                    self._worker_id,
                    size=0 if pool is None else pool.size,
                    busy=0 if pool is None else pool.busy,
                )
            await sleep_until(due)
            for context in self._contexts:
                context.reporter.count_started()  # else those that run for long would come late
            for sink in self._sinks:
                sink.pulse(current_time() - due)

    async def _sample(self, context: QueueContext) -> None:
        while True:
            await self.look(context)
            await sleep(self._period)

    async def look(self, context: QueueContext) -> None:
        """Sample a queue once, if it is this worker's to do; that Redis answers is worth noting."""
        queue = context.keys.queue
        reached, sample = True, None
        try:
            held, term_ms = queue in self._chosen, to_ms(_TERM * self._period)
            steps = sample_queue(context.keys, self._worker_id, term_ms, held=held)
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
                sink.sampled(queue, sample.counts, _age(context, sample.waiting_since_ms))
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
            await context.store.run(resign(context.keys), timeout=1.0)


def _age(context: QueueContext, since_ms: int | None) -> float:
    age = 0.0 if since_ms is None else from_ms(context.clock.wall_ms() - since_ms)
    return max(0.0, age)  # it may be ahead of us

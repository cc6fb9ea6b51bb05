"""The search for jobs whose worker is gone, and for flows half added or half cancelled."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from taskbull.core import events
from taskbull.core.durations import to_ms
from taskbull.core.job import Job
from taskbull.errors import MaybeExecuted, ServerRefused
from taskbull.observability.job_filter import cut
from taskbull.scripts.cancelling import finish_cancelling
from taskbull.scripts.flow import undo_flows
from taskbull.scripts.inspection import get_job
from taskbull.scripts.locks import Sweep, sweep_stalled
from taskbull.worker.context import QueueContext

logger = logging.getLogger(__name__)


class Sweeper:
    """Puts back, or dooms, the jobs that stalled; whichever worker comes first does it for all."""

    def __init__(self, context: QueueContext, interval: float, max_stalls: int) -> None:
        self._context = context
        self._interval = interval
        self._max_stalls = max_stalls

    async def run(self) -> None:
        """Sweep now, and whenever the interval is over; one that is late skips a turn."""
        clock = self._context.clock
        due = clock.now()
        while True:
            await self.sweep()
            self._context.reporter.tell(events.Swept)
            due += self._interval
            while due < clock.now():
                due += self._interval
                self._context.reporter.tell(events.SweepSkipped)
            await clock.sleep_until(due)

    async def sweep(self) -> None:
        """Sweep once, if no other worker has just done so."""
        context = self._context
        steps = sweep_stalled(
            context.keys,
            context.clock.wall_ms(),
            interval_ms=to_ms(self._interval),
            max_stalls=self._max_stalls,
        )
        found: Sweep | None = None
        with self._logging_refusal():
            found = await context.store.run(steps)
            if found is not None and found.put_back:
                await self._tell(found)
        if found is not None and found.has_leftovers:  # most queues of an idle worker have none
            with self._logging_refusal():
                await self._undo_flows()
            with self._logging_refusal():
                await context.store.run(finish_cancelling(context.keys, context.clock.wall_ms()))

    @contextmanager
    def _logging_refusal(self) -> Generator[None]:
        """Log that Redis refused a part of the sweep. The next sweep tries it again."""
        try:
            yield
        except MaybeExecuted:
            pass  # the next sweep continues where this one was cut off
        except ServerRefused as error:
            logger.warning("Queue %s: the sweep was refused: %s", self._context.keys.queue, error)

    async def _undo_flows(self) -> None:
        """Remove what producers have left behind that broke off in the middle of a flow."""
        context = self._context
        skipped: list[str] = []
        steps = undo_flows(context.keys, context.clock.wall_ms(), skipped=skipped)
        undone = await context.store.run(steps)
        if skipped:
            logger.warning(
                "Queue %s: skipped %d unfinished flows that cannot be removed, such as %s: a key "
                "has the wrong type, or is out of reach",
                context.keys.queue,
                len(skipped),
                cut(skipped[0]),
            )
        for root in undone:
            logger.warning(
                "Queue %s: the flow of job %s was removed, because its producer broke off before "
                "all its jobs were added",
                context.keys.queue,
                cut(root.removeprefix(context.keys.base)),
            )

    async def _tell(self, found: Sweep) -> None:
        context = self._context
        jobs = await context.store.run_all(
            [get_job(context.keys, job_id) for job_id in found.put_back]
        )
        doomed = set(found.doomed)
        for job_id, job in zip(found.put_back, jobs, strict=True):
            context.reporter.tell(
                events.Stalled, job=job or Job(id=job_id), doomed=job_id in doomed
            )

"""The search for jobs whose worker is gone."""

from __future__ import annotations

import logging

from taskbull.core import events
from taskbull.core.durations import to_ms
from taskbull.core.job import Job
from taskbull.errors import MaybeExecuted, ServerRefused
from taskbull.scripts.inspection import get_job
from taskbull.scripts.stalled import Sweep, sweep_stalled
from taskbull.worker.side import QueueSide

logger = logging.getLogger(__name__)


class Sweeper:
    """Puts back, or dooms, the jobs that stalled; whichever worker comes first does it for all."""

    def __init__(self, side: QueueSide, interval: float, max_stalls: int) -> None:
        self._side = side
        self._interval = interval
        self._max_stalls = max_stalls

    async def run(self) -> None:
        """Sweep now, and whenever the interval is over; one that is late skips a turn."""
        clock = self._side.clock
        due = clock.now()
        while True:
            await self.sweep()
            self._side.reporter.tell(events.Swept)
            due += self._interval
            while due < clock.now():
                due += self._interval
                self._side.reporter.tell(events.SweepSkipped)
            await clock.sleep_until(due)

    async def sweep(self) -> None:
        """Sweep once, if no other worker has just done so."""
        side = self._side
        steps = sweep_stalled(
            side.keys,
            side.clock.wall_ms(),
            interval_ms=to_ms(self._interval),
            max_stalls=self._max_stalls,
        )
        try:
            found = await side.store.perform(steps)
            if found is not None and found.put_back:
                await self._tell(found)
        except MaybeExecuted:
            pass  # the next sweep goes on where this one was cut off
        except ServerRefused as error:
            logger.warning("Queue %s: the sweep was refused: %s", side.keys.queue, error)

    async def _tell(self, found: Sweep) -> None:
        side = self._side
        jobs = await side.store.run_all([get_job(side.keys, job_id) for job_id in found.put_back])
        doomed = set(found.doomed)
        for job_id, job in zip(found.put_back, jobs, strict=True):
            side.reporter.tell(events.Stalled, job=job or Job(id=job_id), doomed=job_id in doomed)

"""Maintain a queue: global concurrency, cancelled parents, declared schedules, and the sweep."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from random import random

from anyio import Event, sleep

from taskbull.core import events
from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.job import Job
from taskbull.core.outcome import Verdict
from taskbull.core.validation import to_ms
from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused, TaskbullError
from taskbull.observability.logs import cut, one_line
from taskbull.scripts.call import again
from taskbull.scripts.change import (
    cancel_all_children,
    finish_cancelling,
    get_global_concurrency,
    set_global_concurrency,
)
from taskbull.scripts.cycle import Sweep, sweep_stalled
from taskbull.scripts.flow import undo_flows
from taskbull.scripts.read import get_job
from taskbull.scripts.schedulers import declare_scheduler, list_schedulers
from taskbull.store.connection import LONGEST_DELAY, reconnect_delay
from taskbull.worker.context import QueueContext

# Global concurrency.


logger = logging.getLogger(__name__)


async def limit_all_workers(context: QueueContext, limit: int) -> None:
    """Write the queue's global concurrency to Redis if it differs. Retry until it succeeds."""
    failures = 0
    while True:
        try:
            if await context.store.run(get_global_concurrency(context.keys)) != limit:
                await context.store.run(set_global_concurrency(context.keys, limit))
        except MaybeExecuted:
            continue  # Writing it twice is harmless.
        except ServerRefused as error:
            failures += 1
            delay = reconnect_delay(failures, LONGEST_DELAY, random())  # noqa: S311
            logger.warning(
                "Queue %s: fetching has not started, because Redis refused global_concurrency %d; "
                "retrying in %.1f s: %s",
                context.keys.queue,
                limit,
                delay,
                error,
            )
            await sleep(delay)
        else:
            return


# Cancelled parents. A job in `waiting-children` finishes in the call that cancels it, and the
# caller then cancels its children. A running job may still spawn children, so its worker cancels
# them when it finishes.


class CancelledParents:
    """Cancels the children of jobs that finished as cancelled, in all queues of a worker.

    Redis keeps a record of them, so a later sweep finishes what was not done here.
    """

    def __init__(self) -> None:
        self._ended: deque[events.Failed] = deque()
        self._news: Event | None = None

    def on_event(self, event: events.Failed) -> None:
        """Queue a failed job if it was cancelled."""
        if event.verdict is Verdict.CANCELLED:
            self._ended.append(event)
            if self._news is not None:
                self._news.set()

    async def run(self, contexts: Sequence[QueueContext]) -> None:
        """Cancel the children of queued jobs, until cancelled."""
        while True:
            self._news = Event()
            await self.flush(contexts)
            await self._news.wait()

    async def flush(self, contexts: Sequence[QueueContext]) -> None:
        """Cancel the children of all jobs queued so far."""
        by_queue = {context.keys.queue: context for context in contexts}
        while self._ended:
            event = self._ended.popleft()
            context = by_queue[event.queue]
            steps = cancel_all_children(context.keys, event.job.id, context.clock.wall_ms())
            try:
                await context.store.run(steps)
            except ServerRefused as error:
                logger.warning(
                    "Queue %s: could not cancel the children of cancelled job %s; the next sweep "
                    "will retry: %s",
                    event.queue,
                    cut(event.job.id),
                    one_line(str(error)),
                )


# Declared schedules, written when a worker starts.


_NAMED = 20
"""Maximum number of schedules named in a log line."""


class ScheduleWriter:
    """Writes one queue's declared schedules. Unchanged schedules are left alone."""

    def __init__(
        self, context: QueueContext, app: str, declared: Sequence[DeclaredSchedule]
    ) -> None:
        self._context = context
        self._app = app
        self._declared = {each.id for each in declared}
        self._left = list(declared)
        self._refusal: ServerRefused | None = None

    async def write(self) -> None:
        """Write all schedules before the first job is fetched, and remember the refused ones."""
        refused: list[DeclaredSchedule] = []
        for each in self._left:
            try:
                await self._write(each)
            except ServerRefused as error:
                refused.append(each)
                self._refusal = error
        self._left = refused

    async def keep_trying(self) -> None:
        """Retry the refused schedules until they are written. Jobs do not wait for this."""
        failures = 0
        while self._left:
            failures += 1
            delay = reconnect_delay(failures, LONGEST_DELAY, random())  # noqa: S311
            logger.warning(
                "Queue %s: Redis refused %d declared schedules of this app; retrying in %.1f s: %s",
                self._context.keys.queue,
                len(self._left),
                delay,
                self._refusal,
            )
            await sleep(delay)
            await self.write()

    async def log_undeclared(self) -> None:
        """Log the schedules that this app declared before and no longer does.

        They are not removed, because a worker of an older version that declares them may be
        running.
        """
        keys = self._context.keys
        try:
            found = await self._context.store.run(again(list_schedulers(keys, self._app)))
        except ServerRefused as error:
            logger.warning("Queue %s: cannot read its schedules: %s", keys.queue, error)
            return
        names = [cut(each.id) for each in found if each.id not in self._declared]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            logger.warning(
                "Queue %s: app %s no longer declares %s%s, but they still run; to remove them: "
                "taskbull schedules sync --prune",
                keys.queue,
                self._app,
                ", ".join(names[:_NAMED]),
                more,
            )

    async def _write(self, declared: DeclaredSchedule) -> None:
        context = self._context
        queue, name = context.keys.queue, declared.id
        try:
            call = declare_scheduler(context.keys, self._app, declared, context.clock.wall_ms())
            while call is not None:
                try:
                    written = await context.store.run(call)
                except MaybeExecuted:
                    continue  # Writing it twice is harmless.
                if written.is_changed:
                    logger.info("Queue %s: schedule %s: %s", queue, name, declared.rule.describe())
                return
        except (ServerRefused, ConnectionLost):
            raise
        except TaskbullError as error:
            logger.error("Queue %s: cannot write schedule %s: %s", queue, name, error)  # noqa: TRY400


# The sweep for stalled jobs, and for flows that were only partly added or cancelled.


class Sweeper:
    """Moves stalled jobs back, or marks them to fail after too many stalls.

    The first worker whose sweep is due does it for all workers of the queue.
    """

    def __init__(self, context: QueueContext, interval: float, max_stalls: int) -> None:
        self._context = context
        self._interval = interval
        self._max_stalls = max_stalls

    async def run(self) -> None:
        """Sweep now and then at every interval, until cancelled. Late sweeps are skipped."""
        clock = self._context.clock
        due = clock.now()
        while True:
            await self.sweep()
            self._context.reporter.emit(events.Swept)
            due += self._interval
            while due < clock.now():
                due += self._interval
                self._context.reporter.emit(events.SweepSkipped)
            await clock.sleep_until(due)

    async def sweep(self) -> None:
        """Sweep once, unless another worker has just done so."""
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
                await self._emit(found)
        if found is not None and found.has_leftovers:  # Most queues of an idle worker have none.
            with self._logging_refusal():
                await self._undo_flows()
            with self._logging_refusal():
                await context.store.run(finish_cancelling(context.keys, context.clock.wall_ms()))

    @contextmanager
    def _logging_refusal(self) -> Generator[None]:
        """Log a refused part of the sweep. The next sweep tries it again."""
        try:
            yield
        except MaybeExecuted:
            pass  # The next sweep continues where this one stopped.
        except ServerRefused as error:
            logger.warning("Queue %s: Redis refused the sweep: %s", self._context.keys.queue, error)

    async def _undo_flows(self) -> None:
        """Remove the partial flows of producers that stopped before adding all jobs."""
        context = self._context
        skipped: list[str] = []
        steps = undo_flows(context.keys, context.clock.wall_ms(), skipped=skipped)
        undone = await context.store.run(steps)
        if skipped:
            logger.warning(
                "Queue %s: skipped %d unfinished flows that cannot be removed, such as %s: a key "
                "has the wrong type, or cannot be accessed",
                context.keys.queue,
                len(skipped),
                cut(skipped[0]),
            )
        for root in undone:
            logger.warning(
                "Queue %s: removed the flow of job %s, because its producer stopped before all of "
                "its jobs were added",
                context.keys.queue,
                cut(root.removeprefix(context.keys.base)),
            )

    async def _emit(self, found: Sweep) -> None:
        context = self._context
        jobs = await context.store.run_all(
            [get_job(context.keys, job_id) for job_id in found.put_back]
        )
        to_fail = set(found.to_fail)
        for job_id, job in zip(found.put_back, jobs, strict=True):
            context.reporter.emit(
                events.Stalled, job=job or Job(id=job_id), doomed=job_id in to_fail
            )

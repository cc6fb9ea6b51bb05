"""The wait for the next job, at the marker where BullMQ's producers ring."""

from __future__ import annotations

import logging
from contextlib import suppress

from anyio import current_time, sleep

from taskbull.core.durations import from_ms
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.marker import has_jobs_to_come, ring, wait_for_marker
from taskbull.store.blocking import SLACK, BlockingConnection
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle import Cycle

logger = logging.getLogger(__name__)

_PASS_ON_LIMIT = 1.0
"""Seconds for which a worker that stops waits for Redis with nothing but a wake-up to pass on."""

_MIDDLE = 0.6
"""When the cycle looks by itself, as a part of the wait at the marker."""


async def wait_at_marker(
    context: QueueContext, cycle: Cycle, connection: BlockingConnection, drain_delay: float
) -> None:
    """Wake the cycle whenever there may be jobs that it does not know of; for ever.

    Due jobs are awaited by an alarm of our own, not by the server's time-out: it looks at those
    only ten times a second. Once in `drain_delay` the cycle looks even if no marker came; not when
    the wait is over, but in its middle: so both connections of an idle worker are answered on
    every few seconds, and one that the network has forgotten is noticed soon.
    """
    wait = wait_for_marker(context.keys, drain_delay)
    try:
        while True:
            await cycle.until(Cycle.sated)
            context.alarm.set(context.clock.now() + _MIDDLE * drain_delay)
            asked_at = current_time()
            try:
                due_ms = await connection.run(wait)
            except ServerRefused as error:
                logger.warning("Queue %s: waiting was refused: %s", context.keys.queue, error)
                await sleep(drain_delay)
                due_ms = None
            due_in = 0.0 if due_ms is None else from_ms(due_ms - context.clock.wall_ms())
            if due_in > 0:  # a job was delayed: there is none to fetch before that time
                context.alarm.set(context.clock.now() + due_in)
            elif due_ms is not None or not _in_time(current_time() - asked_at, drain_delay):
                cycle.wake()
    finally:
        await connection.close()


async def pass_on(context: QueueContext) -> None:
    """Wake another worker if there are jobs: our own wait may have eaten the marker of one.

    Twice, for the server may see only after the first that the connection of that wait is closed.
    """
    with suppress(TaskbullError):  # the others will look by themselves, only later
        for _ in range(2):
            if await context.store.run(has_jobs_to_come(context.keys), timeout=_PASS_ON_LIMIT):
                await context.store.run(ring(context.keys), timeout=_PASS_ON_LIMIT)


def _in_time(took: float, drain_delay: float) -> bool:
    """Return whether a wait without a marker ended as it should: nothing was lost on the way."""
    return drain_delay <= took < drain_delay + SLACK

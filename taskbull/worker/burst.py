"""The end of a burst: nothing runs, nothing waits, nothing is due soon; and what is left then."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import TypeVar

from taskbull.core.durations import from_ms
from taskbull.core.states import JobState
from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.scripts.call import Request
from taskbull.scripts.inspection import count_jobs
from taskbull.scripts.limits import is_paused
from taskbull.scripts.survey import get_next_due_ms
from taskbull.worker.context import QueueContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK = 0.05
"""Seconds until a look is taken again at a job that is due and has not yet begun to wait."""

_LEFT = {
    JobState.WAITING: "waiting",
    JobState.PRIORITIZED: "prioritized",
    JobState.PAUSED: "paused",
    JobState.DELAYED: "delayed",
    JobState.ACTIVE: "active in other workers, or left by one that died",
    JobState.WAITING_CHILDREN: "waiting for their children",
}


async def until_done(
    contexts: Sequence[QueueContext], until_idle: Callable[[], Awaitable[None]], wait: float
) -> None:
    """Wait until there is nothing more to do; log what is left.

    A retry, or another delayed job, is waited for if it is due within `wait` seconds after the
    queues were empty for the first time: a schedule that never ends does not keep a burst alive.
    """
    await until_idle()
    clock = contexts[0].clock
    deadline = clock.now() + wait
    while (due := await _next_due(contexts)) <= deadline:
        await clock.sleep_until(max(due, clock.now() + _LOOK))
        await until_idle()
        if clock.now() >= deadline:
            break
    for context in contexts:
        await _tell_what_is_left(context)


async def _next_due(contexts: Sequence[QueueContext]) -> float:
    """Return when the next delayed job is due that can run, by the workers' clock."""
    earliest = inf
    for context in contexts:
        due_ms = await _ask(context, get_next_due_ms(context.keys))
        if due_ms is not None and not await _ask(context, is_paused(context.keys)):
            seconds = from_ms(due_ms - context.clock.wall_ms())
            earliest = min(earliest, context.clock.now() + max(0.0, seconds))
    return earliest


async def _tell_what_is_left(context: QueueContext) -> None:
    counts = await _ask(context, count_jobs(context.keys))
    left = [f"{counts[state]:,} {words}" for state, words in _LEFT.items() if counts[state]]
    if left:
        paused = " (the queue is paused)" if await _ask(context, is_paused(context.keys)) else ""
        logger.info("Queue %s: the burst leaves %s%s", context.keys.queue, ", ".join(left), paused)


async def _ask(context: QueueContext, request: Request[T]) -> T:
    while True:
        try:
            return await context.store.run(request)
        except (ConnectionLost, MaybeExecuted):
            continue  # a mere question: it is asked again when Redis is back

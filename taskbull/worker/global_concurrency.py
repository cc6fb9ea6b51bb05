"""The number of jobs of a queue that all workers together may run, where an app declares one."""

from __future__ import annotations

import logging
from random import random

from anyio import sleep

from taskbull.errors import MaybeExecuted, ServerRefused
from taskbull.scripts.limits import get_global_concurrency, set_global_concurrency
from taskbull.store.reconnection import LONGEST_DELAY, reconnect_delay
from taskbull.worker.context import QueueContext

logger = logging.getLogger(__name__)


async def limit_all_workers(context: QueueContext, limit: int) -> None:
    """Write the limit where all workers find it, unless it stands there; insist until it does."""
    failures = 0
    while True:
        try:
            if await context.store.run(get_global_concurrency(context.keys)) != limit:
                await context.store.run(set_global_concurrency(context.keys, limit))
        except MaybeExecuted:
            continue  # writing it twice does no harm
        except ServerRefused as error:
            failures += 1
            delay = reconnect_delay(failures, LONGEST_DELAY, random())  # noqa: S311
            logger.warning(
                "Queue %s: no job is taken yet: Redis refuses its global_concurrency of %d; "
                "next try in %.1f s: %s",
                context.keys.queue,
                limit,
                delay,
                error,
            )
            await sleep(delay)
        else:
            return

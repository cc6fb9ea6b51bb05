"""What a cycle asks Redis when it is in doubt; all of it may be asked again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from random import random
from time import monotonic
from typing import TypeVar

from anyio import sleep

from taskbull.core.durations import from_ms
from taskbull.core.job import Job
from taskbull.errors import MaybeExecuted, ServerRefused, TaskbullError
from taskbull.observability.job_filter import one_line
from taskbull.scripts.cycle import Taking
from taskbull.scripts.locks import extend_locks
from taskbull.scripts.settlement import Adopted, Settled, adopt_jobs, settle_cycle
from taskbull.scripts.survey import check_types
from taskbull.store.reconnection import LONGEST_DELAY, reconnect_delay
from taskbull.worker.context import QueueContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_CUT = 5.0
"""Seconds to wait at the most after a cut: by then there is a new link, and jobs wait for it."""


class Inquiry:
    """Asks about jobs and outcomes of one queue, as often as it takes to get an answer."""

    def __init__(self, context: QueueContext, taking: Taking) -> None:
        self._context = context
        self._taking = taking

    async def settle(self, token: str, ended: Sequence[tuple[str, str]], want: int) -> Settled:
        """Find out what a call did whose reply was lost, as soon as Redis can be asked."""
        context = self._context
        return await self._insist(
            lambda: context.store.run(settle_cycle(context.keys, token, ended, want))
        )

    async def adopt(self, token: str, job_ids: Sequence[str], taken_ms: int) -> Adopted:
        """Renew the locks of jobs that such a call took, and read some of them."""
        context = self._context
        call = adopt_jobs(context.keys, token, job_ids, taken_ms, self._taking)
        return await self._insist(partial(context.store.run, call))

    async def renew(self, token: str, jobs: Sequence[Job]) -> tuple[Sequence[Job], float]:
        """Renew the locks of jobs that were taken a while ago; give those still ours, and when.

        The loop was blocked, the process stood still, or the reply was slow. Of the others nothing
        has been told, and nothing is: they are another worker's, or wait for the sweep.
        """
        context, renewed = self._context, -inf
        taken = len(jobs)
        while jobs and monotonic() - renewed > from_ms(self._taking.lock_life_ms):
            renewed = monotonic()
            held = [(job.id, token) for job in jobs]
            call = extend_locks(context.keys, held, self._taking.lock_life_ms)
            lost = (await self._insist(partial(context.store.run, call))).lost
            jobs = [job for job in jobs if job.id not in lost]
        if len(jobs) < taken:
            logger.warning(
                "Queue %s: %d jobs that were taken are not started, because their locks are gone",
                context.keys.queue,
                taken - len(jobs),
            )
        return jobs, renewed

    async def pause(self, failures: int, error: TaskbullError) -> None:
        """Wait after a refusal, the longer the more there were."""
        delay = pause_after(failures, error, random())  # noqa: S311
        logger.warning(
            "Queue %s: %s, next try in %.1f s: %s",
            self._context.keys.queue,
            "Redis refused" if isinstance(error, ServerRefused) else "no reply from Redis",
            delay,
            one_line(await self._explained(error)),
        )
        await sleep(delay)

    async def _explained(self, error: TaskbullError) -> str:
        """Return an error's words; if a key of the queue is of a wrong type, with its name."""
        if not isinstance(error, ServerRefused) or error.code != "WRONGTYPE":
            return str(error)
        try:
            found = await self._context.store.run_all(check_types(self._context.keys))
        except TaskbullError:
            return str(error)
        wrong = [fault for fault in found if fault is not None]
        return f"WRONGTYPE {', '.join(wrong)}" if wrong else str(error)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                return await ask()
            except MaybeExecuted:
                continue
            except ServerRefused as error:
                failures += 1
                await self.pause(failures, error)


def pause_after(failures: int, error: TaskbullError, chance: float) -> float:
    """Return the seconds to wait after so many failures; `chance` is random in [0, 1)."""
    is_cut = isinstance(error, MaybeExecuted)
    return reconnect_delay(failures, _LONGEST_CUT if is_cut else LONGEST_DELAY, chance)

"""Recover from cycle calls that failed, or whose reply was lost."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from random import random
from time import monotonic
from typing import TypeVar

from anyio import sleep

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.outcome import Discard, Loss
from taskbull.core.validation import from_ms
from taskbull.errors import MaybeExecuted, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.observability.logs import one_line
from taskbull.scripts.browse import check_types
from taskbull.scripts.cycle import (
    Adopted,
    CycleReply,
    FetchOptions,
    Settled,
    adopt_jobs,
    extend_locks,
    settle_cycle,
)
from taskbull.store.async_store import SentOn
from taskbull.store.connection import LONGEST_DELAY, reconnect_delay
from taskbull.store.protocol import Reply
from taskbull.worker.context import QueueContext
from taskbull.worker.demand import Demand, Outbox, is_at_fault
from taskbull.worker.intake import CycleCall, Intake
from taskbull.worker.run import Run

# Questions to Redis. All of them are safe to repeat.


logger = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_CUT = 5.0
"""Maximum pause in seconds after a lost connection. A new one exists by that time, and jobs
wait."""


class RecoveryQueries:
    """Asks Redis about one queue's jobs and outcomes, and retries until it gets an answer."""

    def __init__(self, context: QueueContext, taking: FetchOptions) -> None:
        self._context = context
        self._taking = taking

    async def settle(self, token: str, ended: Sequence[tuple[str, str]], want: int) -> Settled:
        """Return the effects of a call whose reply was lost, as soon as Redis answers."""
        context = self._context
        return await self._retry_until_done(
            lambda: context.store.run(settle_cycle(context.keys, token, ended, want))
        )

    async def adopt(self, token: str, job_ids: Sequence[str], taken_ms: int) -> Adopted:
        """Renew the locks of jobs fetched by a call whose reply was lost, and read some of them."""
        context = self._context
        call = adopt_jobs(context.keys, token, job_ids, taken_ms, self._taking)
        return await self._retry_until_done(partial(context.store.run, call))

    async def renew(self, token: str, jobs: Sequence[Job]) -> tuple[Sequence[Job], float]:
        """Renew the locks of jobs fetched a while ago. Return those still held, and the time.

        The event loop was blocked, the process was suspended, or the reply was slow. The other jobs
        were never reported as started. Another worker has them, or the next sweep will find them.
        """
        context, renewed = self._context, -inf
        taken = len(jobs)
        while jobs and monotonic() - renewed > from_ms(self._taking.lock_life_ms):
            renewed = monotonic()
            held = [(job.id, token) for job in jobs]
            call = extend_locks(context.keys, held, self._taking.lock_life_ms)
            lost = (await self._retry_until_done(partial(context.store.run, call))).lost
            jobs = [job for job in jobs if job.id not in lost]
        if len(jobs) < taken:
            logger.warning(
                "Queue %s: %d fetched jobs will not be started, because they lost their locks",
                context.keys.queue,
                taken - len(jobs),
            )
        return jobs, renewed

    async def pause(self, failures: int, error: TaskbullError) -> None:
        """Log an error and wait. The pause grows with the number of failures."""
        delay = pause_after(failures, error, random())  # noqa: S311
        logger.warning(
            "Queue %s: %s, retrying in %.1f s: %s",
            self._context.keys.queue,
            "Redis refused" if isinstance(error, ServerRefused) else "no reply from Redis",
            delay,
            one_line(await self._explained(error)),
        )
        await sleep(delay)

    async def _explained(self, error: TaskbullError) -> str:
        """Return the error's message. For WRONGTYPE, name the keys that have the wrong type."""
        if not isinstance(error, ServerRefused) or error.code != "WRONGTYPE":
            return str(error)
        try:
            found = await self._context.store.run_all(check_types(self._context.keys))
        except TaskbullError:
            return str(error)
        wrong = [fault for fault in found if fault is not None]
        return f"WRONGTYPE {', '.join(wrong)}" if wrong else str(error)

    async def _retry_until_done(self, ask: Callable[[], Awaitable[T]]) -> T:
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
    """Return the pause in seconds after `failures` failures; `chance` is random in [0, 1)."""
    is_cut = isinstance(error, MaybeExecuted)
    return reconnect_delay(failures, _LONGEST_CUT if is_cut else LONGEST_DELAY, chance)


# Recovery. The rules:
#
# - A call that Redis certainly did not execute is repeated later, as a new call.
# - If a call may have been executed, ask Redis. Adopt the jobs that it fetched, and count the
#   outcomes that it wrote as written. Send the other outcomes again if their job is still locked.
# - No job starts because of a reply so old that its lock may be gone.


_CUTS = 2
"""Number of consecutive lost connections to blame on the network rather than on the data sent."""


class Recovery:
    """Completes the calls that need more than one reply."""

    def __init__(
        self,
        context: QueueContext,
        demand: Demand,
        outbox: Outbox,
        intake: Intake,
        taking: FetchOptions,
    ) -> None:
        self._context = context
        self._demand = demand
        self._outbox = outbox
        self._intake = intake
        self._inquiry = RecoveryQueries(context, taking)
        self._refusals = 0
        self._last_cut: SentOn | None = None  # connection of the last call that was cut off

    def on_success(self) -> None:
        """Record a successful call."""
        self._refusals = 0

    async def finish_call(self, sent: CycleCall, reply: Reply) -> None:
        """Complete a call, given its first reply, which may be an error."""
        demand, want = self._demand, sent.want
        try:
            cycled = await self._context.store.finish(sent.call, sent.way, reply)
        except ServerUnavailable as error:  # It was not executed, so there is nothing to settle.
            demand.asked -= want
            self._outbox.put_back(sent.batch, apart=sent.apart)
            await self._inquiry.pause(1, error)
        except (MaybeExecuted, ServerRefused) as error:
            ended = [(run.job.id, run.token) for run in sent.batch]
            settled = await self._inquiry.settle(sent.token, ended, want)
            demand.asked -= want - len(settled.taken)
            self._recover(sent.batch, settled)
            await self._adopt(settled.taken, sent)
            if isinstance(error, ServerRefused):
                await self._refused(error, sent)
            elif sent.batch and not settled.codes:
                await self._cut_off(error, sent)
        else:
            await self._take_in(sent, cycled)

    async def _take_in(self, sent: CycleCall, cycled: CycleReply) -> None:
        denied = self._intake.apply_results(sent.batch, cycled.codes, cycled.reasons)
        if sent.want:
            self._intake.apply_queue_state(cycled, sent)
        await self._deliver(cycled.jobs, sent, sent.sent_at)
        self._demand.asked -= sent.want
        if denied is None:
            self.on_success()
        else:
            await self._put_off(denied)

    async def _deliver(self, jobs: Sequence[Job], sent: CycleCall, renewed: float) -> None:
        """Start jobs whose locks were certainly valid at `renewed`."""
        if jobs and monotonic() - renewed > sent.fresh_for:
            jobs, renewed = await self._inquiry.renew(sent.token, jobs)
        self._intake.deliver(jobs, sent.token, renewed)

    async def _adopt(self, job_ids: list[str], sent: CycleCall) -> None:
        """Start jobs fetched by a call whose reply was lost."""
        while job_ids:
            renewed = monotonic()
            adopted = await self._inquiry.adopt(sent.token, job_ids, sent.now_ms)
            await self._deliver(adopted.jobs, sent, renewed)
            self._demand.asked -= adopted.count
            job_ids = job_ids[adopted.count :]

    def _recover(self, batch: list[Run], settled: Settled) -> None:
        again: list[Run] = []
        if settled.codes:  # The call was executed.
            self._intake.apply_results(batch, settled.codes)
        else:
            again = [one for one, held in zip(batch, settled.held, strict=True) if held]
            for run, held in zip(batch, settled.held, strict=True):
                if not held:
                    self._intake.lose(run, Discard(Loss.EXPIRED))
        self._outbox.put_back(again)
        self._demand.wake()
        self._context.reporter.emit(
            events.Recovered,
            adopted=len(settled.taken),
            settled=sum(code >= 0 for code in settled.codes),
            resent=len(again),
        )

    async def _refused(self, error: TaskbullError, sent: CycleCall) -> None:
        """Retry a call that had no effect: later, and with one outcome per call.

        A refused outcome goes last, so that it does not hold up the others. If its content is at
        fault rather than the queue, its job fails.
        """
        if len(sent.batch) == 1 and not sent.want and self._outbox.withdraw(sent.batch[0]):
            [run] = sent.batch
            run.refusals += 1
            if is_at_fault(run, error):
                self._intake.fail(run, str(error))
                return
            self._outbox.append(run)
            self._refusals = max(self._refusals, run.refusals)
        await self._put_off(error)

    async def _cut_off(self, error: MaybeExecuted, sent: CycleCall) -> None:
        """Retry outcomes after a lost connection: immediately at first, then with pauses.

        A lost connection with several calls counts once. Otherwise four calls in flight would make
        the pauses sixteen times as long.
        """
        if sent.way is not None and sent.way == self._last_cut:
            return
        self._last_cut = sent.way
        if self._refusals < _CUTS:
            self._refusals += 1
        else:
            await self._refused(error, sent)

    async def _put_off(self, error: TaskbullError) -> None:
        self._outbox.separate()
        self._refusals += 1
        await self._inquiry.pause(self._refusals, error)

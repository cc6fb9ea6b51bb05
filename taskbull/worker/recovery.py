"""What a worker does about a call that did not go well: it is settled by what is in Redis.

Its rules:

- A call that Redis has surely not executed is made again, later and anew.
- A call that may or may not have been executed is asked about: jobs that it took are adopted,
  outcomes that it wrote are counted as written, and of the others those whose job is still locked
  are sent again.
- No job starts on the word of a reply that is so old that its lock may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.outcome import LetGo, Loss
from taskbull.errors import MaybeExecuted, ServerRefused, ServerUnavailable, TaskbullError
from taskbull.scripts.cycle import Cycled, Taking
from taskbull.scripts.settlement import Settled
from taskbull.store.async_store import SentOn
from taskbull.store.pipeline import Reply
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle_call import CycleCall
from taskbull.worker.demand import Demand
from taskbull.worker.inquiry import Inquiry
from taskbull.worker.intake import Intake
from taskbull.worker.outbox import Outbox, is_at_fault
from taskbull.worker.run import Run

_CUTS = 2
"""How many cuts in a row are taken for the network's fault, not for that of what was sent."""


class Recovery:
    """Sees calls through that need more than one answer."""

    def __init__(
        self, context: QueueContext, demand: Demand, outbox: Outbox, intake: Intake, taking: Taking
    ) -> None:
        self._context = context
        self._demand = demand
        self._outbox = outbox
        self._intake = intake
        self._inquiry = Inquiry(context, taking)
        self._refusals = 0
        self._last_cut: SentOn | None = None  # where the last call was that was cut off

    def went_well(self) -> None:
        """Take in that Redis does what it is asked for."""
        self._refusals = 0

    async def see_through(self, sent: CycleCall, reply: Reply) -> None:
        """Bring a call to its end, from its first reply on, which may be an error."""
        demand, want = self._demand, sent.want
        try:
            cycled = await self._context.store.finish(sent.call, sent.way, reply)
        except ServerUnavailable as error:  # it was not executed: there is nothing to settle
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

    async def _take_in(self, sent: CycleCall, cycled: Cycled) -> None:
        denied = self._intake.heed(sent.batch, cycled.codes, cycled.reasons)
        if sent.want:
            self._intake.look(cycled, sent)
        await self._deliver(cycled.jobs, sent, sent.sent_at)
        self._demand.asked -= sent.want
        if denied is None:
            self.went_well()
        else:
            await self._put_off(denied)

    async def _deliver(self, jobs: Sequence[Job], sent: CycleCall, renewed: float) -> None:
        """Start jobs whose locks were surely alive at `renewed`."""
        if jobs and monotonic() - renewed > sent.fresh_for:
            jobs, renewed = await self._inquiry.renew(sent.token, jobs)
        self._intake.deliver(jobs, sent.token, renewed)

    async def _adopt(self, job_ids: list[str], sent: CycleCall) -> None:
        """Start jobs that were taken by a call whose reply was lost."""
        while job_ids:
            renewed = monotonic()
            adopted = await self._inquiry.adopt(sent.token, job_ids, sent.now_ms)
            await self._deliver(adopted.jobs, sent, renewed)
            self._demand.asked -= adopted.count
            job_ids = job_ids[adopted.count :]

    def _recover(self, batch: list[Run], settled: Settled) -> None:
        again: list[Run] = []
        if settled.codes:  # it was executed
            self._intake.heed(batch, settled.codes)
        else:
            again = [one for one, held in zip(batch, settled.held, strict=True) if held]
            for run, held in zip(batch, settled.held, strict=True):
                if not held:
                    self._intake.lose(run, LetGo(Loss.EXPIRED))
        self._outbox.put_back(again)
        self._demand.wake()
        self._context.reporter.tell(
            events.Recovered,
            adopted=len(settled.taken),
            settled=sum(code >= 0 for code in settled.codes),
            resent=len(again),
        )

    async def _refused(self, error: TaskbullError, sent: CycleCall) -> None:
        """Go on after a call that had no effect: later, and each outcome in a call of its own.

        The one that was refused comes last, so that it holds up no other. If what it says is at
        fault, and not the queue, its job fails.
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
        """Go on after outcomes did not get through: at once, but not if that happens again.

        A link that took several calls along counts once: else four calls under way would make the
        pauses sixteen times as long.
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

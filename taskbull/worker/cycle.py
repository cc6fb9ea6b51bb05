"""Ends jobs and takes others, many of each in one call to Redis.

Its rules:

- A call is sent as soon as there is something to say and the line is free; what gathers meanwhile
  goes with the next one. A second call may be under way when enough has gathered for it, so that
  Redis works on one while Python runs the jobs of the other.
- It asks for as many jobs as there are free slots, never for more: others want theirs, too.
- Nothing but `carry` talks to Redis, and nobody cancels it before everything is `flushed`: a call
  that takes jobs and whose reply is not read leaves them behind.
- A call that Redis has surely not executed is made again, later and anew.
- A call that may or may not have been executed is settled by what is in Redis: jobs that it took
  are adopted, outcomes that it wrote are counted as written, and of the others those whose job is
  still locked are sent again.
- No job starts on the word of a reply that is so old that its lock may be gone.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import random
from time import monotonic
from typing import Final, TypeAlias

from taskbull.core import events
from taskbull.core.checks import shown
from taskbull.core.durations import from_ms
from taskbull.core.job import Job
from taskbull.core.outcome import (
    Completed,
    Failed,
    Limited,
    Lost,
    Outcome,
    Released,
    Retried,
    Snoozed,
    Written,
)
from taskbull.core.retry import (
    NO_POLICY,
    RetryPolicy,
    attempts_of,
    decide,
    failed_for_good,
    undecidable,
)
from taskbull.errors import (
    MaybeExecuted,
    PermanentError,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.scripts.cycle import Cycled, Packed, Taking, cycle, pack_outcome
from taskbull.scripts.replies import DENIED, REFUSALS, REFUSED, is_denial
from taskbull.scripts.settlement import Settled
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.store.reconnection import reconnect_delay
from taskbull.worker.inquiry import Inquiry
from taskbull.worker.lease import Lease
from taskbull.worker.quarantine import is_suspect
from taskbull.worker.side import QueueSide

logger = logging.getLogger(__name__)

Ending: TypeAlias = tuple[Lease, Written, RetryPolicy]
"""A job whose run is over, what became of it, and the rules by which that was decided."""

CARRIERS = 2
"""Calls under way at once, at the most."""

BATCH = 50
"""Jobs to end and to take in one call, at the most: Redis serves nobody else meanwhile."""

BATCH_BYTES = 1 << 20

_ENOUGH = 25
"""Jobs that are worth a second call while another is under way."""

MOST_CUTS = 8
"""How often in a row the connection may be cut while a large outcome is sent by itself."""

_LARGE = 100_000

_LONGEST_LIMIT = 30.0
"""Seconds after which a limited queue is asked again, whatever it said: limits can be lifted."""

_LONGEST_FULL = 5.0
"""Seconds after which a Redis that was out of memory is asked again, at the latest."""

_INCOMPLETE: Final[dict[int, tuple[type[Exception], str]]] = {
    -4: (TaskbullError, "Job {} has pending dependencies. moveToFinished"),
    -9: (
        PermanentError,
        "Cannot complete job {} because it has at least one failed child. moveToFinished",
    ),
}
"""What a job has failed of that its children keep from being completed; the words are BullMQ's."""


class Cycle:
    """The worker's side of one queue in Redis: outcomes go out, jobs come in."""

    def __init__(self, side: QueueSide, concurrency: int, taking: Taking, fresh_for: float) -> None:
        """Make it; a lock that is younger than `fresh_for` lives until the next heartbeat."""
        self._side = side
        self._concurrency = concurrency
        self._enough = max(1, min(_ENOUGH, concurrency // 2))
        self._taking = taking
        self._fresh_for = fresh_for
        self._inquiry = Inquiry(side, taking)
        self._pending: deque[Ending] = deque()
        self._apart = 0  # how many of those are to be sent one by one
        self._occupied = 0  # slots with a job, taken and not ended
        self._asked = 0  # jobs that calls under way may bring
        self._under_way = 0
        self._hungry = True  # there may be jobs in Redis that nobody has asked for
        self._wakes = 0
        self._limited_until = 0.0
        self._stopping = False
        self._refusals = 0
        self._full = 0  # how often in a row Redis had no memory for jobs
        self._carriers: list[Waiter] = []
        self._watchers: list[tuple[Callable[[Cycle], bool], Waiter]] = []
        self._new_waiter = waiters()

    def sated(self) -> bool:
        """Whether there is room for jobs and none to be had: it is time to wait at the marker."""
        return not self._hungry and not self._stopping and self._room() > 0

    def idle(self) -> bool:
        """Whether no job runs, nothing is to be said, and none is to be had."""
        return self.flushed() and not (self._hungry or self._occupied or self._limited_until)

    def flushed(self) -> bool:
        """Whether everything was said and answered."""
        return not (self._pending or self._under_way)

    async def until(self, condition: Callable[[Cycle], bool]) -> None:
        """Wait until one of the above is so."""
        while not condition(self):
            waiter = self._new_waiter()
            self._watchers.append((condition, waiter))
            await waiter

    def wake(self) -> None:
        """Ask for jobs: there may be some."""
        if self._side.clock.now() >= self._limited_until:
            self._limited_until = 0.0
        else:
            self._side.alarm.set(self._limited_until)  # it may have rung for a job that is due
        self._wakes += 1
        self._hungry = True
        self._nudge()

    def stop_taking(self) -> None:
        """Take no more jobs, and give back those that no slot has begun."""
        self._stopping = True
        suspect = self._side.quarantine.withdraw(self._side.bench)
        for lease in (*self._side.bench.close(), *([] if suspect is None else [suspect])):
            self.ended(lease, Released())
        self._nudge()

    def ended(self, lease: Lease, outcome: Outcome, policy: RetryPolicy = NO_POLICY) -> None:
        """Note what became of a job; it is written as soon as the line is free."""
        lease.ended = True
        self._occupied -= 1
        if self._side.guard is not None:
            self._side.guard.ended(lease.job.id, outcome)
        if lease.lost is None and not isinstance(outcome, Lost):
            self._pending.append((lease, outcome, policy))
        else:
            self._let_go(lease)
        self._nudge()

    async def carry(self) -> None:
        """Send and ask whenever it is time; `CARRIERS` tasks do this."""
        carrier = uuid.uuid4()
        for number in count(1):
            while not self._due():
                waiter = self._new_waiter()
                self._carriers.append(waiter)
                await waiter
            await self._turn(f"{carrier}:{number}")

    def _room(self) -> int:
        """Give how many jobs may be asked for now."""
        if self._stopping or self._limited_until or self._apart:
            return 0
        free = self._concurrency - self._occupied - self._asked
        guard = self._side.guard
        return free if guard is None else guard.allowed(free, self._asked)

    def _due(self) -> bool:
        if self._under_way == 0:
            return len(self._pending) > 0 or (self._hungry and self._room() > 0)
        if self._under_way >= CARRIERS or self._apart:
            return False
        enough = self._enough
        return len(self._pending) >= enough or (self._hungry and self._room() >= enough)

    def _nudge(self) -> None:
        """Wake whoever has something to do now."""
        if self._carriers and self._due():
            wake(self._carriers.pop())
        for watcher in [one for one in self._watchers if one[0](self)]:
            self._watchers.remove(watcher)
            wake(watcher[1])

    def _gather(self) -> list[Ending]:
        pending = self._pending
        if self._apart:
            self._apart -= 1
            return [pending.popleft()]
        batch: list[Ending] = []
        size = 0
        while pending and len(batch) < BATCH and size < BATCH_BYTES:
            ending = pending.popleft()
            size += _size(ending)
            batch.append(ending)
        return batch

    async def _turn(self, token: str) -> None:
        """Make one call and take in what it gives."""
        side = self._side
        want = min(self._room(), BATCH)
        apart, batch = self._apart > 0, self._gather()
        wakes, now_ms, sent_at = self._wakes, side.clock.wall_ms(), monotonic()
        packed = _pack(batch, now_ms)
        self._asked += want
        self._under_way += 1
        try:
            call = cycle(side.keys, now_ms, packed, want, token, self._taking)
            try:
                cycled = await side.store.run(call)
            except ServerUnavailable as error:  # it was not executed: there is nothing to settle
                self._asked -= want
                self._pending.extendleft(reversed(batch))
                self._apart += apart
                await self._inquiry.pause(1, error)
            except (MaybeExecuted, ServerRefused) as error:
                ended = [(lease.job.id, lease.token) for lease, _, _ in batch]
                settled = await self._inquiry.settle(token, ended, want)
                self._asked -= want - len(settled.taken)
                self._recover(batch, settled)
                await self._adopt(settled.taken, token, now_ms)
                if isinstance(error, ServerRefused):
                    await self._refused(error, batch, want)
                elif batch and not settled.codes:
                    await self._cut_off(error, batch, want)
            else:
                denied = self._heed(batch, cycled.codes, cycled.reasons)
                if want:
                    self._take_in(cycled, want, wakes)
                await self._deliver(cycled.jobs, token, sent_at)
                self._asked -= want
                if denied is None:
                    self._refusals = 0
                else:
                    await self._put_off(denied)
        finally:
            self._under_way -= 1
            self._nudge()

    def _take_in(self, cycled: Cycled, want: int, wakes: int) -> None:
        """Take in what a call says about the queue that was to give jobs."""
        if cycled.dropped:
            logger.warning(
                "Queue %s: %d entries of the waiting list are not jobs that can run, such as %s",
                self._side.keys.queue,
                len(cycled.dropped),
                shown(cycled.dropped[0]),
            )
        if cycled.full:
            self._be_full()
            return
        if self._full:
            logger.info("Queue %s: Redis has memory again", self._side.keys.queue)
            self._full = 0
        if len(cycled.jobs) == want:
            self._hungry = True
        elif wakes == self._wakes:  # else somebody knows of jobs that came after this call
            self._hungry = False
        if cycled.limited_ms:
            self._limit(min(from_ms(cycled.limited_ms), _LONGEST_LIMIT))
        if cycled.next_due_ms:
            clock = self._side.clock
            self._side.alarm.set(clock.now() + from_ms(cycled.next_due_ms - clock.wall_ms()))

    def _be_full(self) -> None:
        """Take no jobs for a while: Redis is out of memory, and would refuse what they write."""
        self._full += 1
        if self._full == 1:
            logger.warning(
                "Queue %s: Redis is out of memory, so no job is taken until it has some again: "
                "raise its maxmemory or remove what is not needed",
                self._side.keys.queue,
            )
        self._limit(reconnect_delay(self._full, _LONGEST_FULL, random()))  # noqa: S311

    def _limit(self, duration: float) -> None:
        """Take no jobs for so many seconds."""
        self._limited_until = self._side.clock.now() + duration
        self._side.alarm.set(self._limited_until)

    async def _deliver(self, jobs: Sequence[Job], token: str, renewed: float) -> None:
        """Let jobs run that were taken; give them back if that is no longer wanted."""
        if monotonic() - renewed > self._fresh_for:
            jobs, renewed = await self._inquiry.renew(token, jobs)
        if not jobs:
            return
        side = self._side
        leases = [Lease(job, token, renewed) for job in jobs]
        for lease in leases:
            side.leases.add(lease)
        self._occupied += len(leases)
        if self._stopping or (side.guard is not None and side.guard.open):
            for lease in leases:
                self.ended(lease, Released())
            return
        if side.guard is not None:
            for lease in leases:
                side.guard.started(lease.job.id)
        if suspects := [lease for lease in leases if is_suspect(lease.job)]:
            leases = [lease for lease in leases if lease not in suspects]
            for lease, wait in side.quarantine.admit(suspects, side.bench):
                self.ended(lease, Snoozed(wait))
        side.bench.put(leases)

    async def _adopt(self, job_ids: list[str], token: str, taken_ms: int) -> None:
        """Let jobs run that a call took whose reply was lost."""
        while job_ids:
            renewed = monotonic()
            adopted = await self._inquiry.adopt(token, job_ids, taken_ms)
            await self._deliver(adopted.jobs, token, renewed)
            self._asked -= adopted.count
            job_ids = job_ids[adopted.count :]

    def _heed(
        self, batch: list[Ending], codes: Sequence[int], reasons: Sequence[str] = ()
    ) -> ServerRefused | None:
        """Take in what Redis answered for each outcome; what cannot be written yet comes last."""
        said = iter(reasons)
        denied: list[Ending] = []
        reason = "NOPERM this user may not write an outcome"
        for ending, code in zip(batch, codes, strict=True):
            if code == 0:
                self._accept(ending)
            elif code == DENIED:
                reason = next(said, reason)
                denied.append(ending)
            elif code == REFUSED:
                self._fail(ending, next(said, "something in Redis prevents it"))
            else:
                self._reject(ending, code)
        self._pending.extend(denied)
        return ServerRefused(reason.partition(" ")[0], reason) if denied else None

    def _accept(self, ending: Ending) -> None:
        lease, outcome, _ = ending
        self._let_go(lease)
        if isinstance(outcome, Limited) and outcome.delay > 0:
            self._limit(outcome.delay)  # also where no limit of the queue's keeps us from it
        self._side.reporter.ended(lease, outcome)

    def _reject(self, ending: Ending, code: int) -> None:
        """Take in that Redis did not write an outcome."""
        lease, outcome, policy = ending
        if code in _INCOMPLETE and isinstance(outcome, Completed):
            # The lock is still ours: a job that cannot be completed has failed.
            kind, words = _INCOMPLETE[code]
            error = kind(words.format(lease.job.id))
            self._pending.append((lease, decide(error, lease.job, policy, random=random), policy))
            return
        self._lose(lease, str(REFUSALS[code](self._side.keys.queue, lease.job.id)))

    def _let_go(self, lease: Lease) -> None:
        self._side.leases.drop(lease)
        if is_suspect(lease.job):
            self._side.quarantine.gone(lease)

    def _fail(self, ending: Ending, reason: str) -> None:
        """Let a job fail whose outcome cannot be written because of what stands in Redis."""
        lease, outcome, policy = ending
        error = ServerRefused("REFUSED", f"Redis refused to write what became of it: {reason}")
        if isinstance(outcome, Failed):
            self._lose(lease, str(error))
        else:
            self._pending.append((lease, failed_for_good(error), policy))

    def _lose(self, lease: Lease, reason: str) -> None:
        self._let_go(lease)
        self._side.reporter.lost(lease, reason)

    def _recover(self, batch: list[Ending], settled: Settled) -> None:
        again: list[Ending] = []
        if settled.codes:  # it was executed
            self._heed(batch, settled.codes)
        else:
            again = [one for one, held in zip(batch, settled.held, strict=True) if held]
            for ending, held in zip(batch, settled.held, strict=True):
                if not held:
                    self._lose(ending[0], "the lock expired before Redis could be told of its end")
        self._pending.extendleft(reversed(again))
        self._wakes += 1
        self._hungry = True
        self._side.reporter.tell(
            events.Recovered,
            adopted=len(settled.taken),
            settled=settled.codes.count(0),
            resent=len(again),
        )

    async def _refused(self, error: TaskbullError, batch: list[Ending], want: int) -> None:
        """Go on after a call that had no effect: later, and each outcome in a call of its own.

        The one that was refused comes last, so that it holds up no other. If what it says is at
        fault, and not the queue, its job fails.
        """
        if len(batch) == 1 and not want and self._pending and self._pending[0] is batch[0]:
            self._pending.popleft()
            lease = batch[0][0]
            lease.refusals += 1
            if _is_at_fault(batch[0], error):
                self._fail(batch[0], str(error))
                return
            self._pending.append(batch[0])
            self._refusals = max(self._refusals, lease.refusals)
        await self._put_off(error)

    async def _cut_off(self, error: MaybeExecuted, batch: list[Ending], want: int) -> None:
        """Go on after outcomes did not get through: at once, but not if that happens again."""
        if self._refusals < CARRIERS:  # each may have had a call under way
            self._refusals += 1
        else:
            await self._refused(error, batch, want)

    async def _put_off(self, error: TaskbullError) -> None:
        self._apart = len(self._pending)
        self._refusals += 1
        await self._inquiry.pause(self._refusals, error)


def _pack(batch: list[Ending], now_ms: int) -> list[Packed]:
    """Put outcomes into the script's form; a job whose outcome has none has failed instead."""
    packed: list[Packed] = []
    for place, (lease, outcome, policy) in enumerate(batch):
        job, token = lease.job, lease.token
        lease.written_ms = now_ms
        try:
            attempts = attempts_of(job, policy) if isinstance(outcome, Failed) else 0
            packed.append(pack_outcome(job, token, outcome, attempts, now_ms))
        except Exception as fault:  # noqa: BLE001 - whatever is in a job, its worker lives on
            failed = undecidable(job, fault)
            batch[place] = (lease, failed, policy)
            # Bare: what the job says of itself, such as for how long it is kept, is not sound.
            packed.append(pack_outcome(Job(id=job.id), token, failed, 1, now_ms))
    return packed


def _is_at_fault(ending: Ending, error: TaskbullError) -> bool:
    """Tell whether an outcome that did not get through by itself is too much for Redis."""
    if isinstance(error, ServerRefused):
        return error.code == "ERR" and not is_denial(str(error))
    # Some servers and proxies cut the connection on which something too large comes.
    return ending[0].refusals >= MOST_CUTS and _size(ending) > _LARGE


def _size(ending: Ending) -> int:
    """Give about how many bytes an outcome sends."""
    lease, outcome, _ = ending
    if isinstance(outcome, Completed):
        return len(outcome.value)
    if isinstance(outcome, Failed | Retried):
        return len(outcome.failure.stack) + len(lease.job.raw_stacktrace or b"")
    return 0

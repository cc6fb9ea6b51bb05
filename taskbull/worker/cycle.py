"""Ends jobs and takes others, many of each in one call to Redis.

Its rules:

- A call is sent as soon as there is something to say and the line is free; what gathers meanwhile
  goes with the next one. When enough has gathered for a further call, that is sent before the next
  job runs: Redis works while Python does. (At 100 at once, the two took turns before: 69 µs per job
  instead of 35.)
- Nobody cancels it before everything is `flushed`: a call that takes jobs and whose reply is not
  read leaves them behind.
- What goes well is taken in where the reply is read. What does not, or takes time, is left to the
  tasks of `run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from taskbull.core.outcome import Complete, GiveBack, Outcome
from taskbull.errors import TaskbullError
from taskbull.scripts.cycle import FIRST_HOLD, Cycled, Taking, cycle
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.store.delivery import NONSENSE, invalid_reply
from taskbull.store.protocol import Reply
from taskbull.worker.context import QueueContext
from taskbull.worker.demand import BATCH, CALLS, Demand, Outbox, pack
from taskbull.worker.intake import CycleCall, Intake, TokenSequence
from taskbull.worker.recovery import Recovery
from taskbull.worker.run import Run

_MINUTE_MS = 60_000

_HELD = {"max_starts": 2**53 - 1, "window_ms": 1}
"""How a worker without a limiter takes jobs while a job's `RateLimited` lasts: only that limit has
so high a count. Redis then moves due jobs to `wait`, and gives none."""


class Cycle:
    """The worker's side of one queue in Redis: outcomes go out, jobs come in."""

    def __init__(
        self, context: QueueContext, concurrency: int, taking: Taking, fresh_for: float
    ) -> None:
        """Make it; a lock that is younger than `fresh_for` lives until the next heartbeat."""
        self._context = context
        self._threads = context.threads
        self._usual_taking = taking
        self._use(taking)
        self._fresh_for = fresh_for
        self._demand = Demand(concurrency, context.circuit)
        self._outbox = Outbox()
        self._intake = Intake(context, self._demand, self._outbox)
        self._recovery = Recovery(context, self._demand, self._outbox, self._intake, taking)
        self._all_sequences = tuple(TokenSequence() for _ in range(CALLS))
        self._sequences = list(self._all_sequences)  # those that are free
        self._troubled: deque[tuple[CycleCall, Reply]] = deque()
        self._running = 0  # tasks that see to those; without one nothing is sent
        self._resting: list[Waiter] = []  # where they wait
        self._watchers: list[tuple[Callable[[Cycle], bool], Waiter]] = []
        self._new_waiter = waiters()
        self._minute_end = 0  # of that in which metrics have surely counted a completed job

    def sated(self) -> bool:
        """Whether there is room for jobs and none to be had: it is time to wait at the marker."""
        demand = self._demand
        return (
            not demand.hungry
            and not demand.stopping
            and not self._outbox.apart
            and demand.room() > 0
        )

    def idle(self) -> bool:
        """Whether no job runs, nothing is to be said, and none is to be had."""
        demand = self._demand
        return self.flushed() and not (demand.hungry or demand.occupied or demand.limited_until)

    def flushed(self) -> bool:
        """Whether everything was said and answered."""
        return not (self._outbox or self._demand.under_way)

    async def until(self, condition: Callable[[Cycle], bool]) -> None:
        """Wait until one of the above is so."""
        while not condition(self):
            waiter = self._new_waiter()
            self._watchers.append((condition, waiter))
            await waiter

    def wake(self) -> None:
        """Ask for jobs: there may be some."""
        demand, now = self._demand, self._context.clock.now()
        if now < demand.limited_until:
            self._context.alarm.set(demand.limited_until)  # it may have rung for a job that is due
        elif demand.limited_until:
            demand.limited_until = 0.0
            is_held = now < demand.held_until and not self._usual_taking.max_starts
            self._use(replace(self._usual_taking, **_HELD) if is_held else self._usual_taking)
        demand.wake()
        self._send_what_is_due()

    def _use(self, taking: Taking) -> None:
        self._taking = taking
        self._taking_on = replace(taking, has_begun=taking.data_points > 0)

    def stop_taking(self) -> None:
        """Take no more jobs, and give back those that no slot has begun."""
        self._demand.stopping = True
        suspect = self._context.quarantine.withdraw(self._context.ready)
        for run in (*self._context.ready.close(), *([] if suspect is None else [suspect])):
            self._intake.decided(run, GiveBack())
        self._send_what_is_due()

    def stop_job(self, job_id: str, token: str, reason: str) -> None:
        """Stop a job that was cancelled, if it is ours under that lock, or may yet come."""
        busy = (one for one in self._all_sequences if one not in self._sequences)
        may_come = any(one.is_last(token) for one in busy)
        self._intake.stop(job_id, token, reason=reason, may_come=may_come)

    def decided(self, run: Run, outcome: Outcome) -> None:
        """Note what is to become of a job; it is written as soon as the line is free."""
        self._intake.decided(run, outcome)
        if len(self._outbox) >= self._demand.enough:
            self._send_what_is_due()
            return
        # Others may end in the same pass of the event loop: then they go together.
        if self._resting and not self._demand.under_way:
            wake(self._resting.pop())
        self._tell_watchers()

    async def run(self) -> None:
        """See to all that takes time; `CALLS` tasks do this. Nothing is sent without them."""
        self._running += 1
        try:
            while True:
                if self._troubled:
                    await self._see_through(*self._troubled.popleft())
                elif not self._send_what_is_due():
                    self._resting.append(waiter := self._new_waiter())
                    await waiter
        finally:
            self._running -= 1

    def will_collect(self, ended: int) -> bool:
        """Whether what threads have done is looked at in a moment anyway; asked by a thread.

        So it is while a call is under way and `ended` runs more do not make a further one worth it:
        they could not be written before.
        """
        demand = self._demand
        return (
            demand.under_way > 0
            and len(self._outbox) + ended < demand.enough
            and not demand.stopping
        )

    def _send_what_is_due(self) -> bool:
        """Send calls, as many as are worth it now; return whether any was sent."""
        if self._threads.ended:  # `will_collect` has promised it
            self._threads.collect()
        demand, outbox = self._demand, self._outbox
        was_sent = False
        while self._running and (want := demand.due(len(outbox), outbox.apart)) is not None:
            self._send(want)
            was_sent = True
            if not outbox and want < BATCH:  # all free slots were asked for
                break
        self._tell_watchers()
        return was_sent

    def _send(self, want: int) -> None:
        """Send one call, which asks for `want` jobs."""
        context, demand, outbox = self._context, self._demand, self._outbox
        apart = outbox.apart > 0
        batch = outbox.gather()
        now_ms = context.clock.wall_ms()
        sequence = self._sequences.pop()
        token = sequence.next_token()
        taking = self._taking_on if now_ms < self._minute_end else self._taking
        quarantine = context.quarantine
        hold, is_open = FIRST_HOLD, want > 0
        if quarantine.is_watching:
            hold = quarantine.hold() or hold
            taking = replace(taking, hold=hold)
            is_open = is_open and hold.may_take
        quarantine.open_calls += is_open
        call = cycle(context.keys, now_ms, pack(batch, now_ms), want, token, taking)
        sent = CycleCall(
            self._arrive,
            sequence,
            token,
            call,
            batch,
            want,
            demand.wakes,
            now_ms,
            monotonic(),
            self._fresh_for,
            apart,
            is_open,
            hold,
        )
        demand.sent(want)
        sent.way = context.store.start(call, sent)
        if sent.way is None:
            self._leave(sent, None)

    def _leave(self, sent: CycleCall, reply: Reply) -> None:
        """Leave a call to the tasks of `run`, with its first reply, or why there is none."""
        self._troubled.append((sent, reply))
        if type(reply) is not list:
            self._close(sent)  # its server may be away for long, and others are to run jobs
        if self._resting:
            wake(self._resting.pop())

    def _arrive(self, sent: CycleCall, reply: Reply) -> None:
        """Take a reply, where the connection reads it: nothing may be raised or awaited here."""
        if not self._running:  # the worker has broken off: nobody would run what it brings
            return
        is_plain = type(reply) is list and monotonic() - sent.sent_at <= self._fresh_for
        try:
            if is_plain:
                try:
                    cycled = sent.call.parse(reply)
                except TaskbullError:
                    raise
                except NONSENSE as error:
                    raise invalid_reply(self._context.store.address, reply) from error
                is_plain = not any(cycled.codes)
                if is_plain:
                    self._take_in(sent, cycled)
        except BaseException as error:  # noqa: BLE001 - raised by a task of `run`
            is_plain, reply = False, error
        if not is_plain:
            self._leave(sent, reply)
        self._send_what_is_due()

    def _take_in(self, sent: CycleCall, cycled: Cycled) -> None:
        """Take in what a call gives that went well."""
        intake = self._intake
        if sent.batch:
            intake.heed(sent.batch, cycled.codes)
            if sent.now_ms >= self._minute_end:
                self._note_minute(sent)
        if sent.want:
            intake.look(cycled, sent)
            intake.deliver(cycled.jobs, sent.token, sent.sent_at)
        self._recovery.went_well()
        self._demand.asked -= sent.want
        self._end(sent)

    def _note_minute(self, sent: CycleCall) -> None:
        """Note that Redis has begun to count completed jobs in the minute of a call, if it has."""
        if any(run.outcome.__class__ is Complete for run in sent.batch):
            self._minute_end = (sent.now_ms // _MINUTE_MS + 1) * _MINUTE_MS

    def _end(self, sent: CycleCall) -> None:
        if self._intake.early:
            self._intake.came(sent.token)
        self._close(sent)
        self._demand.under_way -= 1
        self._sequences.append(sent.sequence)

    def _close(self, sent: CycleCall) -> None:
        if sent.is_open:
            sent.is_open = False
            self._context.quarantine.call_closed()

    async def _see_through(self, sent: CycleCall, reply: Reply) -> None:
        try:
            await self._recovery.see_through(sent, reply)
        finally:
            self._end(sent)
            self._send_what_is_due()

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            if watcher[0](self):
                break
        else:
            return
        for watcher in [one for one in self._watchers if one[0](self)]:
            self._watchers.remove(watcher)
            wake(watcher[1])

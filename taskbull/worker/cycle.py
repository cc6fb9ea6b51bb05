"""Write outcomes to Redis and fetch jobs, many of each in one call.

The rules:

- A call is sent as soon as there is something to send and no call is in flight. Outcomes that
  arrive later go with the next call.
- When enough has gathered for another call, it is sent before the next job runs, so that Redis
  works while Python does. At concurrency 100 this takes 35 µs per job; taking turns took 69.
- Do not cancel the cycle before everything is `flushed`. If the reply to a fetching call is not
  read, its jobs are left behind.
- A successful reply is processed where the connection reads it. Errors, and work that takes time,
  go to the tasks of `run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from taskbull.core.outcome import Complete, Outcome, Release
from taskbull.errors import TaskbullError
from taskbull.scripts.cycle import FIRST_HOLD, CycleReply, FetchOptions, cycle
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
"""Limiter settings for a worker without a limiter while a job's `RateLimited` delay lasts. The
count is so high that only that delay applies. Redis moves due jobs to `wait`, and returns none."""


class Cycle:
    """The exchange with Redis for one queue: sends outcomes and receives jobs."""

    def __init__(
        self, context: QueueContext, concurrency: int, taking: FetchOptions, fresh_for: float
    ) -> None:
        """Create a cycle; locks younger than `fresh_for` seconds last until the next heartbeat."""
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
        self._sequences = list(self._all_sequences)  # the ones not in use
        self._troubled: deque[tuple[CycleCall, Reply]] = deque()
        self._running = 0  # tasks in `run`; nothing is sent without one
        self._resting: list[Waiter] = []  # waiters of idle `run` tasks
        self._watchers: list[tuple[Callable[[Cycle], bool], Waiter]] = []
        self._new_waiter = waiters()
        self._minute_end = 0  # end of the last minute that has a completed job in Redis's metrics

    def should_wait(self) -> bool:
        """Return True if slots are free but no jobs are available: time to wait at the marker."""
        demand = self._demand
        return (
            not demand.wants_jobs
            and not demand.stopping
            and not self._outbox.apart
            and demand.room() > 0
        )

    def idle(self) -> bool:
        """Return True if no job is running, nothing is left to send, and no job is available."""
        demand = self._demand
        return self.flushed() and not (demand.wants_jobs or demand.occupied or demand.limited_until)

    def flushed(self) -> bool:
        """Return True if every outcome was sent and every call was answered."""
        return not (self._outbox or self._demand.under_way)

    async def until(self, condition: Callable[[Cycle], bool]) -> None:
        """Wait until a condition is true: `should_wait`, `idle` or `flushed`."""
        while not condition(self):
            waiter = self._new_waiter()
            self._watchers.append((condition, waiter))
            await waiter

    def wake(self) -> None:
        """Ask Redis for jobs, because there may be some."""
        demand, now = self._demand, self._context.clock.now()
        if now < demand.limited_until:
            self._context.alarm.set(demand.limited_until)  # It may have gone off for a due job.
        elif demand.limited_until:
            demand.limited_until = 0.0
            is_held = now < demand.held_until and not self._usual_taking.max_starts
            self._use(replace(self._usual_taking, **_HELD) if is_held else self._usual_taking)
        demand.wake()
        self._send_due_calls()

    def _use(self, taking: FetchOptions) -> None:
        self._taking = taking
        self._taking_on = replace(taking, has_begun=taking.data_points > 0)

    def stop_taking(self) -> None:
        """Stop fetching, and release the jobs that no slot has started."""
        self._demand.stopping = True
        suspect = self._context.quarantine.withdraw(self._context.ready)
        for run in (*self._context.ready.close(), *([] if suspect is None else [suspect])):
            self._intake.decided(run, Release())
        self._send_due_calls()

    def stop_job(self, job_id: str, token: str, reason: str) -> None:
        """Stop a cancelled job if this worker holds it under that lock, or may still receive it."""
        busy = (one for one in self._all_sequences if one not in self._sequences)
        may_come = any(one.is_last(token) for one in busy)
        self._intake.stop(job_id, token, reason=reason, may_come=may_come)

    def decided(self, run: Run, outcome: Outcome) -> None:
        """Queue a job's outcome; it is sent as soon as possible."""
        self._intake.decided(run, outcome)
        if len(self._outbox) >= self._demand.enough:
            self._send_due_calls()
            return
        # More jobs may finish in the same pass of the event loop; send them together.
        if self._resting and not self._demand.under_way:
            wake(self._resting.pop())
        self._notify_watchers()

    async def run(self) -> None:
        """Send calls and handle failed ones until cancelled. Run `CALLS` of these concurrently."""
        self._running += 1
        try:
            while True:
                if self._troubled:
                    await self._finish_call(*self._troubled.popleft())
                elif not self._send_due_calls():
                    self._resting.append(waiter := self._new_waiter())
                    await waiter
        finally:
            self._running -= 1

    def will_collect(self, ended: int) -> bool:
        """Return True if the event loop will collect finished threads soon. Thread-safe.

        It will if a call is in flight and `ended` more outcomes do not justify another one. They
        could not be sent any earlier.
        """
        demand = self._demand
        return (
            demand.under_way > 0
            and len(self._outbox) + ended < demand.enough
            and not demand.stopping
        )

    def _send_due_calls(self) -> bool:
        """Send all calls that are worth sending now, and return True if any was sent."""
        if self._threads.ended:  # as `will_collect` has promised
            self._threads.collect()
        demand, outbox = self._demand, self._outbox
        was_sent = False
        while self._running and (want := demand.due(len(outbox), outbox.apart)) is not None:
            self._send(want)
            was_sent = True
            if not outbox and want < BATCH:  # The call asked for all free slots.
                break
        self._notify_watchers()
        return was_sent

    def _send(self, want: int) -> None:
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
        """Hand a call to the tasks of `run`, with its first reply or error (None if not sent)."""
        self._troubled.append((sent, reply))
        if type(reply) is not list:
            # Its server may be unavailable for long; do not hold up other queues' suspects.
            self._close(sent)
        if self._resting:
            wake(self._resting.pop())

    def _arrive(self, sent: CycleCall, reply: Reply) -> None:
        """Process a reply where the connection reads it. This must not raise or await."""
        if not self._running:  # The worker was aborted; no slot would run the jobs.
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
        except BaseException as error:  # noqa: BLE001 - re-raised by a task of `run`
            is_plain, reply = False, error
        if not is_plain:
            self._leave(sent, reply)
        self._send_due_calls()

    def _take_in(self, sent: CycleCall, cycled: CycleReply) -> None:
        """Process the reply of a successful call."""
        intake = self._intake
        if sent.batch:
            intake.apply_results(sent.batch, cycled.codes)
            if sent.now_ms >= self._minute_end:
                self._note_minute(sent)
        if sent.want:
            intake.apply_queue_state(cycled, sent)
            intake.deliver(cycled.jobs, sent.token, sent.sent_at)
        self._recovery.on_success()
        self._demand.asked -= sent.want
        self._end(sent)

    def _note_minute(self, sent: CycleCall) -> None:
        """Remember that Redis's metrics have a completed job in the minute of this call, if so."""
        if any(run.outcome.__class__ is Complete for run in sent.batch):
            self._minute_end = (sent.now_ms // _MINUTE_MS + 1) * _MINUTE_MS

    def _end(self, sent: CycleCall) -> None:
        if self._intake.early:
            self._intake.forget_early_cancels(sent.token)
        self._close(sent)
        self._demand.under_way -= 1
        self._sequences.append(sent.sequence)

    def _close(self, sent: CycleCall) -> None:
        if sent.is_open:
            sent.is_open = False
            self._context.quarantine.call_closed()

    async def _finish_call(self, sent: CycleCall, reply: Reply) -> None:
        try:
            await self._recovery.finish_call(sent, reply)
        finally:
            self._end(sent)
            self._send_due_calls()

    def _notify_watchers(self) -> None:
        for watcher in self._watchers:
            if watcher[0](self):
                break
        else:
            return
        for watcher in [one for one in self._watchers if one[0](self)]:
            self._watchers.remove(watcher)
            wake(watcher[1])

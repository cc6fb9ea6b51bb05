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

import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from random import random
from time import monotonic
from typing import Final, ParamSpec, TypeVar

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.outcome import (
    BY_REQUEST,
    Complete,
    Discard,
    Fail,
    LimitQueue,
    Loss,
    Outcome,
    Release,
    cancelled,
)
from taskbull.core.retry import decide, failed_for_good
from taskbull.core.validation import from_ms, shown
from taskbull.errors import (
    MaybeExecuted,
    PermanentError,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.observability.logs import one_line
from taskbull.scripts.browse import check_types
from taskbull.scripts.call import CANCELLED, DENIED, REFUSALS, REFUSED, Call, Steps
from taskbull.scripts.cycle import (
    FIRST_HOLD,
    CycleReply,
    FetchOptions,
    Hold,
    Settled,
    adopt_jobs,
    cycle,
    extend_locks,
    settle_cycle,
)
from taskbull.store.async_store import SentOn
from taskbull.store.backend import Waiter, waiters, wake
from taskbull.store.connection import LONGEST_DELAY, reconnect_delay
from taskbull.store.protocol import NONSENSE, Reply, invalid_reply
from taskbull.worker.context import QueueContext
from taskbull.worker.demand import BATCH, CALLS, Demand, Outbox, is_at_fault, is_suspect, pack
from taskbull.worker.run import Run

# Process the replies of cycle calls: settle outcomes, and start the jobs that were fetched.


# Calls.


class TokenSequence:
    """A sequence of consecutive calls; Redis remembers its answer to the last one."""

    def __init__(self) -> None:
        # The prefix marks a worker that reads stop requests.
        self._id = f"tb:{uuid.uuid4()}"  # formatted once, which saves 1 µs per call
        self._calls = 0

    def next_token(self) -> str:
        """Return a unique token for the next call."""
        self._calls += 1
        return f"{self._id}:{self._calls}"

    def is_last(self, token: str) -> bool:
        """Return True if `token` belongs to the last call."""
        return token == f"{self._id}:{self._calls}"


class CycleCall(Struct, eq=False):
    """A sent call, which receives its reply where the connection reads it.

    No task waits for the reply. If only one job runs, finishing it and fetching the next takes two
    passes of the event loop. With a task that waits for replies it would take five.
    """

    arrive: Callable[[CycleCall, Reply], None]
    """Callback for the reply or the error."""
    sequence: TokenSequence
    token: str
    call: Call[CycleReply]
    batch: list[Run]
    """The runs whose outcomes it sends."""
    want: int
    """Number of jobs that it asks for."""
    wakes: int
    """Value of `Demand.wakes` when it was sent."""
    now_ms: int
    sent_at: float
    fresh_for: float
    """Maximum age in seconds of a reply whose locks are certainly valid."""
    unbatched: bool
    """True if it sends a single outcome, because a call with several was refused."""
    is_open: bool
    """True while it may return jobs that have stalled before."""
    hold: Hold
    """The delay for stalled jobs that it does not return."""
    way: SentOn | None = None
    """The connection that it was sent on, or None if it could not be sent immediately."""

    def done(self) -> bool:
        """Return False, because the reply is always wanted."""
        return False

    def set_result(self, reply: Reply, /) -> None:
        """Pass the reply on."""
        self.arrive(self, reply)

    def set_exception(self, error: BaseException, /) -> None:
        """Pass the error on."""
        self.arrive(self, error)


# Replies. The rules:
#
# - A run is over when Redis has written its outcome, or when its lock is gone.
# - If Redis's data prevents an outcome from being written, the job fails.
# - If jobs are no longer wanted, they are released.


logger = logging.getLogger(__name__)

_LONGEST_LIMIT = 30.0
"""Maximum seconds before a rate-limited queue is asked again, because limits can be lifted."""

_SHORTEST_LIMIT = 1.0
"""Minimum seconds before a rate-limited queue is asked again for a due delayed job."""

_LONGEST_FULL = 5.0
"""Maximum seconds before Redis is asked again after it was out of memory."""

_INCOMPLETE: Final[dict[int, tuple[type[Exception], str]]] = {
    -4: (TaskbullError, "Job {} has pending dependencies. moveToFinished"),
    -9: (
        PermanentError,
        "Cannot complete job {} because it has at least one failed child. moveToFinished",
    ),
}
"""Errors of jobs that cannot complete because of their children, in BullMQ's words."""


class Intake:
    """The handler of one queue's replies."""

    def __init__(self, context: QueueContext, demand: Demand, outbox: Outbox) -> None:
        self._context = context
        self._demand = demand
        self._outbox = outbox
        self.early: dict[tuple[str, str], str] = {}
        """Cancel reasons of jobs that have not arrived yet, by id and token."""
        self._full = 0  # consecutive replies that reported Redis out of memory

    def decided(self, run: Run, outcome: Outcome) -> None:
        """Free the job's slot, and queue its outcome unless the lock is lost."""
        run.decided = True
        self._demand.occupied -= 1
        circuit = self._context.circuit
        if circuit is not None:
            circuit.count(run.job.id, outcome)
        if run.lost is None and not isinstance(outcome, Discard):
            run.outcome = outcome
            self._outbox.append(run)
        else:
            self._let_go(run)

    def deliver(self, jobs: Sequence[Job], token: str, renewed: float) -> None:
        """Start fetched jobs, or release them if they are no longer wanted."""
        if not jobs:
            return
        context = self._context
        runs = [Run(job, token, renewed) for job in jobs]
        context.runs.add(*runs)
        for run in runs if self.early else ():
            run.cancelled = self.early.get((run.job.id, token))
        self._demand.occupied += len(runs)
        if self._demand.stopping or (
            context.circuit is not None and context.circuit.breaker.is_open
        ):
            for run in runs:
                self.decided(run, Release())
            return
        if context.circuit is not None:
            for run in runs:
                context.circuit.breaker.started(run.job.id)
        if suspects := [run for run in runs if run.job.stalled_count and is_suspect(run.job)]:
            runs = [run for run in runs if run not in suspects]
            for run in context.quarantine.admit(suspects, context.ready):
                self.decided(run, Release())
        context.ready.put(runs)

    def apply_results(
        self, batch: list[Run], codes: Sequence[int], reasons: Sequence[str] = ()
    ) -> ServerRefused | None:
        """Process Redis's answer to each outcome.

        Outcomes that Redis denied go to the end of the outbox. Return the error if there are any.
        """
        if not any(codes):
            self._accept(batch)
            return None
        said = iter(reasons)
        accepted: list[Run] = []
        denied: list[Run] = []
        reason = "NOPERM this user may not write an outcome"
        for run, code in zip(batch, codes, strict=True):
            if code == 0:
                accepted.append(run)
            elif code == CANCELLED:
                self._note_cancelled(run, next(said, run.cancelled or BY_REQUEST))
                accepted.append(run)
            elif code == DENIED:
                reason = next(said, reason)
                denied.append(run)
            elif code == REFUSED:
                self.fail(run, next(said, "something in Redis prevents it"))
            else:
                self._reject(run, code)
        self._accept(accepted)
        self._outbox.extend(denied)
        return ServerRefused(reason.partition(" ")[0], reason) if denied else None

    def apply_queue_state(self, cycled: CycleReply, sent: CycleCall) -> None:
        """Process what the reply says about the queue: dropped ids, memory, limits and due jobs."""
        if cycled.dropped:
            logger.warning(
                "Dropped %d invalid entries from the waiting list of queue %s, such as %s",
                len(cycled.dropped),
                self._context.keys.queue,
                shown(cycled.dropped[0]),
            )
        if cycled.full:
            self._pause_for_memory()
            return
        if self._full:
            logger.info(
                "Redis has free memory again; resumed fetching from queue %s",
                self._context.keys.queue,
            )
            self._full = 0
        if cycled.held:
            self._context.quarantine.have_been_held(cycled.held, sent.hold, sent.sent_at)
        self._demand.answered(sent.want, len(cycled.jobs) + cycled.held, sent.wakes)
        if cycled.next_due_ms or cycled.limited_ms:
            self._wait_until_due(cycled)

    def _wait_until_due(self, cycled: CycleReply) -> None:
        until_due = inf
        if cycled.next_due_ms:
            until_due = from_ms(cycled.next_due_ms - self._context.clock.wall_ms())
        if cycled.limited_ms:
            # As with BullMQ, a due job leaves `delayed` only when a worker asks.
            until_due = max(until_due, _SHORTEST_LIMIT)
            self._limit(min(from_ms(cycled.limited_ms), _LONGEST_LIMIT, until_due))
        else:
            self._context.alarm.set(self._context.clock.now() + until_due)

    def fail(self, run: Run, reason: str) -> None:
        """Fail a job whose outcome Redis refused to write.

        If the outcome already was a failure, give the job up instead.
        """
        error = ServerRefused("REFUSED", f"Redis refused to write its outcome: {reason}")
        if isinstance(run.outcome, Fail):
            self.lose(run, Discard(Loss.REFUSED, str(error)))
        else:
            run.outcome = failed_for_good(error)
            self._outbox.append(run)

    def lose(self, run: Run, outcome: Discard) -> None:
        """Drop a job that this worker no longer owns, and report it."""
        self._let_go(run)
        self._context.reporter.lost(run, outcome)

    def _accept(self, batch: list[Run]) -> None:
        for run in batch:
            self._let_go(run)
            outcome = run.outcome
            if isinstance(outcome, LimitQueue) and outcome.delay > 0:
                self._pause_for_rate_limit(outcome.delay)
        self._context.reporter.written(batch)

    def _reject(self, run: Run, code: int) -> None:
        if code in _INCOMPLETE and isinstance(run.outcome, Complete):
            # This worker still holds the lock, so it can fail the job.
            kind, words = _INCOMPLETE[code]
            error = kind(words.format(run.job.id))
            run.outcome = decide(error, run.job, run.policy, random=random)
            self._outbox.append(run)
            return
        answer = str(REFUSALS[code](self._context.keys.queue, run.job.id))
        self.lose(run, Discard(Loss.DISOWNED, answer))

    def _note_cancelled(self, run: Run, reason: str) -> None:
        """Record that Redis failed a job instead of retrying it, because it was cancelled."""
        outcome, failure = run.outcome, run.outcome.failure
        if isinstance(outcome, LimitQueue) and outcome.delay > 0:
            self._pause_for_rate_limit(outcome.delay)
        run.outcome = cancelled(reason, None if failure is None else failure.error)

    def _let_go(self, run: Run) -> None:
        self._context.runs.drop(run)
        if run.job.stalled_count:
            self._context.quarantine.gone(run)

    def _pause_for_memory(self) -> None:
        """Pause fetching, because Redis is out of memory and would refuse the jobs' writes."""
        self._full += 1
        if self._full == 1:
            logger.warning(
                "Queue %s: Redis is out of memory; fetching is paused until memory is available. "
                "Raise maxmemory or remove unneeded data",
                self._context.keys.queue,
            )
        self._limit(reconnect_delay(self._full, _LONGEST_FULL, random()))  # noqa: S311

    def _pause_for_rate_limit(self, duration: float) -> None:
        """Pause fetching after a `RateLimited`, even if the worker has no limiter."""
        self._demand.held_until = self._context.clock.now() + duration
        # Redis must be asked regularly, so that it moves due jobs.
        self._limit(min(duration, _LONGEST_LIMIT))

    def _limit(self, duration: float) -> None:
        self._demand.limited_until = self._context.clock.now() + duration
        self._context.alarm.set(self._demand.limited_until)


P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_CUT = 5.0
"""Maximum pause in seconds after a lost connection. A new one exists by that time, and jobs
wait."""


def pause_after(failures: int, error: TaskbullError, chance: float) -> float:
    """Return the pause in seconds after `failures` failures; `chance` is random in [0, 1)."""
    is_cut = isinstance(error, MaybeExecuted)
    return reconnect_delay(failures, _LONGEST_CUT if is_cut else LONGEST_DELAY, chance)


# Recovery from cycle calls that failed, or whose reply was lost. The rules:
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
        fetch_options: FetchOptions,
    ) -> None:
        self._context = context
        self._demand = demand
        self._outbox = outbox
        self._intake = intake
        self._fetch_options = fetch_options
        self._is_refused = False  # True if Redis has refused a call since the last successful one.
        self._refusals = 0
        self._last_cut: SentOn | None = None  # connection of the last call that was cut off

    def on_success(self) -> None:
        """Record a successful call."""
        self._refusals = 0
        if self._is_refused:
            self._is_refused = False
            logger.info("Queue %s: Redis accepts calls again", self._context.keys.queue)

    async def finish_call(self, sent: CycleCall, reply: Reply) -> None:
        """Complete a call, given its first reply, which may be an error."""
        demand, want = self._demand, sent.want
        try:
            cycled = await self._context.store.finish(sent.call, sent.way, reply)
        except ServerUnavailable as error:  # It was not executed, so there is nothing to settle.
            demand.asked -= want
            self._outbox.put_back(sent.batch, unbatched=sent.unbatched)
            await self._pause(1, error)
        except (MaybeExecuted, ServerRefused) as error:
            ended = [(run.job.id, run.token) for run in sent.batch]
            keys, token = self._context.keys, sent.token
            settled = await self._repeat(settle_cycle, keys, token, ended, want)
            demand.asked -= want - len(settled.taken)
            self._recover(sent.batch, settled, error)
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
            jobs, renewed = await self._renew(sent.token, jobs)
        self._intake.deliver(jobs, sent.token, renewed)

    async def _adopt(self, job_ids: list[str], sent: CycleCall) -> None:
        """Start jobs fetched by a call whose reply was lost."""
        while job_ids:
            renewed = monotonic()
            keys, fetch_options = self._context.keys, self._fetch_options
            adopted = await self._repeat(
                adopt_jobs, keys, sent.token, job_ids, sent.now_ms, fetch_options
            )
            await self._deliver(adopted.jobs, sent, renewed)
            self._demand.asked -= adopted.count
            job_ids = job_ids[adopted.count :]

    def _recover(self, batch: list[Run], settled: Settled, error: TaskbullError) -> None:
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
        if isinstance(error, ServerRefused) and not batch and not settled.taken:
            return  # Redis refused to fetch jobs, so nothing was in doubt.
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
        self._outbox.unbatched = len(self._outbox)  # Send all that wait one by one.
        self._refusals += 1
        await self._pause(self._refusals, error)

    async def _renew(self, token: str, jobs: Sequence[Job]) -> tuple[Sequence[Job], float]:
        """Renew the locks of jobs fetched a while ago. Return those still held, and the time.

        The event loop was blocked, the process was suspended, or the reply was slow. The other jobs
        were never reported as started. Another worker has them, or the next sweep will find them.
        """
        context, renewed = self._context, -inf
        taken = len(jobs)
        while jobs and monotonic() - renewed > from_ms(self._fetch_options.lock_life_ms):
            renewed = monotonic()
            held = [(job.id, token) for job in jobs]
            life_ms = self._fetch_options.lock_life_ms
            lost = (await self._repeat(extend_locks, context.keys, held, life_ms)).lost
            jobs = [job for job in jobs if job.id not in lost]
        if len(jobs) < taken:
            logger.warning(
                "Queue %s: %d fetched jobs will not be started, because they lost their locks",
                context.keys.queue,
                taken - len(jobs),
            )
        return jobs, renewed

    async def _pause(self, failures: int, error: TaskbullError) -> None:
        """Log an error and wait. The pause grows with the number of failures."""
        delay = pause_after(failures, error, random())  # noqa: S311
        self._is_refused = self._is_refused or isinstance(error, ServerRefused)
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

    async def _repeat(
        self, make: Callable[P, Call[T] | Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Ask Redis until it answers. `make` returns calls that are safe to repeat."""
        failures = 0
        while True:
            try:
                return await self._context.store.run(make(*args, **kwargs))
            except MaybeExecuted:
                continue
            except ServerRefused as error:
                failures += 1
                await self._pause(failures, error)


_MINUTE_MS = 60_000

_HELD = {"max_starts": 2**53 - 1, "window_ms": 1}
"""Limiter settings for a worker without a limiter while a job's `RateLimited` delay lasts. The
count is so high that only that delay applies. Redis moves due jobs to `wait`, and returns none."""


class Cycle:
    """The exchange with Redis for one queue: sends outcomes and receives jobs."""

    def __init__(
        self, context: QueueContext, concurrency: int, fetch_options: FetchOptions, fresh_for: float
    ) -> None:
        """Create a cycle; locks younger than `fresh_for` seconds last until the next heartbeat."""
        self._context = context
        self._threads = context.threads
        self._usual_fetch_options = fetch_options
        self._use(fetch_options)
        self._fresh_for = fresh_for
        breaker = None if context.circuit is None else context.circuit.breaker
        self._demand = Demand(concurrency, breaker)
        self._outbox = Outbox()
        self._intake = Intake(context, self._demand, self._outbox)
        self._recovery = Recovery(context, self._demand, self._outbox, self._intake, fetch_options)
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
            and not self._outbox.unbatched
            and demand.room() > 0
        )

    def idle(self) -> bool:
        """Return True if no job is running, nothing is left to send, and no job is available."""
        demand = self._demand
        return self.flushed() and not (demand.wants_jobs or demand.occupied or demand.limited_until)

    def flushed(self) -> bool:
        """Return True if every outcome was sent and every call was answered."""
        return not (self._outbox or self._demand.in_flight)

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
            is_held = now < demand.held_until and not self._usual_fetch_options.max_starts
            self._use(
                replace(self._usual_fetch_options, **_HELD)
                if is_held
                else self._usual_fetch_options
            )
        demand.wake()
        self._send_due_calls()

    def _use(self, fetch_options: FetchOptions) -> None:
        self._fetch_options = fetch_options
        self._options_within_minute = replace(
            fetch_options, has_begun=fetch_options.data_points > 0
        )

    def stop_taking(self) -> None:
        """Stop fetching, and release the jobs that no slot has started."""
        self._demand.stopping = True
        suspect = self._context.quarantine.withdraw(self._context.ready)
        for run in (*self._context.ready.close(), *([] if suspect is None else [suspect])):
            self._intake.decided(run, Release())
        self._send_due_calls()

    def set_quiet(self, is_quiet: bool) -> None:
        """Stop fetching jobs for a while, or start again."""
        self._context.is_quiet = self._demand.is_quiet = is_quiet
        if not is_quiet:
            self.wake()

    def stop_job(self, job_id: str, token: str, reason: str) -> None:
        """Stop a cancelled job if this worker holds it under that lock, or may still receive it."""
        run = self._context.runs.find(job_id, token)
        if run is not None:
            run.cancel(reason)
        elif any(one.is_last(token) for one in self._all_sequences if one not in self._sequences):
            self._intake.early[job_id, token] = reason

    def decided(self, run: Run, outcome: Outcome) -> None:
        """Queue a job's outcome; it is sent as soon as possible."""
        self._intake.decided(run, outcome)
        if len(self._outbox) >= self._demand.enough:
            self._send_due_calls()
            return
        # More jobs may finish in the same pass of the event loop; send them together.
        if self._resting and not self._demand.in_flight:
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
            demand.in_flight > 0
            and len(self._outbox) + ended < demand.enough
            and not demand.stopping
        )

    def _send_due_calls(self) -> bool:
        """Send all calls that are worth sending now, and return True if any was sent."""
        if self._threads.ended:  # as `will_collect` has promised
            self._threads.collect()
        demand, outbox = self._demand, self._outbox
        was_sent = False
        while self._running and (want := demand.due(len(outbox), outbox.unbatched)) is not None:
            self._send(want)
            was_sent = True
            if not outbox and want < BATCH:  # The call asked for all free slots.
                break
        self._notify_watchers()
        return was_sent

    def _send(self, want: int) -> None:
        context, demand, outbox = self._context, self._demand, self._outbox
        unbatched = outbox.unbatched > 0
        batch = outbox.gather()
        now_ms = context.clock.wall_ms()
        sequence = self._sequences.pop()
        token = sequence.next_token()
        fetch_options = (
            self._options_within_minute if now_ms < self._minute_end else self._fetch_options
        )
        quarantine = context.quarantine
        hold, is_open = FIRST_HOLD, want > 0
        if quarantine.is_watching:
            hold = quarantine.hold() or hold
            fetch_options = replace(fetch_options, hold=hold)
            is_open = is_open and hold.may_take
        quarantine.open_calls += is_open
        call = cycle(context.keys, now_ms, pack(batch, now_ms), want, token, fetch_options)
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
            unbatched,
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
            if sent.now_ms >= self._minute_end and any(
                run.outcome.__class__ is Complete for run in sent.batch
            ):
                self._minute_end = (sent.now_ms // _MINUTE_MS + 1) * _MINUTE_MS
        if sent.want:
            intake.apply_queue_state(cycled, sent)
            intake.deliver(cycled.jobs, sent.token, sent.sent_at)
        self._recovery.on_success()
        self._demand.asked -= sent.want
        self._end(sent)

    def _end(self, sent: CycleCall) -> None:
        if early := self._intake.early:  # All jobs of this call have arrived.
            self._intake.early = {one: why for one, why in early.items() if one[1] != sent.token}
        self._close(sent)
        self._demand.in_flight -= 1
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
        for watcher in self._watchers.copy():
            condition, waiter = watcher
            if condition(self):
                self._watchers.remove(watcher)
                wake(waiter)

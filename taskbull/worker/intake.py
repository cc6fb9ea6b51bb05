"""Process the replies of cycle calls: settle outcomes, and start the jobs that were fetched."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from math import inf
from random import random
from typing import Final

from msgspec import Struct

from taskbull.core.cancelling import BY_REQUEST, cancelled
from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Discard, Fail, LimitQueue, Loss, Outcome, Release
from taskbull.core.retry import decide, failed_for_good
from taskbull.core.validation import from_ms, shown
from taskbull.errors import PermanentError, ServerRefused, TaskbullError
from taskbull.scripts.call import CANCELLED, DENIED, REFUSALS, REFUSED, Call
from taskbull.scripts.cycle import CycleReply, Hold
from taskbull.store.async_store import SentOn
from taskbull.store.connection import reconnect_delay
from taskbull.store.protocol import Reply
from taskbull.worker.context import QueueContext
from taskbull.worker.demand import Demand, Outbox
from taskbull.worker.limits import is_suspect
from taskbull.worker.run import Run

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
    apart: bool
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
        context.runs.add_all(runs)
        for run in runs if self.early else ():
            run.cancelled = self.early.get((run.job.id, token))
        self._demand.occupied += len(runs)
        if self._demand.stopping or (context.circuit is not None and context.circuit.open):
            for run in runs:
                self.decided(run, Release())
            return
        if context.circuit is not None:
            for run in runs:
                context.circuit.started(run.job.id)
        if suspects := [run for run in runs if run.job.stalled_count and is_suspect(run.job)]:
            runs = [run for run in runs if run not in suspects]
            for run in context.quarantine.admit(suspects, context.ready):
                self.decided(run, Release())
        context.ready.put(runs)

    def stop(self, job_id: str, token: str, *, reason: str, may_come: bool) -> None:
        """Stop a cancelled job now, or when it arrives if it `may_come` under that lock."""
        run = self._context.runs.find(job_id, token)
        if run is not None:
            run.cancel(reason)
        elif may_come:
            self.early[job_id, token] = reason

    def forget_early_cancels(self, token: str) -> None:
        """Record that all jobs of the call with this token have arrived."""
        self.early = {one: why for one, why in self.early.items() if one[1] != token}

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
            self._be_full()
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
                self._hold_up(outcome.delay)
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
            self._hold_up(outcome.delay)
        run.outcome = cancelled(reason, None if failure is None else failure.error)

    def _let_go(self, run: Run) -> None:
        self._context.runs.drop(run)
        if run.job.stalled_count:
            self._context.quarantine.gone(run)

    def _be_full(self) -> None:
        """Pause fetching, because Redis is out of memory and would refuse the jobs' writes."""
        self._full += 1
        if self._full == 1:
            logger.warning(
                "Queue %s: Redis is out of memory; fetching is paused until memory is available. "
                "Raise maxmemory or remove unneeded data",
                self._context.keys.queue,
            )
        self._limit(reconnect_delay(self._full, _LONGEST_FULL, random()))  # noqa: S311

    def _hold_up(self, duration: float) -> None:
        """Pause fetching after a `RateLimited`, even if the worker has no limiter."""
        self._demand.held_until = self._context.clock.now() + duration
        # Redis must be asked regularly, so that it moves due jobs.
        self._limit(min(duration, _LONGEST_LIMIT))

    def _limit(self, duration: float) -> None:
        self._demand.limited_until = self._context.clock.now() + duration
        self._context.alarm.set(self._demand.limited_until)

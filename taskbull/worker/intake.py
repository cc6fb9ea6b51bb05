"""One call of a cycle, from the worker to Redis and back."""

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
from taskbull.core.outcome import Complete, Fail, GiveBack, LetGo, LimitQueue, Loss, Outcome
from taskbull.core.retry import decide, failed_for_good
from taskbull.core.validation import from_ms, shown
from taskbull.errors import PermanentError, ServerRefused, TaskbullError
from taskbull.scripts.call import CANCELLED, DENIED, REFUSALS, REFUSED, Call
from taskbull.scripts.cycle import Cycled, Hold
from taskbull.store.async_store import SentOn
from taskbull.store.connection import reconnect_delay
from taskbull.store.protocol import Reply
from taskbull.worker.context import QueueContext
from taskbull.worker.demand import Demand, Outbox
from taskbull.worker.limits import is_suspect
from taskbull.worker.run import Run

# One call of a cycle, from the worker to Redis and back.


class TokenSequence:
    """Calls that are made one after the other: Redis remembers what it answered to the last."""

    def __init__(self) -> None:
        # By its beginning whoever cancels a job knows that its worker can be told.
        self._id = f"tb:{uuid.uuid4()}"  # its text is made once: 1 µs
        self._calls = 0

    def next_token(self) -> str:
        """Return the token of the next call, which no other call has."""
        self._calls += 1
        return f"{self._id}:{self._calls}"

    def is_last(self, token: str) -> bool:
        """Return whether it is the token of the last call."""
        return token == f"{self._id}:{self._calls}"


class CycleCall(Struct, eq=False):
    """A call that was sent; it is given its reply where the connection reads it.

    No task waits for that: a job that runs alone is ended, and the next one taken, in two passes of
    the event loop where a task that waits for replies would need five.
    """

    arrive: Callable[[CycleCall, Reply], None]
    """Takes the reply, or what went wrong."""
    sequence: TokenSequence
    token: str
    call: Call[Cycled]
    batch: list[Run]
    """What it writes."""
    want: int
    """How many jobs it asks for."""
    wakes: int
    """How often the worker had been told of jobs by then."""
    now_ms: int
    sent_at: float
    fresh_for: float
    """Seconds after which the locks of the jobs that it takes are in doubt."""
    apart: bool
    """Whether its outcome is sent by itself, because a call with several was refused."""
    is_open: bool
    """Whether it may bring jobs that have stalled before."""
    hold: Hold
    """How it delays those that it does not bring."""
    way: SentOn | None = None
    """Where it was sent; None: it could not be sent at once."""

    def done(self) -> bool:
        """Return that the reply is wanted."""
        return False

    def set_result(self, reply: Reply, /) -> None:
        """Take the reply."""
        self.arrive(self, reply)

    def set_exception(self, error: BaseException, /) -> None:
        """Take what went wrong."""
        self.arrive(self, error)


# What Redis says to a worker, taken in: what became of outcomes, which jobs it gives, how it is.
#
# Its rules:
#
# - A run is over when Redis has written what became of the job, or when the lock is gone.
# - A job whose outcome cannot be written because of what stands in Redis has failed.
# - Where jobs are not wanted any more, those that come go back.


logger = logging.getLogger(__name__)

_LONGEST_LIMIT = 30.0
"""Seconds after which a limited queue is asked again, whatever it said: limits can be lifted."""

_SHORTEST_LIMIT = 1.0
"""Seconds after which it is asked again at the earliest, because a delayed job is due."""

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


class Intake:
    """Takes in what calls bring, for one queue of a worker."""

    def __init__(self, context: QueueContext, demand: Demand, outbox: Outbox) -> None:
        self._context = context
        self._demand = demand
        self._outbox = outbox
        self.early: dict[tuple[str, str], str] = {}
        """Why jobs are to stop that have not come yet, by id and token."""
        self._full = 0  # how often in a row Redis had no memory for jobs

    def decided(self, run: Run, outcome: Outcome) -> None:
        """Note what is to become of a job, and that its slot is free."""
        run.decided = True
        self._demand.occupied -= 1
        circuit = self._context.circuit
        if circuit is not None:
            circuit.count(run.job.id, outcome)
        if run.lost is None and not isinstance(outcome, LetGo):
            run.outcome = outcome
            self._outbox.append(run)
        else:
            self._let_go(run)

    def deliver(self, jobs: Sequence[Job], token: str, renewed: float) -> None:
        """Start jobs that were taken; give them back if they are no longer wanted."""
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
                self.decided(run, GiveBack())
            return
        if context.circuit is not None:
            for run in runs:
                context.circuit.started(run.job.id)
        if suspects := [run for run in runs if run.job.stalled_count and is_suspect(run.job)]:
            runs = [run for run in runs if run not in suspects]
            for run in context.quarantine.admit(suspects, context.ready):
                self.decided(run, GiveBack())
        context.ready.put(runs)

    def stop(self, job_id: str, token: str, *, reason: str, may_come: bool) -> None:
        """Stop a job that was cancelled; if it `may_come` under that lock, as soon as it does."""
        run = self._context.runs.find(job_id, token)
        if run is not None:
            run.cancel(reason)
        elif may_come:
            self.early[job_id, token] = reason

    def came(self, token: str) -> None:
        """Note that all jobs have come that were taken under a lock."""
        self.early = {one: why for one, why in self.early.items() if one[1] != token}

    def heed(
        self, batch: list[Run], codes: Sequence[int], reasons: Sequence[str] = ()
    ) -> ServerRefused | None:
        """Take in what Redis answered for each outcome; what cannot be written yet comes last."""
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

    def look(self, cycled: Cycled, sent: CycleCall) -> None:
        """Take in what a call says about the queue that was to give jobs."""
        if cycled.dropped:
            logger.warning(
                "Queue %s: %d entries of the waiting list are not jobs that can run, such as %s",
                self._context.keys.queue,
                len(cycled.dropped),
                shown(cycled.dropped[0]),
            )
        if cycled.full:
            self._be_full()
            return
        if self._full:
            logger.info("Queue %s: Redis has memory again", self._context.keys.queue)
            self._full = 0
        if cycled.held:
            self._context.quarantine.have_been_held(cycled.held, sent.hold, sent.sent_at)
        self._demand.answered(sent.want, len(cycled.jobs) + cycled.held, sent.wakes)
        if cycled.next_due_ms or cycled.limited_ms:
            self._wait_until_due(cycled)

    def _wait_until_due(self, cycled: Cycled) -> None:
        until_due = inf
        if cycled.next_due_ms:
            until_due = from_ms(cycled.next_due_ms - self._context.clock.wall_ms())
        if cycled.limited_ms:
            # A job that becomes due leaves `delayed` when a worker asks, as with Node.
            until_due = max(until_due, _SHORTEST_LIMIT)
            self._limit(min(from_ms(cycled.limited_ms), _LONGEST_LIMIT, until_due))
        else:
            self._context.alarm.set(self._context.clock.now() + until_due)

    def fail(self, run: Run, reason: str) -> None:
        """Fail a job whose outcome cannot be written because of what stands in Redis."""
        error = ServerRefused("REFUSED", f"Redis refused to write its outcome: {reason}")
        if isinstance(run.outcome, Fail):
            self.lose(run, LetGo(Loss.REFUSED, str(error)))
        else:
            run.outcome = failed_for_good(error)
            self._outbox.append(run)

    def lose(self, run: Run, outcome: LetGo) -> None:
        """Take in that a job is no longer ours."""
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
        """Take in that Redis did not write an outcome."""
        if code in _INCOMPLETE and isinstance(run.outcome, Complete):
            # The lock is still ours: a job that cannot be completed has failed.
            kind, words = _INCOMPLETE[code]
            error = kind(words.format(run.job.id))
            run.outcome = decide(error, run.job, run.policy, random=random)
            self._outbox.append(run)
            return
        answer = str(REFUSALS[code](self._context.keys.queue, run.job.id))
        self.lose(run, LetGo(Loss.DISOWNED, answer))

    def _note_cancelled(self, run: Run, reason: str) -> None:
        """Take in that a job has failed that was to run again, because it was cancelled."""
        outcome, failure = run.outcome, run.outcome.failure
        if isinstance(outcome, LimitQueue) and outcome.delay > 0:
            self._hold_up(outcome.delay)
        run.outcome = cancelled(reason, None if failure is None else failure.error)

    def _let_go(self, run: Run) -> None:
        self._context.runs.drop(run)
        if run.job.stalled_count:
            self._context.quarantine.gone(run)

    def _be_full(self) -> None:
        """Take no jobs for a while: Redis is out of memory, and would refuse what they write."""
        self._full += 1
        if self._full == 1:
            logger.warning(
                "Queue %s: Redis is out of memory, so no job is taken until it has some again: "
                "raise its maxmemory or remove what is not needed",
                self._context.keys.queue,
            )
        self._limit(reconnect_delay(self._full, _LONGEST_FULL, random()))  # noqa: S311

    def _hold_up(self, duration: float) -> None:
        """Take no jobs for so many seconds, even if the worker has no limiter."""
        self._demand.held_until = self._context.clock.now() + duration
        self._limit(min(duration, _LONGEST_LIMIT))  # then it asks Redis, which moves due jobs

    def _limit(self, duration: float) -> None:
        """Take no jobs for so many seconds."""
        self._demand.limited_until = self._context.clock.now() + duration
        self._context.alarm.set(self._demand.limited_until)

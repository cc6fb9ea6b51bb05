"""Decide when to call Redis, how many jobs to start, and which outcomes to send."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic

from taskbull.core import events, retry
from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Fail, Outcome
from taskbull.core.validation import from_ms, to_ms
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.call import is_denial
from taskbull.scripts.cycle import FIRST_HOLD, Hold, Packed, pack_outcome
from taskbull.worker.run import Alarm, Clock, ReadyJobs, Reporter, Run

# Decide when to call Redis, how many jobs to ask for, and which outcomes to send. No I/O.
#
# `Demand` counts one queue's slots and calls. `Outbox` holds the outcomes that wait to be sent.


# Demand. The rules:
#
# - A call asks for as many jobs as there are free slots and never for more, because other workers
#   want jobs as well.
# - One call may always be in flight. Up to `CALLS` are sent when enough has gathered for another,
#   so that Redis works on one call while Python runs the jobs of another.


CALLS = 4
"""Maximum number of concurrent calls."""

BATCH = 50
"""Maximum number of jobs to finish, and to fetch, in one call. Redis serves no other client during
the call."""

_ENOUGH = 25
"""Number of jobs that justify another concurrent call if there are many slots."""


class Demand:
    """The state of one queue's slots, calls and expected jobs."""

    def __init__(self, concurrency: int, breaker: retry.Breaker | None = None) -> None:
        self._concurrency = concurrency
        self._breaker = breaker
        self.enough = max(1, min(_ENOUGH, concurrency // 2))
        """Number of jobs that justify another concurrent call."""
        self.occupied = 0
        """Number of slots whose job was fetched and has no outcome yet."""
        self.asked = 0
        """Number of jobs that the calls in flight may return."""
        self.in_flight = 0
        """Number of calls in flight, including those in recovery."""
        self.wants_jobs = True
        """True if Redis may have jobs that no call has asked for."""
        self.wakes = 0
        """Number of wake-ups so far."""
        self.limited_until = 0.0
        """Time when jobs may be fetched again, by the worker's clock, or 0 if they may be fetched
        now."""
        self.held_until = 0.0
        """Time when the latest `RateLimited` delay ends, by the worker's clock."""
        self.stopping = False
        self.is_quiet = False
        """True while the worker fetches no jobs on request."""

    def room(self) -> int:
        """Return the number of jobs that may be asked for now."""
        if self.stopping or self.is_quiet or self.limited_until:
            return 0
        free = self._concurrency - self.occupied - self.asked
        return free if self._breaker is None else self._breaker.allowed(free, self.asked)

    def wake(self) -> None:
        """Record that there may be jobs."""
        self.wakes += 1
        self.wants_jobs = True

    def due(self, outcomes: int, unbatched: int) -> int | None:
        """Return the number of jobs that the next call should ask for, or None if no call is due.

        `outcomes` is the number of outcomes to send. If `unbatched` of them must be sent one by
        one, the call asks for no jobs.
        """
        in_flight = self.in_flight
        if unbatched:
            return 0 if outcomes and not in_flight else None
        if in_flight >= CALLS:
            return None
        least = self.enough if in_flight else 1
        room = self.room()
        if outcomes >= least or (self.wants_jobs and room >= least):
            return min(BATCH, room)
        return None

    def sent(self, want: int) -> None:
        """Record a call that asks for `want` jobs."""
        self.asked += want
        self.in_flight += 1

    def answered(self, want: int, taken: int, wakes: int) -> None:
        """Record a reply with `taken` of `want` jobs.

        `wakes` is the number of wake-ups when the call was sent.
        """
        if taken == want:
            self.wants_jobs = True
        elif wakes == self.wakes:  # Otherwise jobs arrived after this call.
            self.wants_jobs = False


# Outcomes on their way to Redis: gathered, packed, and put back if necessary.


BATCH_BYTES = 1 << 20

MOST_CUTS = 8
"""Maximum number of lost connections in a row while one large outcome is sent alone."""

_LARGE = 100_000


class Outbox(deque[Run]):
    """The outcomes to send to Redis, in order.

    This is a deque rather than an object that holds one, because every job appends to it and reads
    its length.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unbatched = 0
        """Number of outcomes to send one by one, because a call with several was refused."""

    def gather(self) -> list[Run]:
        """Remove and return the outcomes for the next call."""
        if self.unbatched:
            self.unbatched -= 1
            return [self.popleft()]
        batch: list[Run] = []
        size = 0
        while self and len(batch) < BATCH and size < BATCH_BYTES:
            run = self.popleft()
            size += _size(run)
            batch.append(run)
        return batch

    def put_back(self, batch: list[Run], *, unbatched: bool = False) -> None:
        """Put outcomes back at the front."""
        self.extendleft(reversed(batch))
        self.unbatched += unbatched

    def withdraw(self, run: Run) -> bool:
        """Remove an outcome if it is next in line, and return True if it was."""
        if not self or self[0] is not run:
            return False
        self.popleft()
        return True


def pack(batch: list[Run], now_ms: int) -> list[Packed]:
    """Encode outcomes for the script. A job whose outcome cannot be encoded fails instead."""
    packed: list[Packed] = []
    for run in batch:
        job, token, outcome = run.job, run.token, run.outcome
        run.written_ms = now_ms
        try:
            attempts = retry.attempts_of(job, run.policy) if isinstance(outcome, Fail) else 0
            packed.append(pack_outcome(job, token, outcome, attempts, now_ms))
        except Exception as fault:  # noqa: BLE001 - no job may crash its worker
            run.outcome = failed = retry.fail_corrupt_job(job, fault)
            # Use a bare job, because the stored options, such as retention, are not reliable.
            packed.append(pack_outcome(Job(id=job.id), token, failed, 1, now_ms))
    return packed


def is_at_fault(run: Run, error: TaskbullError) -> bool:
    """Return True if Redis failed to accept an outcome because of its content or size."""
    if isinstance(error, ServerRefused):
        return error.code == "ERR" and not is_denial(str(error))
    # Some servers and proxies close the connection if they receive too large a command.
    return run.refusals >= MOST_CUTS and _size(run) > _LARGE


def _size(run: Run) -> int:
    """Return the approximate size of an outcome in bytes."""
    outcome = run.outcome
    if isinstance(outcome, Complete):
        return len(outcome.value)
    if outcome.failure is not None:
        return len(outcome.failure.stack) + len(run.job.raw_stacktrace or b"")
    return 0


# Limit the jobs that a worker starts: circuit breaker, and quarantine for stalled jobs.


# The circuit breaker: its transitions are reported as events, and its timer sets the alarm.


class Circuit:
    """The circuit breaker of one queue, which limits fetching based on recent outcomes."""

    def __init__(
        self, options: retry.CircuitBreaker, reporter: Reporter, clock: Clock, alarm: Alarm
    ) -> None:
        self.breaker = retry.Breaker(options)
        self._reporter = reporter
        self._clock = clock
        self._alarm = alarm

    def check(self) -> None:
        """Update the state for the current time. Call it when the alarm goes off."""
        self._emit(self.breaker.check(self._clock.now()))
        self._set_alarm()  # It may have gone off for another reason.

    def count(self, job_id: str, outcome: Outcome) -> None:
        """Count a job's outcome."""
        self._emit(self.breaker.ended(job_id, outcome, self._clock.now()), job_id)

    def _set_alarm(self) -> None:
        if self.breaker.wakes_at is not None:
            self._alarm.set(self.breaker.wakes_at)

    def _emit(self, changed: retry.BreakerState | None, job_id: str = "") -> None:
        emit, breaker = self._reporter.emit, self.breaker
        match changed:
            case None:
                pass
            case retry.BreakerState.OPEN:
                self._set_alarm()
                threshold = breaker.options.threshold
                emit(events.CircuitOpened, failures=breaker.failures, threshold=threshold)
            case retry.BreakerState.HALF_OPEN:
                emit(events.CircuitHalfOpened, duration=breaker.duration)
            case retry.BreakerState.CLOSED:
                emit(events.CircuitClosed, test_job_id=job_id)


# Quarantine. Jobs that have stalled start one at a time, so that a job that kills its process takes
# no others with it.
#
# When a process dies, all its jobs stall, not only the culprit, and would be fetched together
# again. A process therefore tries one such job (a suspect) at a time, until it finishes or for
# `TRIAL` seconds. In that time, fetching calls make Redis delay other suspects. A suspect starts
# only when no call in flight can return another, and Redis has taken back the refused ones. Other
# jobs run beside it. Suspects that still wait after `LIMIT` seconds start one by one, without a
# trial.


TRIAL = 0.75
"""Maximum seconds that a suspect keeps others from starting."""

LIMIT = 30.0
"""Seconds that suspects are tried, counted from the first one of a group."""

_LONGEST_STEP = 0.8
"""Maximum seconds between the returns of two delayed suspects: slightly more than `TRIAL`."""

_EARLY = 0.3
"""Maximum seconds that a suspect may return early and still keep its place in line."""

_PATIENCE = 5.0
"""Maximum seconds that a suspect waits for Redis before it starts."""

_FIRST_STEP = from_ms(FIRST_HOLD.step_ms)
_SHORTEST_STEP = 0.01
"""Seconds between the returns of two suspects after `LIMIT`."""


def is_suspect(job: Job) -> bool:
    """Return True if a job may have killed a process. One that will not run is harmless."""
    return job.stalled_count > 0 and job.deferred_failure is None


class Quarantine:
    """The suspect that a worker process is trying, shared by all its queues."""

    def __init__(self) -> None:
        self.inside: Run | None = None
        """The suspect on trial, if any. `hold` removes it when its trial is over."""
        self.open_calls = 0
        """Number of calls in flight that may return suspects."""
        self.is_watching = False
        """True if suspects are known to exist. If False, `hold` returns None."""
        self._trials_end = 0.0  # time when suspects start without a trial, by `monotonic`
        self._line = 0.0  # time when the last delayed suspect returns, by `monotonic`
        # the destination of the suspect; None once it has started
        self._ready: ReadyJobs | None = None
        self._leaving: set[Run] = set()  # refused, but not yet released in Redis
        self._since = 0.0  # time when the suspect arrived, later when it started
        self._step = _FIRST_STEP  # estimated length of a trial in seconds

    def hold(self) -> Hold | None:
        """Return the delay for suspects, or None if one may be fetched and no others are known."""
        now = monotonic()
        left = max(self._trials_end - now, 0.0)
        passed = 0.0 if self.inside is None else now - self._since
        if passed > min(TRIAL if self._ready is None else _PATIENCE, left):
            self._make_room() if self._ready is None else self._start()
            passed = 0.0
        if self.inside is None and now >= self._line:
            self.is_watching = False
            return None
        step = max(self._step, min(passed, _LONGEST_STEP)) if left else _SHORTEST_STEP
        first = max(min(TRIAL, left) - passed, _FIRST_STEP)
        if first > _EARLY or not left:
            first = max(first, self._line + step - now)
        if left:  # One call delays up to `BATCH` suspects.
            first = min(first, left)
            step = min(step, max((left - first) / BATCH, _SHORTEST_STEP))
        return Hold(to_ms(first), to_ms(step), may_take=self.inside is None)

    def have_been_held(self, count: int, hold: Hold, sent_at: float) -> None:
        """Record that a call has delayed `count` suspects."""
        last = from_ms(hold.first_ms + (count - 1) * hold.step_ms)
        self._line = max(self._line, sent_at + last)
        self._watch()

    def call_closed(self) -> None:
        """Record the end of a call that might have returned suspects."""
        self.open_calls -= 1
        self._start_if_alone()

    def admit(self, suspects: Sequence[Run], ready: ReadyJobs) -> list[Run]:
        """Admit one suspect if none is on trial, and return the others, which must be released."""
        refused = list(suspects)
        if (hold := self.hold()) is None or hold.may_take:
            self.inside, self._ready = refused.pop(0), ready
            self._since = monotonic()
            self._watch()
        self._leaving.update(refused)
        self._start_if_alone()
        return refused

    def withdraw(self, ready: ReadyJobs) -> Run | None:
        """Remove and return the queue's suspect that has not started, if any."""
        if self._ready is not ready:
            return None
        run, self.inside, self._ready = self.inside, None, None
        return run

    def gone(self, run: Run) -> None:
        """Record that this worker no longer holds a job, and Redis knows."""
        if run is self.inside:
            self._make_room()
        self._leaving.discard(run)
        self._start_if_alone()

    def _watch(self) -> None:
        if not self.is_watching:
            self.is_watching = True
            self._trials_end = monotonic() + LIMIT

    def _make_room(self) -> None:
        self.inside = self._ready = None
        took = min(monotonic() - self._since, _LONGEST_STEP)
        self._step = max((self._step + took) / 2, _SHORTEST_STEP)

    def _start_if_alone(self) -> None:
        if self._ready is not None and not self._leaving and not self.open_calls:
            self._start()

    def _start(self) -> None:
        if self._ready is not None and self.inside is not None:
            self._since = monotonic()
            ready, self._ready = self._ready, None
            ready.put([self.inside])

"""Limit the jobs that a worker starts: circuit breaker, and quarantine for stalled jobs."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from taskbull.core import events
from taskbull.core.breaker import (
    Breaker,
    BreakerState,
    CircuitBreaker,
    Closed,
    HalfOpened,
    Opened,
    Transition,
)
from taskbull.core.job import Job
from taskbull.core.outcome import Outcome
from taskbull.core.validation import from_ms, to_ms
from taskbull.scripts.cycle import FIRST_HOLD, Hold
from taskbull.worker.clock import Alarm, Clock
from taskbull.worker.demand import BATCH
from taskbull.worker.reporting import Reporter
from taskbull.worker.run import ReadyJobs, Run

# The circuit breaker: its transitions are reported as events, and its timer sets the alarm.


class Circuit:
    """The circuit breaker of one queue, which limits fetching based on recent outcomes."""

    def __init__(
        self, options: CircuitBreaker, reporter: Reporter, clock: Clock, alarm: Alarm
    ) -> None:
        self._breaker = Breaker(options)
        self._reporter = reporter
        self._clock = clock
        self._alarm = alarm

    @property
    def state(self) -> BreakerState:
        """The breaker's state."""
        return self._breaker.state

    @property
    def failures(self) -> int:
        """Number of consecutive failed attempts."""
        return self._breaker.failures

    @property
    def wakes_at(self) -> float | None:
        """Time when an open circuit half-opens, by the worker's clock."""
        return self._breaker.wakes_at

    @property
    def open(self) -> bool:
        """True if no jobs may run."""
        return self._breaker.state is BreakerState.OPEN

    def check(self) -> None:
        """Update the state for the current time. Call it when the alarm goes off."""
        self._emit(self._breaker.check(self._clock.now()))
        self._set_alarm()  # It may have gone off for another reason.

    def allowed(self, wanted: int, asked: int) -> int:
        """Return how many of the `wanted` jobs may be fetched while `asked` ones may arrive."""
        return self._breaker.allowed(wanted, asked)

    def started(self, job_id: str) -> None:
        """Record that a job was fetched and will run."""
        self._breaker.started(job_id)

    def count(self, job_id: str, outcome: Outcome) -> None:
        """Count a job's outcome."""
        self._emit(self._breaker.ended(job_id, outcome, self._clock.now()))

    def _set_alarm(self) -> None:
        if self._breaker.wakes_at is not None:
            self._alarm.set(self._breaker.wakes_at)

    def _emit(self, transition: Transition | None) -> None:
        emit = self._reporter.emit
        match transition:
            case None:
                pass
            case Opened(failures, threshold):
                self._set_alarm()
                emit(events.CircuitOpened, failures=failures, threshold=threshold)
            case HalfOpened(duration):
                emit(events.CircuitHalfOpened, duration=duration)
            case Closed(test_job_id):
                emit(events.CircuitClosed, test_job_id=test_job_id)


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

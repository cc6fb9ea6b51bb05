"""The circuit breaker of a queue at work: its transitions become events, its timer an alarm."""

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

# The circuit breaker of a queue at work: its transitions become events, its timer an alarm.


class Circuit:
    """Says how many jobs may be taken, by what became of the last ones."""

    def __init__(
        self, options: CircuitBreaker, reporter: Reporter, clock: Clock, alarm: Alarm
    ) -> None:
        self._breaker = Breaker(options)
        self._reporter = reporter
        self._clock = clock
        self._alarm = alarm

    @property
    def state(self) -> BreakerState:
        """Whether jobs are taken."""
        return self._breaker.state

    @property
    def failures(self) -> int:
        """How many attempts in a row have failed."""
        return self._breaker.failures

    @property
    def wakes_at(self) -> float | None:
        """When an open circuit tries again, by the worker's clock."""
        return self._breaker.wakes_at

    @property
    def open(self) -> bool:
        """Whether no jobs are to be run."""
        return self._breaker.state is BreakerState.OPEN

    def look(self) -> None:
        """Look at the time; to be called when the alarm rings."""
        self._tell(self._breaker.look(self._clock.now()))
        self._set_alarm()  # it may have rung for somebody else

    def allowed(self, wanted: int, asked: int) -> int:
        """Return how many of the `wanted` jobs may be taken; `asked` ones may yet come."""
        return self._breaker.allowed(wanted, asked)

    def started(self, job_id: str) -> None:
        """Note that a job was taken, to be run."""
        self._breaker.started(job_id)

    def count(self, job_id: str, outcome: Outcome) -> None:
        """Count what became of it."""
        self._tell(self._breaker.ended(job_id, outcome, self._clock.now()))

    def _set_alarm(self) -> None:
        if self._breaker.wakes_at is not None:
            self._alarm.set(self._breaker.wakes_at)

    def _tell(self, transition: Transition | None) -> None:
        tell = self._reporter.tell
        match transition:
            case None:
                pass
            case Opened(failures, threshold):
                self._set_alarm()
                tell(events.CircuitOpened, failures=failures, threshold=threshold)
            case HalfOpened(duration):
                tell(events.CircuitHalfOpened, duration=duration)
            case Closed(test_job_id):
                tell(events.CircuitClosed, test_job_id=test_job_id)


# Jobs that have stalled before start one at a time: if one kills its process, it dies alone.
#
# When a process dies, all of its jobs stall, the culprit and its neighbors alike, and would be
# taken together again. So a process tries one such job (a suspect) at a time: until it ends, or
# for `TRIAL` seconds. Meanwhile calls that take jobs make Redis delay other suspects. A suspect
# starts only when no call under way can bring another, and Redis has taken back those that were
# refused. Jobs that never stalled run beside it. Suspects that still wait after `LIMIT` seconds
# start one by one, without a trial.


TRIAL = 0.75
"""Seconds for which a suspect keeps others from starting, at most."""

LIMIT = 30.0
"""Seconds for which suspects are tried, from the first of those that wait together."""

_LONGEST_STEP = 0.8
"""Seconds between the returns of two suspects that are delayed, at most: a little more than it."""

_EARLY = 0.3
"""Seconds by which a suspect may come too early without losing its place in the line."""

_PATIENCE = 5.0
"""Seconds for which a suspect waits for Redis before it starts, at most."""

_FIRST_STEP = from_ms(FIRST_HOLD.step_ms)
_SHORTEST_STEP = 0.01
"""Seconds between the returns of two suspects after `LIMIT`."""


def is_suspect(job: Job) -> bool:
    """Return whether a job may have killed a process; one that will not be run does no harm."""
    return job.stalled_count > 0 and job.deferred_failure is None


class Quarantine:
    """Holds the suspect that a process tries, for all its queues."""

    def __init__(self) -> None:
        self.inside: Run | None = None
        """The suspect that is tried, unless its trial is over: see `hold`."""
        self.open_calls = 0
        """Calls under way that may bring suspects."""
        self.is_watching = False
        """Whether there are suspects, as far as is known; if not, `hold` returns None."""
        self._trials_end = 0.0  # when suspects start without a trial, by `monotonic`
        self._line = 0.0  # when the last suspect that is delayed comes back, by `monotonic`
        self._ready: ReadyJobs | None = None  # where it will be put; None: it has started
        self._leaving: set[Run] = set()  # refused, and Redis does not know yet
        self._since = 0.0  # when it came, and then when it started
        self._step = _FIRST_STEP  # how long a trial takes, as far as is known

    def hold(self) -> Hold | None:
        """Return how a call delays suspects; None: one may be taken, and no others are known."""
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
        if left:  # a call delays up to `BATCH`
            first = min(first, left)
            step = min(step, max((left - first) / BATCH, _SHORTEST_STEP))
        return Hold(to_ms(first), to_ms(step), may_take=self.inside is None)

    def have_been_held(self, count: int, hold: Hold, sent_at: float) -> None:
        """Note that a call has delayed so many."""
        last = from_ms(hold.first_ms + (count - 1) * hold.step_ms)
        self._line = max(self._line, sent_at + last)
        self._watch()

    def call_closed(self) -> None:
        """Note that a call is done with that might have brought suspects."""
        self.open_calls -= 1
        self._start_if_alone()

    def admit(self, suspects: Sequence[Run], ready: ReadyJobs) -> list[Run]:
        """Take one in, if there is room; return the others, which must go back."""
        refused = list(suspects)
        if (hold := self.hold()) is None or hold.may_take:
            self.inside, self._ready = refused.pop(0), ready
            self._since = monotonic()
            self._watch()
        self._leaving.update(refused)
        self._start_if_alone()
        return refused

    def withdraw(self, ready: ReadyJobs) -> Run | None:
        """Return the suspect that has not started, if it belongs to a queue."""
        if self._ready is not ready:
            return None
        run, self.inside, self._ready = self.inside, None, None
        return run

    def gone(self, run: Run) -> None:
        """Note that a job is no longer ours, and Redis knows."""
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

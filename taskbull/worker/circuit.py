"""The circuit breaker of a queue at work: its transitions become events, its timer an alarm."""

from __future__ import annotations

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
from taskbull.core.outcome import Outcome
from taskbull.worker.clock import Alarm, Clock
from taskbull.worker.reporter import Reporter


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

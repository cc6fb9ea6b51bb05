"""Circuit breaker of a queue in one worker, as a state machine. Time is an argument."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.outcome import Fail, Outcome
from taskbull.core.validation import Duration, check_int, from_ms, seconds, to_ms


class CircuitBreaker(Struct, frozen=True):
    """Options of a circuit breaker: fetch no jobs for a while after repeated failures.

    When `threshold` attempts in a row have failed, the worker fetches no jobs for `duration`. Then
    it runs `half_open_max_attempts` test jobs. If all succeed, it continues; if one fails, it waits
    again.

    Example:
        CircuitBreaker(threshold=5, duration=30)
    """

    threshold: int
    """Number of failed attempts in a row that open the circuit."""
    duration: float
    """Seconds until an open circuit lets test jobs through."""
    half_open_max_attempts: int = 1
    """Number of test jobs that must succeed to close the circuit."""

    if TYPE_CHECKING:  # `duration` may be a timedelta; it is stored in seconds.

        def __init__(
            self, threshold: int, duration: Duration, half_open_max_attempts: int = 1
        ) -> None: ...

    def __post_init__(self) -> None:
        check_int("threshold", self.threshold, least=1)
        force_setattr(self, "duration", seconds("duration", self.duration, positive=True))
        check_int("half_open_max_attempts", self.half_open_max_attempts, least=1)


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    """All jobs are fetched."""
    OPEN = "open"
    """No jobs are fetched."""
    HALF_OPEN = "half-open"
    """A few test jobs are fetched."""


class Opened(Struct, frozen=True):
    """The circuit opened, so no more jobs are fetched."""

    failures: int
    threshold: int


class HalfOpened(Struct, frozen=True):
    """The circuit became half-open after `duration` seconds, so a few test jobs are fetched."""

    duration: float


class Closed(Struct, frozen=True):
    """The circuit closed after the last test job succeeded, so all jobs are fetched again."""

    test_job_id: str


Transition = Opened | HalfOpened | Closed


class Breaker:
    """State machine of one `CircuitBreaker`.

    A method that changes the state returns the transition. Nothing else reports it, so each
    transition is reported once.

    Call `started` for every fetched job, and then `ended` once. A job counts only in the period
    when it started. A job that was running when the circuit opened does not show if the cause has
    been fixed since.
    """

    def __init__(self, options: CircuitBreaker) -> None:
        self._options = options
        self._duration = from_ms(to_ms(options.duration))
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._successful_tests = 0
        self._opened_at = 0.0
        self._running: set[str] = set()

    @property
    def state(self) -> BreakerState:
        """State after the last call of a method with `now`."""
        return self._state

    @property
    def failures(self) -> int:
        """Number of failed attempts in a row."""
        return self._failures

    @property
    def wakes_at(self) -> float | None:
        """Time to call `check`, or `None` if the state does not depend on time."""
        if self._state is BreakerState.OPEN:
            return self._opened_at + self._duration
        return None

    def check(self, now: float) -> HalfOpened | None:
        """Make an open circuit half-open if its duration has passed."""
        if self.wakes_at is None or now < self.wakes_at:
            return None
        self._enter(BreakerState.HALF_OPEN)
        return HalfOpened(self._duration)

    def allowed(self, wanted: int, asked: int = 0) -> int:
        """Return how many of the `wanted` jobs may be fetched now.

        `asked` is the number of jobs that a call in flight may still return.
        """
        match self._state:
            case BreakerState.CLOSED:
                return wanted
            case BreakerState.OPEN:
                return 0
            case BreakerState.HALF_OPEN:
                tried = len(self._running) + self._successful_tests + asked
                return max(0, min(wanted, self._options.half_open_max_attempts - tried))

    def started(self, job_id: str) -> None:
        """Record that a job was fetched."""
        if self._state is not BreakerState.OPEN:
            self._running.add(job_id)

    def ended(self, job_id: str, outcome: Outcome, now: float) -> Opened | Closed | None:
        """Record the outcome of a job, and return the transition that it causes, if any.

        Every failed attempt counts, whether it is retried or not. A job does not count if it was
        released, lost, cancelled or expired, or if it failed without running (a stall). Another
        test job may run instead.
        """
        if job_id not in self._running:
            return None
        self._running.discard(job_id)
        if isinstance(outcome, Fail) and not outcome.verdict.of_its_own:
            return None
        match outcome.kind.succeeded:
            case True:
                return self._succeeded(job_id)
            case False:
                return self._failed(now)
            case None:
                return None

    def _succeeded(self, job_id: str) -> Closed | None:
        if self._state is BreakerState.CLOSED:
            self._failures = 0
            return None
        self._successful_tests += 1
        if self._successful_tests < self._options.half_open_max_attempts:
            return None
        self._enter(BreakerState.CLOSED)
        self._failures = 0
        return Closed(job_id)

    def _failed(self, now: float) -> Opened | None:
        self._failures += 1
        closed = self._state is BreakerState.CLOSED
        if closed and self._failures < self._options.threshold:
            return None
        self._enter(BreakerState.OPEN)
        self._opened_at = now
        return Opened(self._failures, self._options.threshold)

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._successful_tests = 0
        self._running.clear()

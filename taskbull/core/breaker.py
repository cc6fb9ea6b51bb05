"""The circuit breaker of a queue in one worker, as a state machine; time is an argument."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.outcome import Fail, Outcome
from taskbull.core.validation import Duration, check_int, from_ms, seconds, to_ms


class CircuitBreaker(Struct, frozen=True):
    """Take no jobs for `duration` once `threshold` attempts in a row have failed.

    After that, `half_open_max_attempts` jobs are tried: if all succeed the worker goes on, if one
    fails it waits again.
    """

    threshold: int
    duration: float
    half_open_max_attempts: int = 1

    if TYPE_CHECKING:  # a timedelta may be given, and is seconds from then on

        def __init__(
            self, threshold: int, duration: Duration, half_open_max_attempts: int = 1
        ) -> None: ...

    def __post_init__(self) -> None:
        check_int("threshold", self.threshold, least=1)
        force_setattr(self, "duration", seconds("duration", self.duration, positive=True))
        check_int("half_open_max_attempts", self.half_open_max_attempts, least=1)


class BreakerState(StrEnum):
    """Whether jobs are taken: all, none, or a few to see whether it works again."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Opened(Struct, frozen=True):
    """No more jobs are taken."""

    failures: int
    threshold: int


class HalfOpened(Struct, frozen=True):
    """After `duration` seconds without, a few jobs are tried."""

    duration: float


class Closed(Struct, frozen=True):
    """All jobs are taken again; the last that was tried is named."""

    test_job_id: str


Transition = Opened | HalfOpened | Closed


class Breaker:
    """The state of one `CircuitBreaker`.

    Each method that can change it gives the transition, if there is one: nothing else reports it,
    so nobody hears of it twice. Every taken job is announced by `started`, and each of those by one
    `ended`. A job counts only in the period in which it was started: what was running when the
    circuit opened says nothing about how things are later.
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
        """The state as of the last call of a method with `now`."""
        return self._state

    @property
    def failures(self) -> int:
        """How many attempts in a row have failed."""
        return self._failures

    @property
    def wakes_at(self) -> float | None:
        """When `look` must be called because time changes the state; None: never by itself."""
        if self._state is BreakerState.OPEN:
            return self._opened_at + self._duration
        return None

    def look(self, now: float) -> HalfOpened | None:
        """Note the time: an open circuit becomes half-open when its duration is over."""
        if self.wakes_at is None or now < self.wakes_at:
            return None
        self._enter(BreakerState.HALF_OPEN)
        return HalfOpened(self._duration)

    def allowed(self, wanted: int, asked: int = 0) -> int:
        """Return how many of the `wanted` jobs may be taken now.

        `asked` counts those for which a call to Redis is under way: they may yet come.
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
        """Note that a job was taken."""
        if self._state is not BreakerState.OPEN:
            self._running.add(job_id)

    def ended(self, job_id: str, outcome: Outcome, now: float) -> Opened | Closed | None:
        """Note how a job ended.

        Every failed attempt counts, retried or not. A job that was given back, lost, cancelled, or
        failed without having been run (a stall) counts neither way, and another may be tried
        instead.
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

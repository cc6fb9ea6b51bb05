"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.validation import Duration, from_ms, refusal, seconds, to_ms
from taskbull.core.wire.backoff import PLAIN_TYPES, Curve, StoredBackoff

LONGEST_DELAY = 365 * 86_400.0
"""No backoff waits longer than a year: 2^(attempts - 1) soon exceeds what Redis can hold."""

BackoffFunction = Callable[[int, BaseException, Any], Duration | None]
"""`function(attempts_made, error, job)` gives the delay, or None to give up."""

# How each curve stands in BullMQ's own fields. Up to the sixth attempt a linear curve is nearer to
# the exponential than to the fixed one, and the others grow faster still.
_NEAREST = {Curve.NONE: Curve.FIXED, Curve.FIXED: Curve.FIXED}

# What a Node worker gets for decorrelated jitter, whose purpose is to spread the retries.
_SPREAD = 0.5


class Backoff(Struct, frozen=True):
    """A rule for the delay between attempts; made by the class methods."""

    curve: Curve
    delay: float
    max_delay: float | None = None
    jitter: float = 0.0
    exponent: float = 2.0
    function: BackoffFunction | None = None

    if TYPE_CHECKING:  # a timedelta may be given, and is seconds from then on

        def __init__(
            self,
            curve: Curve,
            delay: Duration,
            max_delay: Duration | None = None,
            jitter: float = 0.0,
            exponent: float = 2.0,
            function: BackoffFunction | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        positive = self.curve is not Curve.NONE
        force_setattr(self, "delay", seconds("backoff delay", self.delay, positive=positive))
        if self.max_delay is not None:
            # 0 means "no cap", as None does.
            force_setattr(self, "max_delay", seconds("backoff max_delay", self.max_delay) or None)
        _check_number("backoff jitter", self.jitter, "be a number from 0 to 1")
        if not 0 <= self.jitter <= 1:
            raise refusal("backoff jitter", "be a number from 0 to 1", self.jitter)
        _check_number("backoff exponent", self.exponent, "be a number greater than 0")
        if not 0 < self.exponent < math.inf:
            raise refusal("backoff exponent", "be a number greater than 0", self.exponent)
        if self.function is not None and not callable(self.function):
            raise refusal("backoff function", "be callable", self.function)

    @classmethod
    def none(cls) -> Backoff:
        """Retry at once, behind the jobs that wait already."""
        return cls(Curve.NONE, 0)

    @classmethod
    def fixed(
        cls, delay: Duration, *, max_delay: Duration | None = None, jitter: float = 0.0
    ) -> Backoff:
        """Wait `delay` before each attempt."""
        return cls(Curve.FIXED, delay, max_delay, jitter)

    @classmethod
    def exponential(
        cls, delay: Duration, *, max_delay: Duration | None = None, jitter: float = 0.0
    ) -> Backoff:
        """Wait `delay`, then twice, four times, eight times that."""
        return cls(Curve.EXPONENTIAL, delay, max_delay, jitter)

    @classmethod
    def linear(
        cls, delay: Duration, *, max_delay: Duration | None = None, jitter: float = 0.0
    ) -> Backoff:
        """Wait `delay`, then twice, three times, four times that."""
        return cls(Curve.LINEAR, delay, max_delay, jitter)

    @classmethod
    def polynomial(
        cls,
        delay: Duration,
        exponent: float = 2,
        *,
        max_delay: Duration | None = None,
        jitter: float = 0.0,
    ) -> Backoff:
        """Wait `delay` times the number of failed attempts to the power of `exponent`."""
        return cls(Curve.POLYNOMIAL, delay, max_delay, jitter, exponent)

    @classmethod
    def decorrelated_jitter(cls, delay: Duration, *, max_delay: Duration | None = None) -> Backoff:
        """Wait a random time between `delay` and three times the previous wait."""
        return cls(Curve.DECORRELATED_JITTER, delay, max_delay)

    @classmethod
    def custom(cls, function: BackoffFunction, *, max_delay: Duration | None = None) -> Backoff:
        """Wait what `function(attempts_made, error, job)` says; None from it gives up.

        The function stays in this process: a worker that has none for the job waits exponentially
        from 1 s, and so does a Node worker.
        """
        return cls(Curve.CUSTOM, 1, max_delay, function=function)

    @classmethod
    def from_bullmq(cls, options: Mapping[str, Any] | float) -> Backoff:
        """Take BullMQ's own form, `{"type": …, "delay": milliseconds}` or bare milliseconds."""
        try:
            stored = msgspec.convert(options, StoredBackoff | int | float)
        except msgspec.ValidationError as error:
            rule = f"be a BullMQ backoff ({error})"
            raise refusal("backoff", rule, options) from error
        if not isinstance(stored, StoredBackoff):
            return cls.fixed(from_ms(stored))
        curve = _curve(stored.curve) or (_curve(stored.type) if stored.type in _TYPES else None)
        if curve is None:
            raise refusal("backoff type", f"be one of {', '.join(map(repr, _TYPES))}", stored.type)
        return cls._of(curve, stored)

    @classmethod
    def from_stored(cls, stored: StoredBackoff | float) -> Backoff:
        """Read the backoff of a job as any producer may have written it; never raise.

        Parameters that mean nothing are left out. Without a usable delay the retry is immediate,
        as in BullMQ. An unknown type was made for some worker's own function: it is `custom`,
        which falls back to exponential where there is none.
        """
        if not isinstance(stored, StoredBackoff):
            stored = StoredBackoff(Curve.FIXED, stored)
        curve = _curve(stored.curve) or _curve(stored.type) or Curve.CUSTOM
        if curve is Curve.CUSTOM and not _usable(stored.delay_ms):
            stored = msgspec.structs.replace(stored, delay_ms=1000)
        if curve is Curve.NONE or not _usable(stored.delay_ms):
            return cls.none()
        jitter = stored.jitter
        usable = msgspec.structs.replace(
            stored,
            delay_ms=min(stored.delay_ms or 0, to_ms(LONGEST_DELAY)),
            max_delay_ms=min(stored.max_delay_ms or 0, to_ms(LONGEST_DELAY))
            if _usable(stored.max_delay_ms)
            else None,
            jitter=jitter if jitter is not None and 0 <= jitter <= 1 else None,
            exponent=stored.exponent if _usable(stored.exponent) else None,
        )
        return cls._of(curve, usable)

    @classmethod
    def _of(cls, curve: Curve, stored: StoredBackoff) -> Backoff:
        capped = stored.max_delay_ms is not None
        return cls(
            curve,
            from_ms(stored.delay_ms if stored.delay_ms is not None else 0),
            from_ms(stored.max_delay_ms or 0) if capped else None,
            0.0 if curve is Curve.DECORRELATED_JITTER else stored.jitter or 0.0,
            2.0 if stored.exponent is None else stored.exponent,
        )

    def to_stored(self) -> StoredBackoff:
        """Return the form stored with a job: valid for BullMQ, and complete for taskbull."""
        decorrelated = self.curve is Curve.DECORRELATED_JITTER
        polynomial = self.curve is Curve.POLYNOMIAL
        return StoredBackoff(
            type=_NEAREST.get(self.curve, Curve.EXPONENTIAL),
            delay_ms=to_ms(self.delay),
            jitter=_SPREAD if decorrelated else self.jitter or None,
            max_delay_ms=None if self.max_delay is None else to_ms(self.max_delay),
            exponent=self.exponent if polynomial else None,
            curve=None if self.curve in PLAIN_TYPES else self.curve,
        )

    def wait(
        self, attempt: int, *, random: Callable[[], float], previous: float | None = None
    ) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 1.

        `previous` is what this gave the last time, for decorrelated jitter. A custom curve without
        its function waits exponentially.
        """
        base = to_ms(self.delay)
        match self.curve:
            case Curve.NONE:
                return 0.0
            case Curve.DECORRELATED_JITTER:
                before = max(base, to_ms(previous or 0))
                delay_ms: float = math.floor(base + random() * (before * 3 - base))
            case Curve.FIXED:
                delay_ms = self._jittered(base, random)
            case Curve.LINEAR:
                delay_ms = self._jittered(base * attempt, random)
            case Curve.POLYNOMIAL:
                delay_ms = self._jittered(base * _power(attempt, self.exponent), random)
            case Curve.EXPONENTIAL | Curve.CUSTOM:
                delay_ms = self._jittered(base * _power(2, attempt - 1), random)
        return self.capped(from_ms(delay_ms))

    def capped(self, delay: float) -> float:
        """Return the delay, or the longest one allowed."""
        return min(delay, from_ms(to_ms(self.max_delay or LONGEST_DELAY)), LONGEST_DELAY)

    def _jittered(self, delay_ms: float, random: Callable[[], float]) -> float:
        # BullMQ's rounding: half up without jitter, down with it.
        if math.isinf(delay_ms):
            return delay_ms
        whole = math.floor(delay_ms + 0.5)
        if not self.jitter:
            return whole
        return math.floor(random() * whole * self.jitter + whole * (1 - self.jitter))


_TYPES = [str(curve) for curve in Curve if curve not in {Curve.NONE, Curve.CUSTOM}]


def _curve(name: str | None) -> Curve | None:
    return next((curve for curve in Curve if curve == name), None)


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _usable(number: float | None) -> bool:
    # Not merely above 0: the smallest floats are 0 once they are divided.
    return number is not None and 1e-9 < number < math.inf


def _check_number(field: str, value: object, rule: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(field, rule, value)


DEFAULT_BACKOFF = Backoff.exponential(1, max_delay=3600, jitter=0.2)

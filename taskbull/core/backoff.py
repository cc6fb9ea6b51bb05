"""Backoff: the delay between a failed attempt and the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.validation import Duration, check_function, from_ms, refusal, seconds, to_ms
from taskbull.core.wire.backoff import PLAIN_TYPES, Curve, StoredBackoff

LONGEST_DELAY = 365 * 86_400.0
"""Maximum delay: one year. Without a cap, 2^(attempts - 1) soon exceeds what Redis can hold."""

BackoffFunction = Callable[[int, BaseException, Any], Duration | None]
"""`function(attempts_made, error, job)`. It returns the delay, or `None` to give up."""

# BullMQ type to store for each curve; the default is exponential. Up to the sixth attempt, a linear
# curve is closer to the exponential than to the fixed one. The other curves grow even faster.
_NEAREST = {Curve.NONE: Curve.FIXED, Curve.FIXED: Curve.FIXED}

# Jitter that Node workers use for decorrelated jitter, so that they also spread retries.
_SPREAD = 0.5


class Backoff(Struct, frozen=True):
    """A rule for the delay between attempts.

    Create one with a class method. Delays are seconds or timedeltas. `max_delay` caps the delay.
    `jitter`, from 0 to 1, is the share of the delay that is random.

    Example:
        Backoff.exponential(1, max_delay=600, jitter=0.2)
    """

    curve: Curve
    """Growth of the delay from attempt to attempt."""
    delay: float
    """Base delay in seconds."""
    max_delay: float | None = None
    """Maximum delay in seconds. `None` or 0 means one year."""
    jitter: float = 0.0
    """Share of the delay that is random, from 0 to 1."""
    exponent: float = 2.0
    """Exponent of a polynomial curve."""
    function: BackoffFunction | None = None
    """Function that computes the delay of a custom backoff."""

    if TYPE_CHECKING:  # Durations may be timedeltas; they are stored in seconds.

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
            # 0 means no cap, like None.
            force_setattr(self, "max_delay", seconds("backoff max_delay", self.max_delay) or None)
        _check_number("backoff jitter", self.jitter, "be a number from 0 to 1")
        if not 0 <= self.jitter <= 1:
            raise refusal("backoff jitter", "be a number from 0 to 1", self.jitter)
        _check_number("backoff exponent", self.exponent, "be a number greater than 0")
        if not 0 < self.exponent < math.inf:
            raise refusal("backoff exponent", "be a number greater than 0", self.exponent)
        if self.function is not None:
            rule = "be a sync function that takes the attempts made, the error and the job"
            check_function("backoff function", self.function, rule, 3)

    @classmethod
    def none(cls) -> Backoff:
        """Retry immediately, after the jobs that are already waiting."""
        return cls(Curve.NONE, 0)

    @classmethod
    def fixed(
        cls, delay: Duration, *, max_delay: Duration | None = None, jitter: float = 0.0
    ) -> Backoff:
        """Wait `delay` before each retry."""
        return cls(Curve.FIXED, delay, max_delay, jitter)

    @classmethod
    def exponential(
        cls, delay: Duration, *, max_delay: Duration | None = None, jitter: float = 0.0
    ) -> Backoff:
        """Double the wait with each attempt: `delay`, then 2, 4 and 8 times `delay`."""
        return cls(Curve.EXPONENTIAL, delay, max_delay, jitter)

    @classmethod
    def linear(
        cls, delay: Duration, *, max_delay: Duration | None = None, jitter: float = 0.0
    ) -> Backoff:
        """Add `delay` to the wait with each attempt: `delay`, then 2, 3 and 4 times `delay`."""
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
        """Multiply `delay` by the number of failed attempts to the power of `exponent`."""
        return cls(Curve.POLYNOMIAL, delay, max_delay, jitter, exponent)

    @classmethod
    def decorrelated_jitter(cls, delay: Duration, *, max_delay: Duration | None = None) -> Backoff:
        """Wait a random time between `delay` and three times the previous wait."""
        return cls(Curve.DECORRELATED_JITTER, delay, max_delay)

    @classmethod
    def custom(cls, function: BackoffFunction, *, max_delay: Duration | None = None) -> Backoff:
        """Wait for the delay that `function(attempts_made, error, job)` returns.

        If it returns `None`, the job fails without further attempts. The function is not stored
        with the job. A worker without a function for the job, such as Node's, uses an exponential
        backoff from 1 s.
        """
        return cls(Curve.CUSTOM, 1, max_delay, function=function)

    @classmethod
    def from_bullmq(cls, options: Mapping[str, Any] | float) -> Backoff:
        """Create a backoff from BullMQ's form: `{"type": …, "delay": ms}`, or just milliseconds.

        Raises:
            ConfigurationError: The form is invalid or its type is unknown.
        """
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
        """Create a backoff from a stored one, which any producer may have written. Never raises.

        Invalid parameters are ignored. Without a valid delay the retry is immediate, as in BullMQ.
        An unknown type refers to a function of some worker, so it is read as `custom`. A custom
        backoff without a function is exponential.
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
        """Return the form to store with a job: valid for BullMQ and complete for taskbull."""
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
        """Return the seconds to wait after an attempt has failed.

        A custom backoff is treated as exponential here.

        Args:
            attempt: Number of the failed attempt, counted from 1.
            random: Function that returns a random number from 0 to 1.
            previous: Previous result of this method, which decorrelated jitter needs.
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
        """Return the delay, or the maximum delay if that is shorter."""
        return min(delay, from_ms(to_ms(self.max_delay or LONGEST_DELAY)), LONGEST_DELAY)

    def _jittered(self, delay_ms: float, random: Callable[[], float]) -> float:
        # Round like BullMQ: half up without jitter, down with jitter.
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
    # Comparing with 0 is not enough: the smallest floats become 0 when they are divided.
    return number is not None and 1e-9 < number < math.inf


def _check_number(field: str, value: object, rule: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(field, rule, value)


DEFAULT_BACKOFF = Backoff.exponential(1, max_delay=3600, jitter=0.2)

"""A backoff as it stands in a job's options.

A Node worker that meets an unknown `type` leaves the job stuck in `active`. So `type` is always
one of BullMQ's two, and what they cannot say is in keys that Node keeps and ignores: `curve`,
`exponent` and `maxDelay`.
"""

from __future__ import annotations

from enum import StrEnum

from taskbull.core.wire.numbers import Foreign, Number


class Curve(StrEnum):
    """How the delay grows from attempt to attempt; the values are the names in the format."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    DECORRELATED_JITTER = "decorrelatedJitter"
    CUSTOM = "custom"


PLAIN_TYPES = frozenset({Curve.FIXED, Curve.EXPONENTIAL})
"""The types that every BullMQ worker knows."""

_NAMES = {"delay_ms": "delay", "max_delay_ms": "maxDelay"}


class StoredBackoff(Foreign, frozen=True, omit_defaults=True, rename=_NAMES):
    """The object `backoff` of a job's options."""

    type: str | None = None
    delay_ms: Number | None = None
    jitter: Number | None = None
    max_delay_ms: Number | None = None
    exponent: Number | None = None
    curve: str | None = None

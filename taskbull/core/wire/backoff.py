"""Storage format of a backoff in a job's options.

A Node worker leaves a job with an unknown `type` stuck in `active`. So `type` is always one of
BullMQ's two. Other settings are in keys that Node keeps and ignores: `curve`, `exponent` and
`maxDelay`.
"""

from __future__ import annotations

from enum import StrEnum

from taskbull.core.validation import Foreign, Number


class Curve(StrEnum):
    """Growth of the delay from attempt to attempt. The values are the stored names."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    DECORRELATED_JITTER = "decorrelatedJitter"
    CUSTOM = "custom"


PLAIN_TYPES = frozenset({Curve.FIXED, Curve.EXPONENTIAL})
"""Types that every BullMQ worker knows."""

_NAMES = {"delay_ms": "delay", "max_delay_ms": "maxDelay"}


class StoredBackoff(Foreign, frozen=True, omit_defaults=True, rename=_NAMES):
    """The `backoff` object in a job's options."""

    type: str | None = None
    delay_ms: Number | None = None
    jitter: Number | None = None
    max_delay_ms: Number | None = None
    exponent: Number | None = None
    curve: str | None = None

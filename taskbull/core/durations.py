"""Seconds and instants as users give them; milliseconds as the wire has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from taskbull.core.checks import refusal
from taskbull.errors import ConfigurationError

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""

LONGEST = 100 * 365 * 86_400.0
"""No duration is longer: 100 years, far below where milliseconds leave a double's integers."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def seconds(field: str, value: object, *, positive: bool = False) -> float:
    """Return a duration as float seconds; refuse what is none, is negative, or has no end."""
    given = value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(field, "be seconds (int or float) or a timedelta", given)
    in_range = value > 0 if positive else value >= 0  # NaN is in neither
    if not in_range:
        raise refusal(field, "be greater than 0" if positive else "be 0 or more", given)
    if value > LONGEST:
        raise refusal(field, f"be at most {LONGEST:.0f} seconds (100 years)", given)
    return float(value)


def limit_of(field: str, value: object) -> float | None:
    """Return a time limit in float seconds; None means no limit, and 0 is refused."""
    return None if value is None else seconds(field, value, positive=True)


def to_ms(duration: float) -> int:
    """Return checked seconds in whole milliseconds; never 0 for more than 0 seconds."""
    return max(1, round(duration * 1000)) if duration > 0 else 0


def from_ms(ms: float) -> float:
    """Return milliseconds as seconds."""
    return ms / 1000


def check_instant(field: str, value: object) -> None:
    """Refuse all but an aware datetime."""
    if not isinstance(value, datetime):
        raise refusal(field, "be an aware datetime", value)
    if value.utcoffset() is None:
        raise ConfigurationError(
            f"{field} must be an aware datetime, not the naive {value.isoformat()}: "
            "give it a time zone, such as datetime.now(timezone.utc)"
        )


def instant_to_ms(instant: datetime) -> int:
    """Return an aware datetime as milliseconds since 1970."""
    return (instant - _EPOCH) // _MS


def instant_from_ms(ms: float) -> datetime | None:
    """Return milliseconds since 1970 as an aware datetime; None if no datetime holds them."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except (OverflowError, ValueError):
        return None

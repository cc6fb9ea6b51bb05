"""Checks of what users set; each refusal names the field, the rule and the value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from taskbull.core.celery import OPTIONS, SETTINGS, celery_hint
from taskbull.errors import ConfigurationError

# Checks of what users set; each refusal names the field, the rule and the value.


_SHOWN = 80


def refusal(field: str, rule: str, value: object) -> ConfigurationError:
    """Return the error that says what `field` must be and what it is."""
    return ConfigurationError(f"{field} must {rule}, not {shown(value)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Name the nearest of the known names, as an addition to a sentence; empty if none is near."""
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest to `name`; empty if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - a quarter of `python -c pass`

    return next(iter(get_close_matches(name, list(known), 1)), "")


def shown(value: object) -> str:
    """Return the value's repr, cut to the length of a line; never raise."""
    try:
        text = repr(value)
    except BaseException:  # noqa: BLE001 - foreign code: an object's own __repr__
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_int(field: str, value: object, *, least: int, most: int | None = None) -> None:
    """Refuse anything but an int in the range; a bool is not an int."""
    rule = f"be an integer of at least {least}"
    if most is not None:
        rule = f"be an integer from {least} to {most}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise refusal(field, rule, value)
    if value < least or (most is not None and value > most):
        raise refusal(field, rule, value)


def check_bool(field: str, value: object) -> None:
    """Refuse all but True and False."""
    if not isinstance(value, bool):
        raise refusal(field, "be True or False", value)


def check_choice(field: str, value: object, choices: Collection[str]) -> None:
    """Refuse all but one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise refusal(field, f"be one of {', '.join(map(repr, choices))}", value)


def check_type(field: str, value: object, wanted: type | tuple[type, ...], rule: str) -> None:
    """Refuse a value that is not an instance of `wanted`."""
    if not isinstance(value, wanted):
        raise refusal(field, rule, value)


def check_text(field: str, value: object, *, most: int | None = None) -> str:
    """Refuse all but a non-empty str that UTF-8 can hold; give it back."""
    if not isinstance(value, str):
        raise refusal(field, "be a string", value)
    if not value:
        raise ConfigurationError(f"{field} must not be empty")
    if most is not None and len(value) > most:
        raise ConfigurationError(
            f"{field} must have at most {most} characters, not {len(value)}: {shown(value)}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal(field, "have no lone surrogates (UTF-8 cannot hold them)", value) from None
    return value


# Seconds and instants as users give them; milliseconds as the wire has them.


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
        raise refusal(field, "be a timezone-aware datetime", value)
    if value.utcoffset() is None:
        raise ConfigurationError(
            f"{field} must be a timezone-aware datetime, got the naive {value.isoformat()}. "
            "Add a time zone: datetime(…, tzinfo=timezone.utc)"
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


# Classes of packages that taskbull does not need: known by name, so that none is imported.


def is_pydantic_model(kind: type) -> bool:
    """Return whether a class is a model of pydantic 2."""
    return hasattr(kind, "model_validate_json") and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in kind.__mro__
    )


# Refusing keywords that do not exist, with the name of the one that was meant.


def check_keywords(
    where: str, given: Iterable[str], known: type, celery: Mapping[str, str] = OPTIONS
) -> None:
    """Refuse an option that a TypedDict does not know; name ours for one that Celery has."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            hint = celery_hint(name, celery) or did_you_mean(name, names)
            known_names = f"; it has {', '.join(names)}"
            raise ConfigurationError(f"{where} has no option {name!r}{hint or known_names}")


def unknown_setting(where: str, name: str, known: Collection[str]) -> TypeError:
    """Return Python's own error for a keyword that a class does not take, with what was meant."""
    hint = celery_hint(name, SETTINGS) or did_you_mean(name, known)
    return TypeError(f"{where}() got an unexpected keyword argument {name!r}{hint}")

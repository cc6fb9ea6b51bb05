"""Check values: settings of users, and numbers and texts of other producers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.celery import OPTIONS, SETTINGS, celery_hint
from taskbull.errors import ConfigurationError

# Checks and conversions of values that users pass.
#
# Each error names the field, the rule and the value. Users pass seconds and datetimes; the storage
# format uses milliseconds.


_SHOWN = 80


def refusal(field: str, rule: str, value: object) -> ConfigurationError:
    """Return the error for a field that breaks a rule: "`field` must `rule`, got `value`"."""
    return ConfigurationError(f"{field} must {rule}, got {shown(value)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a sentence, or "" if no known name is similar."""
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to `name`, or "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - a quarter of `python -c pass`

    return next(iter(get_close_matches(name, list(known), 1)), "")


def shown(value: object) -> str:
    """Return the value's repr, truncated to fit on a line. Never raises."""
    try:
        text = repr(value)
    except BaseException:  # noqa: BLE001 - third-party code: the object's __repr__
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that JSON, Redis scores and Node represent exactly."""


def check_int(field: str, value: object, *, least: int, most: int = MAX_SAFE_INTEGER) -> None:
    """Raise `ConfigurationError` unless `value` is an int in the range. A bool is not an int."""
    is_above = False
    if isinstance(value, int) and not isinstance(value, bool):
        if least <= value <= most:
            return
        is_above = value > most
    has_limit = is_above or most != MAX_SAFE_INTEGER
    rule = f"from {least} to {most}" if has_limit else f"of at least {least}"
    raise refusal(field, f"be an integer {rule}", value)


def check_index(field: str, value: object) -> None:
    """Raise `ConfigurationError` unless `value` is an int. Negative ones count from the end."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_SAFE_INTEGER:
        raise refusal(field, "be an integer", value)


def check_list(field: str, value: object, contents: str) -> None:
    """Raise `ConfigurationError` unless `value` is an iterable and no string."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise refusal(field, f"be a list of {contents}", value)


def check_bool(field: str, value: object) -> None:
    """Raise `ConfigurationError` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise refusal(field, "be True or False", value)


def check_choice(field: str, value: object, choices: Collection[str]) -> None:
    """Raise `ConfigurationError` unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise refusal(field, f"be one of {', '.join(map(repr, choices))}", value)


def check_type(field: str, value: object, wanted: type | tuple[type, ...], rule: str) -> None:
    """Raise `ConfigurationError` unless `value` is an instance of `wanted`."""
    if not isinstance(value, wanted):
        raise refusal(field, rule, value)


def check_text(field: str, value: object, *, most: int | None = None) -> str:
    """Return `value` if it is a non-empty str that UTF-8 can encode.

    Raises:
        ConfigurationError: It is not, or it has more than `most` characters.
    """
    if not isinstance(value, str):
        raise refusal(field, "be a string", value)
    if not value:
        raise ConfigurationError(f"{field} must not be empty")
    if most is not None and len(value) > most:
        raise ConfigurationError(
            f"{field} must have at most {most} characters, got {len(value)}: {shown(value)}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal(field, "have no lone surrogates (UTF-8 cannot hold them)", value) from None
    return value


def is_async(function: object) -> bool:
    """Return True if the function is an `async def`, or an object whose `__call__` is one."""
    call = getattr(function, "__call__", None)  # noqa: B004 - not a test whether it can be called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes(function: Callable[..., object], count: int) -> bool:
    """Return False if a function cannot be called with this number of arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # A built-in function without a signature.
        return True
    return True


def check_function(field: str, value: object, rule: str, count: int | None = None) -> None:
    """Raise `ConfigurationError` unless `value` is a sync function.

    With `count`, it must also be possible to call it with this number of arguments.
    """
    if not callable(value) or is_async(value) or not (count is None or takes(value, count)):
        raise refusal(field, rule, value)


# Durations and points in time.


Duration: TypeAlias = float | timedelta
"""A duration in seconds, or a timedelta."""

LONGEST = 100 * 365 * 86_400.0
"""Maximum duration: 100 years. In ms, that is far below the largest exact integer of a double."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def seconds(field: str, value: object, *, positive: bool = False) -> float:
    """Return a duration as float seconds.

    Raises:
        ConfigurationError: It is not a number or a timedelta, is negative, or exceeds 100 years.
            With `positive`, it must also not be 0.
    """
    given = value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(field, "be seconds (int or float) or a timedelta", given)
    in_range = value > 0 if positive else value >= 0  # False for NaN
    if not in_range:
        raise refusal(field, "be greater than 0" if positive else "be 0 or more", given)
    if value > LONGEST:
        raise refusal(field, f"be at most {LONGEST:.0f} seconds (100 years)", given)
    return float(value)


def limit_of(field: str, value: object) -> float | None:
    """Return a time limit in float seconds, or `None` for no limit. 0 raises an error."""
    return None if value is None else seconds(field, value, positive=True)


def to_ms(duration: float) -> int:
    """Convert seconds to whole milliseconds, at least 1 for a duration above 0."""
    return max(1, round(duration * 1000)) if duration > 0 else 0


def from_ms(ms: float) -> float:
    """Convert milliseconds to seconds."""
    return ms / 1000


def check_instant(field: str, value: object) -> None:
    """Raise `ConfigurationError` unless `value` is an aware datetime."""
    if not isinstance(value, datetime):
        raise refusal(field, "be a timezone-aware datetime", value)
    if value.utcoffset() is None:
        raise ConfigurationError(
            f"{field} must be a timezone-aware datetime, got the naive {value.isoformat()}. "
            "Add a time zone: datetime(…, tzinfo=timezone.utc)"
        )


def instant_to_ms(instant: datetime) -> int:
    """Convert an aware datetime to milliseconds since 1970."""
    return (instant - _EPOCH) // _MS


def instant_from_ms(ms: float) -> datetime | None:
    """Convert milliseconds since 1970 to an aware datetime, or `None` if out of range."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except (OverflowError, ValueError):
        return None


def iso(instant: datetime | None) -> str | None:
    """Format a time for JSON as ISO 8601 with its UTC offset."""
    return None if instant is None else instant.isoformat(timespec="milliseconds")


# Classes of optional packages, recognized by name so that the packages need not be imported.


def is_pydantic_model(kind: type) -> bool:
    """Return True if a class is a pydantic 2 model."""
    return hasattr(kind, "model_validate_json") and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in kind.__mro__
    )


# Unknown keyword arguments.


def check_keywords(
    where: str, given: Iterable[str], known: type, celery: Mapping[str, str] = OPTIONS
) -> None:
    """Raise `ConfigurationError` for options that the TypedDict `known` does not have.

    The message has a line for each of them. It suggests taskbull's equivalent of a Celery option,
    or a similar name.
    """
    names = known.__annotations__
    problems: list[str] = []
    for name in given:
        if name not in names:
            known_names = f"; it has {', '.join(names)}"
            hint = celery_hint(name, celery) or did_you_mean(name, names)
            problems.append(f"{where} has no option {name!r}{hint or known_names}")
    if problems:
        raise ConfigurationError("\n".join(problems))


def unknown_settings(where: str, names: Sequence[str], known: Collection[str]) -> TypeError:
    """Return Python's `TypeError` for unexpected keyword arguments, with a suggestion for each."""
    hints = [celery_hint(name, SETTINGS) or did_you_mean(name, known) for name in names]
    return TypeError(
        "\n".join(
            f"{where}() got an unexpected keyword argument {name!r}{hint}"
            for name, hint in zip(names, hints, strict=True)
        )
    )


# Commands in messages. `shlex` is not imported here, because every program imports this module.

_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def command(name: str, *arguments: str, options: str = "") -> str:
    """Return a taskbull command that the user can copy, with quoted arguments."""
    quoted = " ".join(map(_quote, arguments))
    words = [quoted, options]
    if any(argument.startswith("-") for argument in arguments):
        words = [options, "--", quoted]
    return " ".join(filter(None, [f"taskbull {name}", *words]))


def _quote(word: str) -> str:
    if _PLAIN_WORD.fullmatch(word):
        return word
    escaped = word.replace("'", "'\"'\"'")
    return f"'{escaped}'"


# Read numbers and texts written by other producers. Numbers are bounded only here.
#
# A JavaScript producer may write `Number.MAX_VALUE` for "always", divide by zero, or round badly. A
# hash may hold any value. So numbers are clamped to the range where a double holds every integer
# exactly. NaN, infinity and values that are not numbers are read as `None`.


Number: TypeAlias = int | float  # A JavaScript producer may write a fraction after a division.


def bounded(number: Number) -> Number | None:
    """Return the number clamped to ±`MAX_SAFE_INTEGER`, or `None` for NaN and infinity."""
    if -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER:
        return number
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        return None
    return MAX_SAFE_INTEGER if number > 0 else -MAX_SAFE_INTEGER


def read_number(raw: bytes | None) -> int | None:
    """Read an integer from a hash field. Return `None` if it is missing or not a number."""
    if raw is None:
        return None
    try:
        number: Number = int(raw)
    except ValueError:
        try:
            number = float(raw)
        except ValueError:
            return None
    found = bounded(number)
    return None if found is None else int(found)


def read_text(raw: bytes) -> str:
    """Decode UTF-8. Invalid bytes are escaped."""
    return raw.decode("utf-8", "backslashreplace")


class Foreign(Struct, frozen=True):
    """Base class of values read from untrusted JSON. Numbers in its fields are bounded."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if (
                isinstance(value, int | float)
                and not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
            ):
                force_setattr(self, name, bounded(value))

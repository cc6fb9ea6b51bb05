"""Checks of what users set; each refusal names the field, the rule and the value."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from taskbull.errors import ConfigurationError

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

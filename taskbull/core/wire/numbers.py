"""Read numbers and texts written by other producers. Numbers are bounded only here.

A JavaScript producer may write `Number.MAX_VALUE` for "always", divide by zero, or round badly. A
hash may hold any value. So numbers are clamped to the range where a double holds every integer
exactly. NaN, infinity and values that are not numbers are read as `None`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

Number: TypeAlias = int | float  # A JavaScript producer may write a fraction after a division.

MOST = 2**53
"""Largest absolute value. Beyond it doubles skip integers, and msgpack soon cannot encode them."""


def bounded(number: Number) -> Number | None:
    """Return the number clamped to ±`MOST`, or `None` for NaN and infinity."""
    if -MOST <= number <= MOST:
        return number
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        return None
    return MOST if number > 0 else -MOST


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
            if isinstance(value, int | float) and not -MOST <= value <= MOST:
                force_setattr(self, name, bounded(value))

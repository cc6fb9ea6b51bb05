"""Numbers and texts that somebody else wrote: each number is bounded here, and nowhere else.

A JavaScript producer may write `Number.MAX_VALUE` for "always", divide by zero, or round badly; a
hash may hold anything. So a number is finite and within what a double holds exactly, or it is None.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

Number: TypeAlias = int | float  # a producer in JavaScript may have divided

MOST = 2**53
"""Beyond this a double skips integers, and msgpack soon has no form for them."""


def bounded(number: Number) -> Number | None:
    """Return the number, or the nearest one that is allowed; None for NaN and the infinities."""
    if -MOST <= number <= MOST:
        return number
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        return None
    return MOST if number > 0 else -MOST


def read_number(raw: bytes | None) -> int | None:
    """Read a field of a hash as JavaScript may have written it; None if it is not a number."""
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
    """Read a text; what is not UTF-8 is shown escaped."""
    return raw.decode("utf-8", "backslashreplace")


class Foreign(Struct, frozen=True):
    """What is read from JSON that anybody may have written: its numbers are bounded."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not -MOST <= value <= MOST:
                force_setattr(self, name, bounded(value))

"""A call is a value: what to send to Redis, and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from taskbull.scripts.loader import Script

T = TypeVar("T")


class Call(Struct, Generic[T], frozen=True):
    """One run of a script. Both stores run it; `parse` turns the raw reply into the result."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], T]

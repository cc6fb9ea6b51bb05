"""An operation of several calls: a generator that yields each call and is sent its result.

It does no IO, so that each store needs one small driver for all of them. Between two calls the
server is free for others: an operation on a million jobs is made of calls of a few ms each.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

from taskbull.scripts.call import Request

T = TypeVar("T")

Steps: TypeAlias = Generator[Request[Any], Any, T]

Stages: TypeAlias = Generator[Steps[Any], Any, T]
"""A long operation: it gives others, one after the other, each with a time limit of its own."""

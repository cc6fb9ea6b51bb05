"""Where the function of a task is called."""

from __future__ import annotations

from enum import StrEnum


class Site(StrEnum):
    """Where a function is called; its value is how that is told."""

    LOOP = "event loop"
    """Awaited: an `async def`."""
    THREAD = "thread"
    PROCESS = "process"

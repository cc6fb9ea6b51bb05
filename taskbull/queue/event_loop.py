"""Noticing that a call which blocks was made where it holds up an event loop."""

from __future__ import annotations

import asyncio
import sys
import warnings

from taskbull.errors import BlockingCallWarning


def in_event_loop() -> bool:
    """Tell whether an event loop runs in this thread; trio is not imported to find out."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        return trio is not None and bool(trio.lowlevel.in_trio_run())
    return True


class Alarm:
    """Warns, once, whoever blocks an event loop by a call."""

    def __init__(self, what: str, instead: str) -> None:
        self._message = f"{what} was called in an event loop, and blocks it: use {instead}"
        self._given = False

    def check(self, stacklevel: int = 3) -> None:
        """Warn if this is an event loop and nobody was warned yet."""
        if not self._given and in_event_loop():
            self._given = True
            warnings.warn(self._message, BlockingCallWarning, stacklevel=stacklevel)

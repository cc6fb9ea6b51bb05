"""Noticing that a call which blocks was made where it holds up an event loop."""

from __future__ import annotations

import sys
import warnings

from taskbull.errors import BlockingCallWarning


def in_event_loop() -> bool:
    """Tell whether an event loop runs in this thread; nothing is imported to find out.

    Who has not imported asyncio runs none of its loops; to import it takes four times as long as
    to start Python. And not to be told by an exception that there is none spares 0.5 µs per call.
    """
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


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

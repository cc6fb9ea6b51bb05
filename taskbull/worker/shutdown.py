"""Stop a worker in two steps: stop fetching, then give up on jobs that are still running."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from anyio import CancelScope, Event

from taskbull.worker.clock import loop_offset


class Shutdown:
    """A handle that stops a worker, for example from a signal handler or a test.

    Its methods may also be called in a callback of the event loop, such as a signal handler.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        """Seconds that running jobs have to finish."""
        self._begun = Event()
        self.urgent = False
        """True once the worker must stop immediately."""
        self._hurry: list[Callable[[], object]] = []
        self.working = CancelScope()
        """The scope that the slots run in."""
        self._loop_offset = loop_offset()

    @property
    def begun(self) -> bool:
        """True once the worker has stopped fetching jobs."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Wait until the shutdown begins."""
        await self._begun.wait()

    def begin(self) -> None:
        """Stop fetching. Running jobs have the grace period to finish."""
        if not self.begun:
            self._begun.set()
            self.working.deadline = monotonic() + self._loop_offset + self.grace

    def when_urgent(self, hurry: Callable[[], object]) -> None:
        """Register a callback for an immediate stop."""
        self._hurry.append(hurry)

    def at_once(self) -> None:
        """Stop immediately, and release running jobs.

        Jobs that are already being stopped have only a moment left.
        """
        self._begun.set()
        self.urgent = True
        for hurry in self._hurry:
            hurry()
        self.working.cancel()

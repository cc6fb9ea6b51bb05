"""The two steps of stopping: take no more jobs, then give up on those that still run."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from anyio import CancelScope, Event

from taskbull.worker.clock import loop_offset


class Shutdown:
    """Whoever holds it may stop the worker: a signal, the end of a block, a test.

    Its methods may also be called in a callback of the event loop, such as a signal handler.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        """Seconds that running jobs have to end."""
        self._begun = Event()
        self.urgent = False
        """Whether nothing more is waited for."""
        self._hurry: list[Callable[[], object]] = []
        self.working = CancelScope()
        """What the slots run in."""
        self._loop_offset = loop_offset()

    @property
    def begun(self) -> bool:
        """Whether no more jobs are taken."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Wait until it begins."""
        await self._begun.wait()

    def begin(self) -> None:
        """Take no more jobs; those that run have the grace to end."""
        if not self.begun:
            self._begun.set()
            self.working.deadline = monotonic() + self._loop_offset + self.grace

    def when_urgent(self, hurry: Callable[[], object]) -> None:
        """Have something called when all is to end at once."""
        self._hurry.append(hurry)

    def at_once(self) -> None:
        """Give back also what runs; what is being ended already has only a moment left."""
        self._begun.set()
        self.urgent = True
        for hurry in self._hurry:
            hurry()
        self.working.cancel()

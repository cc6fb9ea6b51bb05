"""The watch over one live link: is it silent because the server is busy, or because it is dead?"""

from __future__ import annotations

from anyio import create_task_group, sleep

from taskbull.errors import TaskbullError
from taskbull.store.dialing import Dialer
from taskbull.store.link import Link
from taskbull.store.pipeline import Pipeline
from taskbull.store.silence import FORGOTTEN, GRACE, SUSPICIOUS, allowance

_LOOKS = 4
"""Looks at the link in the time that makes it suspicious."""


class SilenceWatch:
    """Fails a link that owes an answer and moves no byte; see `silence`.

    It looks at counters now and then, and costs nothing per call. It counts its own looks, not
    seconds: an event loop that was blocked has not yet read what came meanwhile.
    """

    def __init__(self, link: Link, pipeline: Pipeline, dialer: Dialer, limit: float) -> None:
        self._link = link
        self._watched = pipeline
        self._dialer = dialer
        self._limit = limit
        self._suspicious = min(SUSPICIOUS, limit / 4)
        self._tick = self._suspicious / _LOOKS
        self._quiet = 0.0
        self._seen = (0, 0)
        self.pipeline = Pipeline()
        self.successor: Link | None = None
        """The link on which the server answers, with `pipeline`."""

    async def run(self) -> None:
        """Watch until the link has failed."""
        while True:
            while self._quiet <= self._suspicious + self._allowance:
                await self._look()
            self._link.hold(held=True)  # what is not sent is surely not executed
            async with create_task_group() as tasks:
                tasks.start_soon(self._replace)
                while self.successor is None and 0 < self._quiet <= self._limit + self._allowance:
                    await self._look()
                tasks.cancel_scope.cancel()
            if self.successor is not None:
                return self._link.fail(TimeoutError(FORGOTTEN))
            if self._quiet:
                return self._link.fail(TimeoutError(f"no reply for {self._limit:g} s"))
            self._link.hold(held=False)

    @property
    def _allowance(self) -> float:
        return allowance(self._watched.under_way)

    async def _look(self) -> None:
        await sleep(self._tick)
        before, self._seen = self._seen, (self._watched.received, self._link.unsent)
        silent = self._watched.sent and self._seen == before
        self._quiet = self._quiet + self._tick if silent else 0.0

    async def _replace(self) -> None:
        while self.successor is None:
            try:
                self.successor = await self._dialer.replace(self.pipeline, GRACE)
            except TaskbullError:  # it answers nobody
                await sleep(self._tick)

"""The end of a worker process that has done its share; a fresh one takes its place."""

from __future__ import annotations

from anyio import sleep
from msgspec import Struct

from taskbull.app.pool.memory import resident_megabytes
from taskbull.app.running import Stop
from taskbull.core import events
from taskbull.worker.worker import Worker

_INTERVAL = 0.5


class Share(Struct, frozen=True):
    """How much one process does; None: without limit."""

    jobs: int | None = None
    megabytes: int | None = None

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return self.jobs is not None or self.megabytes is not None


class Recycling:
    """Stops a worker gracefully when its share is done."""

    def __init__(self, share: Share, worker: Worker) -> None:
        self._share = share
        self._ended = 0
        self.done = False
        worker.on(events.Ended, self._count)

    async def watch(self, stop: Stop) -> None:
        """Begin the shutdown when it is time."""
        while not self._reached():  # noqa: ASYNC110 - memory tells nobody that it grows
            await sleep(_INTERVAL)
        self.done = True
        if stop.shutdown is not None:
            stop.shutdown.begin()

    def _count(self, _: events.Ended) -> None:
        self._ended += 1

    def _reached(self) -> bool:
        jobs, megabytes = self._share.jobs, self._share.megabytes
        if self._ended == 0:  # else a limit that is too low would let nothing be done at all
            return False
        return (jobs is not None and self._ended >= jobs) or (
            megabytes is not None and resident_megabytes() >= megabytes
        )

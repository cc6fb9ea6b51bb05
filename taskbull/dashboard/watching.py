"""One queue, watched: what is asked of it beside each sample, and how often.

What changes slowly is asked for every ten seconds, one call each; some only if there is something
to see. What follows from it all, `QueueWatch` knows.
"""

from __future__ import annotations

import time
from typing import Final

from taskbull.core.queue_facts import QueueFacts
from taskbull.core.record import Seen
from taskbull.core.states import JobState
from taskbull.core.trouble import LEAST_FAILED, MINUTES
from taskbull.queue.looked import Crew, QueueSample
from taskbull.queue.queue_watch import QueueWatch
from taskbull.queue.server import Server

_SLOWLY: Final = 10.0
_RARELY: Final = 30.0
_OLDEST_ACTIVE: Final = 20
_FAILURES_READ: Final = 200


class WatchedQueue:
    """Asks for what a sample does not tell."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        self._watch = QueueWatch(name)
        self._seen: list[Seen] = []
        self._slowly_at = self._rarely_at = float("-inf")

    async def facts(self, sample: QueueSample, crew: Crew) -> QueueFacts:
        """Return what is known of the queue, now that it was looked at again."""
        now, watch = time.monotonic(), self._watch
        watch.sampled(sample)
        if now - self._slowly_at >= _SLOWLY:
            await self._look_slowly(sample)
            self._slowly_at = now
        watch.met(crew, self._seen)
        facts = watch.facts()
        if facts.failed.total(MINUTES) >= LEAST_FAILED and now - self._rarely_at >= _RARELY:
            watch.failed(await self._server.failures(self._name, _FAILURES_READ))
            self._rarely_at = now
            facts = watch.facts()
        return facts

    async def _look_slowly(self, sample: QueueSample) -> None:
        self._seen = (await self._server.records([self._name]))[self._name]
        self._watch.counted(await self._server.ends(self._name))
        if sample.found.counts[JobState.ACTIVE]:
            self._watch.peeked(await self._server.active(self._name, _OLDEST_ACTIVE))
        else:
            self._watch.peeked([])

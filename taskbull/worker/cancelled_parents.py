"""Jobs that were running when somebody cancelled them: their children are cancelled with them.

A job in `waiting-children` ends in the call that cancels it, whose caller goes on with its
children. One that runs may still spawn some; it ends in its worker, which goes on then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from anyio import Event

from taskbull.core import events
from taskbull.core.outcome import Verdict
from taskbull.errors import ServerRefused
from taskbull.observability.job_filter import cut, one_line
from taskbull.scripts.cancelling import cancel_all_children
from taskbull.worker.context import QueueContext

logger = logging.getLogger(__name__)


class CancelledParents:
    """Cancels the children of jobs that have ended as cancelled, in all queues of a worker.

    Redis has noted what is to be done: what is not done here, a sweep does.
    """

    def __init__(self) -> None:
        self._ended: deque[events.Failed] = deque()
        self._news: Event | None = None

    def hear(self, event: events.Failed) -> None:
        """Take in that a job has failed."""
        if event.verdict is Verdict.CANCELLED:
            self._ended.append(event)
            if self._news is not None:
                self._news.set()

    async def run(self, contexts: Sequence[QueueContext]) -> None:
        """Cancel the children of each, until cancelled."""
        while True:
            self._news = Event()
            await self.flush(contexts)
            await self._news.wait()

    async def flush(self, contexts: Sequence[QueueContext]) -> None:
        """Cancel the children of those that have ended up to now."""
        by_queue = {context.keys.queue: context for context in contexts}
        while self._ended:
            event = self._ended.popleft()
            context = by_queue[event.queue]
            steps = cancel_all_children(context.keys, event.job.id, context.clock.wall_ms())
            try:
                await context.store.run(steps)
            except ServerRefused as error:
                logger.warning(
                    "Queue %s: the children of job %s, which was cancelled, are left to the next "
                    "sweep: %s",
                    event.queue,
                    cut(event.job.id),
                    one_line(str(error)),
                )

"""Notices that the event loop does not move, and says what holds it up."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType

from msgspec import Struct

from taskbull.core import events
from taskbull.core.frames import is_ours
from taskbull.core.job import Job
from taskbull.observability.job_filter import cut
from taskbull.worker.gatherer import Gatherer
from taskbull.worker.reporter import Reporter
from taskbull.worker.runner import Runner

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds without a move of the loop after which it is called blocked."""

# The only way to see what another thread does.
_frames = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class Culprit(Struct, frozen=True):
    """What the event loop is busy with."""

    where: str
    job: Job | None

    def __str__(self) -> str:
        if self.job is None:
            return f"at {self.where}"
        return f"by job {cut(self.job.id)} ({cut(self.job.name)}) at {self.where}"


class Watchdog:
    """Asks the event loop for a sign of life, from another thread."""

    def __init__(
        self, post: Callable[[Callable[[], object]], object], reporter: Reporter, worker_id: str
    ) -> None:
        self._post = post
        self._reporter = reporter
        self._worker_id = worker_id
        self._loop_thread = threading.get_ident()
        self._asked_at: float | None = None
        self._warn_after = PATIENCE
        self._culprit: Culprit | None = None

    def look(self) -> float:
        """Return for how many seconds the loop has not moved; called in a thread, often."""
        asked_at = self._asked_at
        if asked_at is None:
            self._asked_at = monotonic()
            self._post(self._answer)
            return 0.0
        blocked = monotonic() - asked_at
        if blocked >= self._warn_after:
            self._warn_after = 2 * blocked
            self._culprit = culprit = find_culprit(_frames().get(self._loop_thread))
            logger.warning(
                "The event loop has been blocked for %.1f s %s: no other job runs meanwhile",
                blocked,
                culprit,
                extra={"worker_id": self._worker_id},
            )
        return blocked

    def _answer(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        culprit, self._culprit = self._culprit, None
        self._warn_after = PATIENCE
        if culprit is not None and asked_at is not None:
            self._reporter.tell(
                events.LoopBlocked,
                duration=monotonic() - asked_at,
                where=culprit.where,
                job=culprit.job,
            )


def find_culprit(frame: FrameType | None) -> Culprit:
    """Return the job whose run a thread is in, and the line where the task's own code is."""
    innermost = frame
    line: FrameType | None = None
    for outer in _outwards(frame):
        if (job := Runner.job_in(outer) or Gatherer.job_in(outer)) is not None:
            return Culprit(_place(line or innermost), job)
        # What the handler calls is of less interest than the line of the handler that calls it.
        if not _is_ours(outer) and not _is_library(outer):
            line = outer
    return Culprit(_place(innermost), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return is_ours(frame.f_code.co_filename)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" in name or name.startswith(("<", sys.base_prefix + "/lib"))


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

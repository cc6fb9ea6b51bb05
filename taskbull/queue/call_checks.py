"""Refusing arguments, and noticing calls that hold up an event loop or their own queue's slots."""

from __future__ import annotations

import logging
import re
import sys
import warnings

from taskbull.core.checks import refusal
from taskbull.core.current import current
from taskbull.errors import BlockingCallWarning
from taskbull.observability.job_filter import cut

logger = logging.getLogger(__name__)

_TASKS = 1000
"""So many tasks are warned of at the most."""


def check_last_id(last_id: str) -> str:
    """Refuse what is not the id of an event; `$` is the end of the stream."""
    if not re.fullmatch(r"\$|\d+(-\d+)?", last_id):
        raise refusal("last_id", "be '$' or an event's id such as '1700000000000-0'", last_id)
    return last_id


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread; nothing is imported to find out.

    Who has not imported asyncio runs none of its loops; to import it takes four times as long as
    to start Python. And not to be told by an exception that there is none spares 0.5 µs per call.
    """
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


class BlockingCheck:
    """Warns, once, of a call that blocks an event loop."""

    def __init__(self, what: str, instead: str) -> None:
        self._message = f"{what} was called in an event loop, and blocks it: use {instead}"
        self._given = False

    def check(self, stacklevel: int = 3) -> None:
        """Warn if this thread runs an event loop and nobody was warned yet."""
        if not self._given and in_event_loop():
            self._given = True
            warnings.warn(self._message, BlockingCallWarning, stacklevel=stacklevel)


class OwnQueueCheck:
    """Warns, once for each task, of a job that waits for another one in its own queue."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, queue: str, job_id: str, name: str) -> None:
        """Warn if the caller is a job of the queue in which the other one is to run."""
        job = current.get(None)
        if job is None or job.queue != queue or job.name in self._told or len(self._told) >= _TASKS:
            return
        self._told.add(job.name)
        logger.warning(
            "Task %s (job %s) waits for the result of %s (job %s) in its own queue %s, and keeps "
            "its slot meanwhile: as soon as there are as many such jobs as slots, none of them "
            "ever ends. Put %s in another queue, or do not wait for it",
            cut(job.name),
            cut(job.id),
            cut(name),
            cut(job_id),
            queue,
            cut(name),
            extra={"queue": queue, "task": cut(job.name), "job_id": cut(job.id)},
        )

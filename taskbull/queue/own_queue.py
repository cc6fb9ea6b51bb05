"""Noticing a job that waits for another one in its own queue: both need a slot there."""

from __future__ import annotations

import logging

from taskbull.core.current import current

logger = logging.getLogger(__name__)

_TASKS = 1000
"""So many tasks are told of at the most."""


class OwnQueueAlarm:
    """Warns, once for each task, whoever may wait for ever."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, queue: str, job_id: str, name: str) -> None:
        """Warn if this is a job of the queue in which the other one is to run."""
        job = current.get(None)
        if job is None or job.queue != queue or job.name in self._told or len(self._told) >= _TASKS:
            return
        self._told.add(job.name)
        logger.warning(
            "Task %s (job %s) waits for the result of %s (job %s) in its own queue %s, and keeps "
            "its slot meanwhile: as soon as there are as many such jobs as slots, none of them "
            "ever ends. Give %s another queue, or do not wait for it",
            job.name,
            job.id,
            name,
            job_id,
            queue,
            name,
            extra={"queue": queue, "task": job.name, "job_id": job.id},
        )

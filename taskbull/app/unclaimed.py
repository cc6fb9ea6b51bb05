"""Jobs whose task this app does not have: they wait for a worker that has it.

While a new version is rolled out, workers of the old one meet jobs of the new; and two apps may
share a queue by mistake. No attempt is spent on that.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from taskbull.app.registry import Registry
from taskbull.errors import Snooze, TaskbullError
from taskbull.observability.job_filter import cut, one_line
from taskbull.worker.running_job import RunningJob

logger = logging.getLogger(__name__)

SHORTEST, LONGEST = 10.0, 300.0
"""Seconds until such a job is looked at again: the longer it has waited, the longer."""

PATIENCE = 86_400.0
"""Seconds after which it fails."""

_NAMES = 1000
"""So many names are told at the most: what stands in Redis is not in our hands."""


class Unclaimed:
    """Puts such jobs off, and tells of each name once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._told: set[tuple[str, str]] = set()

    async def put_off(self, job: RunningJob) -> NoReturn:
        """Handle a job: raise `Snooze`, or `TaskNotRegistered` when it has waited for a day."""
        try:
            waited = await job.aunclaimed(PATIENCE)
        except TaskbullError:  # Redis is not well: that is no reason to fail a job
            raise Snooze(SHORTEST) from None
        missing = self._registry.missing(job.name, job.queue)
        if waited >= PATIENCE:
            raise missing
        self._tell(job, str(missing))
        raise Snooze(min(max(waited, SHORTEST), LONGEST))

    def _tell(self, job: RunningJob, missing: str) -> None:
        key = (job.queue, job.name)
        if key not in self._told and len(self._told) < _NAMES:
            self._told.add(key)
            logger.warning(
                "%s. Such jobs wait up to a day, at no cost of an attempt, for a worker "
                "that has the task: all workers of a queue must know all its tasks",
                one_line(missing),
                extra={"queue": job.queue, "job_name": cut(job.name)},
            )

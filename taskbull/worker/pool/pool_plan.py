"""The configuration of a worker's process pool, and the reports about exited processes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from msgspec import Struct

from taskbull.core.job import Job
from taskbull.store.backend import on_trio
from taskbull.worker.pool.messages import Hello


class PoolPlan(Struct, frozen=True, kw_only=True):
    """The size of a pool, the app that its processes import, and the limits of a process."""

    size: int
    app: str
    modules: list[str]
    script: str | None
    """The worker's program file, as in `Hello`."""
    tasks: Sequence[str]
    """The names of the tasks that run in the pool."""
    at_once: bool
    """True to start the processes with the worker, False to start them for the first job."""
    max_jobs: int | None = None
    """Maximum number of jobs per process; a process that reaches it is replaced."""
    max_memory: int | None = None
    """Memory in megabytes above which a process is replaced after a job."""
    memory_limit: int | None = None
    """Maximum address space of a process, in megabytes."""

    def hello(self, worker_id: str) -> Hello:
        """Return the first message for a process."""
        return Hello(
            app=self.app,
            modules=self.modules,
            tasks=[*self.tasks],
            script=self.script,
            path=list(sys.path),
            worker_id=worker_id,
            backend="trio" if on_trio() else "asyncio",
            log_level=logging.getLogger().getEffectiveLevel(),
            log_levels=_log_levels(),
            log_disabled=logging.root.manager.disable,
            memory_limit=self.memory_limit,
            measures=self.max_memory is not None,
        )


def _log_levels() -> dict[str, int]:
    known = logging.root.manager.loggerDict.copy()
    return {
        name: logger.level
        for name, logger in known.items()
        if isinstance(logger, logging.Logger) and logger.level
    }


class Gone(Struct, frozen=True):
    """A process that has exited or could not be started."""

    pid: int
    reason: str
    started: bool
    """True if the process had become ready to run jobs."""
    wanted: bool
    """True if the pool had retired or killed the process."""
    job: Job | None = None
    """The job that ran in the process, or the first job of a batch."""


class ProcessEnd(Struct, frozen=True):
    """A process that exited unexpectedly, or that the pool replaced."""

    pid: int
    reason: str
    job: Job | None
    recycled: bool = False
    """True if the process was replaced because it reached `max_jobs` or `max_memory`."""

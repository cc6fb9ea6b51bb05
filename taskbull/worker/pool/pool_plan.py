"""What pool a worker has, and what is told of the ends of its processes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from msgspec import Struct

from taskbull.core.job import Job
from taskbull.store.backend import on_trio
from taskbull.worker.pool.messages import Hello


class PoolPlan(Struct, frozen=True, kw_only=True):
    """How many processes there are, what they import, and how long each lives."""

    size: int
    app: str
    modules: list[str]
    script: str | None
    """As `Hello` has them."""
    tasks: Sequence[str]
    """The names of the tasks that run in it."""
    at_once: bool
    """Whether the processes are started with the worker, or else for the first job."""
    max_jobs: int | None = None
    """Jobs after which a process is replaced."""
    max_memory: int | None = None
    """Megabytes in use after a job, above which it is replaced."""
    memory_limit: int | None = None
    """Megabytes of address space that a process may have."""

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
    """The end of a process, or of the attempt to start one."""

    pid: int
    reason: str
    started: bool
    """Whether it had got so far that it could run jobs."""
    wanted: bool
    """Whether it ended because it was told to."""
    job: Job | None = None
    """The job that ran in it; of a batch the first one."""


class ProcessEnd(Struct, frozen=True):
    """The end of a process that the pool did not want, or had to bring about."""

    pid: int
    reason: str
    job: Job | None
    recycled: bool = False
    """Whether it had only done its share."""

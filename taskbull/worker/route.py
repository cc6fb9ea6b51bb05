"""What a worker does with a job: the function to call, and the rules for its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.retry import NO_POLICY, RetryPolicy
from taskbull.worker.running_job import RunningJob

Handler: TypeAlias = Callable[[RunningJob], Awaitable[Any]]
"""Runs a job and gives its result, which must be JSON."""

SyncHandler: TypeAlias = Callable[[RunningJob], Any]


class Route(Struct, frozen=True):
    """How the jobs of a task are run."""

    handler: Handler
    policy: RetryPolicy = NO_POLICY
    timeout: float | None = None
    """Seconds that one attempt may take; a job's own time wins."""


Resolve: TypeAlias = Callable[[Job], Route]
"""Tells how a job is to be run; what it raises is the job's failure."""


def in_thread(function: SyncHandler) -> Handler:
    """Make a handler of a function that blocks: it runs in one of the worker's threads."""

    def handler(job: RunningJob) -> Awaitable[Any]:
        return job.threads.run(function, job, clock=job.time_limit)

    return handler

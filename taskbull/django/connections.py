"""Middleware that manages database connections around a job, as Django does around a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import close_old_connections

from taskbull.worker.running_job import RunningJob


def database_connections(job: RunningJob, call_next: Callable[[RunningJob], Any]) -> Any:
    """Close broken or expired database connections before and after each sync task.

    Register it with `app.middleware`. It runs in the task's thread, because Django keeps one
    connection per thread and database. `CONN_MAX_AGE` sets the maximum age of a connection. With
    the default of 0, connections are closed after every job.

    Args:
        job: The running job.
        call_next: The next middleware, or the task's function.

    Example:
        >>> app.middleware(database_connections)
    """
    close_old_connections()
    try:
        return call_next(job)
    finally:
        close_old_connections()

"""Connections to the database, treated around a job as Django treats them around a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import close_old_connections

from taskbull.worker.running_job import RunningJob


def database_connections(job: RunningJob, call_next: Callable[[RunningJob], Any]) -> Any:
    """Drop database connections that are broken or too old, before and after each plain task.

    `app.middleware(database_connections)` puts it around all plain functions of an app, in the
    thread of each: there Django keeps one connection for each database. `CONN_MAX_AGE` says how old
    one may become; with the default of 0 it is closed after every job.
    """
    close_old_connections()
    try:
        return call_next(job)
    finally:
        close_old_connections()

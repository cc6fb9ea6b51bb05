"""Which job runs here: known in its function, in what that calls, and in its threads."""

from __future__ import annotations

from contextvars import Context, ContextVar
from typing import cast

from taskbull.core.current import current
from taskbull.errors import TaskbullError
from taskbull.worker.running_job import RunningJob

_current = cast("ContextVar[RunningJob]", current)

enter = _current.set
leave = _current.reset


_current_batch: ContextVar[list[RunningJob]] = ContextVar("taskbull_current_batch")
"""Set while the function of a batch task runs, for which there is no one job."""

enter_batch = _current_batch.set
leave_batch = _current_batch.reset


def job_of(context: Context) -> RunningJob | None:
    """Return the job in which a context was taken; of a batch the first one."""
    batch = context.get(_current_batch)
    return context.get(_current) if batch is None else batch[0]


def current_job() -> RunningJob:
    """Return the job that is running here: in its task, in what that calls, and in its threads."""
    try:
        return _current.get()
    except LookupError:
        if _current_batch.get(None) is not None:
            raise TaskbullError(
                "current_job() was called in a batch task, which runs for several jobs at once: "
                "current_batch() gives them, in the order of the items"
            ) from None
        raise TaskbullError(
            "current_job() was called outside of a job: there is one only while a worker runs a "
            "task"
        ) from None


def current_batch() -> list[RunningJob]:
    """Return the jobs for which a batch task runs here, in the order of its items."""
    try:
        return [*_current_batch.get()]
    except LookupError:
        raise TaskbullError(
            "current_batch() was called outside of a batch: there is one only while a worker runs "
            "a task made by @app.batch_task"
        ) from None

"""The call of a task's function in a process: with its job, or with the items of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from taskbull.app.pool.ends import encoded
from taskbull.worker.batch import Batch, checked_results
from taskbull.worker.current_job import enter, enter_batch, leave, leave_batch
from taskbull.worker.route import SyncHandler
from taskbull.worker.run import NotBegun
from taskbull.worker.running_job import RunningJob

Result: TypeAlias = bytes | BaseException | None
"""What came of a job: its result as JSON (None: null), or what was raised for it."""


def call_one(function: SyncHandler, job: RunningJob) -> bytes | None:
    """Call a function with its job, if it is not too late; return its result as JSON."""
    _check_time(job)
    token = enter(job)
    try:
        value = function(job)
    finally:
        leave(token)
    return encoded(value, job.job)


def call_batch(
    function: Callable[[Batch], Any], read: Callable[[bytes], Any], jobs: Sequence[RunningJob]
) -> list[Result]:
    """Call a function with the items of all jobs that bring one in time; return what came of each.

    What is wrong with one item, or with its result, is an error of its own job.
    """
    found: dict[RunningJob, Result] = {}
    items: dict[RunningJob, Any] = {}
    for job in jobs:
        try:
            _check_time(job)
            items[job] = read(job.job.raw_data)
        except Exception as error:  # noqa: BLE001 - foreign code: types of the application
            found[job] = error
    if items:
        batch = Batch([*items], [*items.values()])
        for job, value in zip(batch.jobs, _results(function, batch), strict=True):
            found[job] = _part(value, job)
    return [found[job] for job in jobs]


def _results(function: Callable[[Batch], Any], batch: Batch) -> list[Any]:
    token = enter_batch(batch.jobs)
    try:
        return checked_results(function(batch), batch.jobs)
    finally:
        leave_batch(token)


def _part(value: Any, job: RunningJob) -> Result:
    if isinstance(value, BaseException):
        return value
    try:
        return encoded(value, job.job)
    except Exception as error:  # noqa: BLE001 - foreign code: what a value is made of
        return error


def _check_time(job: RunningJob) -> None:
    if (late := job.too_late()) is not None:
        raise NotBegun(late)

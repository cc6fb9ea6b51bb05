"""What came of the jobs of a call in a process, when that is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

from msgspec import Struct

from taskbull.core import payload
from taskbull.errors import ProcessDied, TaskbullError
from taskbull.worker.pool.call import End
from taskbull.worker.pool.fates import error_of
from taskbull.worker.pool.messages import Done, Ended, FateKind, Raised
from taskbull.worker.run import Run, Spawning
from taskbull.worker.running_job import RunningJob, run_of

Result: TypeAlias = bytes | Exception | None
"""What came of a job: its result as JSON (None: null), or what was raised for it."""


class Json(Struct, frozen=True):
    """A result that is JSON already, and was checked where it was made."""

    raw: bytes


def results_of(jobs: Sequence[RunningJob], end: End) -> list[Result]:
    """Return what came of each job; raise what has ended the process."""
    if isinstance(end, TaskbullError):
        raise end
    return [_result(each, run_of(job)) for each, job in zip(end, jobs, strict=True)]


def has_value(end: End | None) -> TypeGuard[list[Ended]]:
    """Return whether a function that was to be ended has returned a result before."""
    return isinstance(end, list) and any(isinstance(each, Done) for each in end)


def note_halted(jobs: Sequence[RunningJob], end: End | None) -> None:
    """Note where a function was when it was ended, if that is known."""
    if isinstance(end, list):
        stack = next((each.stack for each in end if isinstance(each, Raised)), "")
    else:
        stack = "\n".join(getattr(end, "__notes__", ()))
    for job in jobs:
        run_of(job).halted_at = stack


def opened(result: Result, *, read: bool) -> Any:
    """Return a result as those who surround the job see it: if nobody does, it stays JSON."""
    if not isinstance(result, bytes):
        return result
    return payload.decode(result) if read else Json(result)


def _result(end: Ended, run: Run) -> Result:
    if any(end.spawned):
        run.spawned = Spawning(*end.spawned)
    if isinstance(end, Done):
        run.heeded = run.heeded or end.heeded
        return end.value
    if end.fate.kind is FateKind.TERMINATED:
        return ProcessDied(f"the process was told to end, not by its worker: {end.reason}")
    return error_of(end)

"""Jobs as they are shown: with their state, and what stands beside them in Redis."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, structs

from taskbull.core.job import Job
from taskbull.core.states import JobState
from taskbull.errors import CorruptJob
from taskbull.scripts.inspection import ChildCounts


class JobView(Struct, frozen=True):
    """A job, and what was found out about it when it was read."""

    queue: str
    job: Job
    state: JobState
    attempts: int
    """How often a worker tries it."""
    due: datetime | None = None
    """When it may run, if it is delayed."""

    @property
    def data(self) -> Any:
        """Its data; as text if that is not JSON."""
        try:
            return self.job.data
        except CorruptJob:
            return self.job.raw_data.decode("utf-8", "backslashreplace")

    @property
    def progress(self) -> Any:
        """Its progress; None also if that is not JSON."""
        try:
            return self.job.progress
        except CorruptJob:
            return None

    @property
    def corrupt(self) -> str | None:
        """What makes it unreadable for workers."""
        found = self.job.corrupt
        try:
            _ = self.job.data
        except CorruptJob as error:
            found = error
        return None if found is None else str(found)

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it: instants are ISO 8601, durations seconds."""
        job = self.job
        return {
            "id": job.id,
            "queue": self.queue,
            "name": job.name,
            "state": str(self.state),
            "data": self.data,
            "result": job.returnvalue,
            "reason": job.failed_reason,
            "progress": self.progress,
            "attempts": self.attempts,
            "attempts_made": job.attempts_made,
            "attempts_started": job.attempts_started,
            "stalled_count": job.stalled_count,
            "priority": job.priority,
            "delay": job.delay_ms / 1000,
            "added_at": iso(job.timestamp),
            "due_at": iso(self.due),
            "started_at": iso(job.processed_on),
            "finished_at": iso(job.finished_on),
            "worker": job.processed_by,
            "dedup": job.dedup_key,
            "scheduler": job.scheduler_id,
            "parent": job.parent_key,
            "stacktrace": job.stacktrace,
            "corrupt": self.corrupt,
        }


class JobDetails(Struct, frozen=True):
    """All that is stored about a job."""

    view: JobView
    options: Any
    """Its options as they stand in Redis; None if they are not JSON."""
    lock_seconds: float | None
    """For how long the lock of a running job lives; 0: it has none; None: it does not run."""
    children: ChildCounts
    logs: list[str]
    """Its newest log lines, the oldest of them first."""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it: what `taskbull job --json` prints."""
        return {
            **self.view.describe(),
            "options": self.options,
            "lock_seconds": self.lock_seconds,
            "children": structs.asdict(self.children),
            "logs": self.logs,
        }


class JobPage(Struct, frozen=True):
    """Some of the jobs in one or several states."""

    jobs: list[JobView]
    total: int
    """How many jobs there are in these states."""


def iso(instant: datetime | None) -> str | None:
    """Return an instant as JSON has it: ISO 8601, with its offset."""
    return None if instant is None else instant.isoformat(timespec="milliseconds")

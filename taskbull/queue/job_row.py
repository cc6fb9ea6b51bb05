"""A job as a line of a list: what fits there, and how much more there is."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from taskbull.core.durations import instant_from_ms
from taskbull.core.job import Job
from taskbull.core.states import JobState, due_ms_of_score
from taskbull.queue.job_view import iso
from taskbull.scripts.inspection import ChildCounts
from taskbull.scripts.peeking import After

EMPTY_DATA: Final = Job(id="").raw_data
"""What a job has as its data if none were read."""


class JobRow(Struct, frozen=True):
    """A job of which parts were read: texts are cut after 300 bytes, as `sizes` shows."""

    queue: str
    job: Job
    """Its fields as far as they were read. Take data and the like from the texts below."""
    state: JobState
    attempts: int
    """How often a worker tries it."""
    due: datetime | None = None
    """When it may run, if it is delayed."""
    sizes: dict[str, int] = {}
    """The bytes of data, result, progress, reason, options and stacktrace."""
    gone: bool = False
    """Whether only its id is left."""

    @property
    def data(self) -> str:
        """The beginning of its data as they stand in Redis; empty if they are too large."""
        raw, size = self.job.raw_data, self.sizes.get("data", 0)
        was_read = len(raw) == size or raw != EMPTY_DATA
        return _text(raw) if size and was_read else ""

    @property
    def result(self) -> str:
        """The beginning of its result as it stands in Redis."""
        return _text(self.job.raw_returnvalue or b"")

    @property
    def progress(self) -> str:
        """The beginning of its progress as it stands in Redis."""
        return _text(self.job.raw_progress or b"")


class JobRows(Struct, frozen=True):
    """A page of jobs."""

    rows: list[JobRow]
    total: int
    """How many jobs are in this state."""
    after: After | None
    """Where the next page begins; None: this is the last one."""


class JobPlace(Struct, frozen=True):
    """One job, and where it is: what a page about it shows, at a bounded price."""

    row: JobRow
    """With all of data, result, options and stacks up to 64 kB; what is larger is only sized."""
    lock_seconds: float | None
    """How long its lock still lives; None: it has none."""
    children: ChildCounts
    before: int | None
    """How many jobs come before it in its list or set, where that is known."""
    sure: bool
    """Whether state and place are exact, and not guessed from the timestamps of others."""
    last_id: int
    """The last id that the queue has given out."""
    unclaimed: tuple[datetime, datetime] | None = None
    """When workers first and last met it without having its task."""
    expires: datetime | None = None
    """When it is too late to run it."""
    is_held: bool = False
    """Whether a worker has delayed it, because it had stalled before."""

    def describe(self) -> dict[str, Any]:
        """Return where it is, as JSON has it."""
        return {
            "queue": self.row.queue,
            "id": self.row.job.id,
            "state": str(self.row.state),
            "before": self.before,
            "sure": self.sure,
            "lock_seconds": self.lock_seconds,
            "due_at": iso(self.row.due),
            "expires_at": iso(self.expires),
        }


def due_of(state: JobState, score: float | None) -> datetime | None:
    """Return when a delayed job is due, by its score."""
    if state is not JobState.DELAYED or score is None:
        return None
    return instant_from_ms(due_ms_of_score(score))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")

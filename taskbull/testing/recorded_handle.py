"""The handle of a job in a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskbull.core import payload
from taskbull.core.cancelling import Cancelled, cancel_reason
from taskbull.core.job import Job
from taskbull.core.states import JobState
from taskbull.errors import JobFailed
from taskbull.queue.endings import failure_kind
from taskbull.queue.handle import JobHandle
from taskbull.scripts.inspection import Logs
from taskbull.testing.recorded_flow import cancel
from taskbull.testing.recorded_job import RecordedJob

R_co = TypeVar("R_co", covariant=True)


class RecordedHandle(JobHandle[R_co], frozen=True):
    """The handle of a recorded job: the box knows what became of it."""

    _recorded: RecordedJob | None = None
    _now: Callable[[], float] = float
    """Tells the seconds of the box."""

    def result(self, timeout: Any = None) -> R_co:
        """Return the result; raise `JobFailed`, or `TimeoutError` if the job has not run yet."""
        recorded = self._job
        if recorded.state is JobState.FAILED:
            raise failure_of(recorded)
        if recorded.state is not JobState.COMPLETED:
            raise TimeoutError(f"{recorded!r} has not been run: box.run() does that")
        value: R_co = self._read(payload.encode(recorded.value, "result"))
        return value

    async def aresult(self, timeout: Any = None) -> R_co:
        """See `result`."""
        return self.result(timeout)

    def cancel(self, reason: str = "") -> Cancelled:
        """Cancel the job: end it if it has not run, or ask it to stop if it is running."""
        return cancel(self._job, cancel_reason(reason), self._now())

    async def acancel(self, reason: str = "") -> Cancelled:
        """Cancel the job. See `cancel`."""
        return self.cancel(reason)

    def state(self) -> JobState:
        """Return the state of the job."""
        return self._job.state

    async def astate(self) -> JobState:
        """Return the state of the job."""
        return self.state()

    def info(self) -> Job:
        """Return the job as a worker reads it."""
        return self._job.as_job()

    async def ainfo(self) -> Job:
        """Return the job as a worker reads it."""
        return self.info()

    def logs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines."""
        lines = self._job.logs
        return Logs(lines[start : None if end == -1 else end + 1], len(lines))

    async def alogs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines."""
        return self.logs(start, end)

    @property
    def _job(self) -> RecordedJob:
        if self._recorded is None:
            raise TypeError("a recorded handle can only be made by a box")
        return self._recorded


def failure_of(job: RecordedJob) -> JobFailed:
    """Return the error of a job that failed."""
    failure = job.failure
    reason, stack = (failure.reason, [failure.stack]) if failure else ("", [])
    return failure_kind(reason)(job.queue, job.id, reason, stack, job.attempts)

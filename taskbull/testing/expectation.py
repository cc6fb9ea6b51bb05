"""What a test expects to have been enqueued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskbull.app.task import Enqueueable
from taskbull.core import payload
from taskbull.core.checks import did_you_mean
from taskbull.core.options import JobOptions
from taskbull.core.wire.job import encode_data
from taskbull.testing.recorded_job import RecordedJob

_NOTHING = object()


class Expectation:
    """A job of a task, with some arguments and options: only what is named is compared."""

    def __init__(self, task: Enqueueable[..., Any], expected: Mapping[str, Any]) -> None:
        """Refuse a name that no job of the task can have: nothing of that name is ever enqueued."""
        binder = task.calling.binder
        known = {*binder.parameters, *JobOptions.__struct_fields__, "queue"}
        for name in expected:
            if name not in known and binder.catch_all is None:
                hint = did_you_mean(name, known)
                raise TypeError(f"{task.name} has no argument or option {name!r}{hint}")
        self._task = task
        self._expected = expected

    def find(self, jobs: Sequence[RecordedJob]) -> RecordedJob | None:
        """Return the first job that is as expected."""
        return next((job for job in jobs if self._fits(job)), None)

    def missed(self, jobs: Sequence[RecordedJob]) -> AssertionError:
        """Return the error that none of these jobs is as expected."""
        wanted = ", ".join(f"{name}={value!r}" for name, value in self._expected.items())
        there = "".join(f"\n  {told(job)}" for job in jobs) or " none"
        return AssertionError(
            f"No job {self._task.name}({wanted}) was enqueued; of this task:{there}"
        )

    def _fits(self, job: RecordedJob) -> bool:
        data = job.data
        return all(_same(job, data, name, value) for name, value in self._expected.items())


def _same(job: RecordedJob, data: dict[str, Any], name: str, value: Any) -> bool:
    if name in data:
        return bool(data[name] == payload.decode(encode_data(value)))
    known = job.queue if name == "queue" else getattr(job.options, name, _NOTHING)
    return bool(known == value)


def told(job: RecordedJob) -> str:
    """Return a job as it would be called."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.data.items())
    options = [
        f"{name}={getattr(job.options, name)!r}"
        for name in ("delay", "eta", "priority", "job_id")
        if getattr(job.options, name)
    ]
    return f"{job.name}({arguments})" + (f" with {', '.join(options)}" if options else "")

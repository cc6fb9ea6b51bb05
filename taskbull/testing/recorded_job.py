"""A job recorded by a box."""

from __future__ import annotations

import time
from typing import Any

from taskbull.app.producer import JobSpec
from taskbull.core import payload
from taskbull.core.cancelling import is_cancelled
from taskbull.core.job import Job
from taskbull.core.options import JobOptions, OnFailure
from taskbull.core.outcome import Failure
from taskbull.core.states import JobState
from taskbull.core.wire.job import RUN_FIELDS, decode_taken
from taskbull.core.wire.new_job import EncodedJob, encode_job
from taskbull.worker.run import Run


class RecordedJob:
    """A job that was enqueued while a `Box` recorded, with its state and result.

    Tests read `name`, `queue`, `data`, `options`, `state`, `attempts`, `value`, `failure`,
    `progress` and `logs`. Jobs are created by the box.

    Example:
        >>> with recorded(app) as box:
        ...     resize.delay(width=100)
        ...     box.run()
        ...     [job] = box.of(resize)
        ...     assert job.data == {"width": 100}
        ...     assert job.attempts == 1
    """

    def __init__(self, spec: JobSpec[Any], number: int, now: float) -> None:
        self.spec = spec
        self.id = spec.options.job_id or str(number)
        self.number = number
        self._added = now
        self._now_ms = int((time.time() + now) * 1000)
        # Encode the job as for Redis, so that invalid jobs raise the same errors.
        self._encoded: EncodedJob = encode_job(spec.job, self._now_ms)
        self.raw_data = self._encoded.data
        self.due = now + self._encoded.delay_ms / 1000
        """The earliest time to run the job, in seconds of virtual time."""
        self.state = JobState.DELAYED if self._encoded.delay_ms else JobState.WAITING
        self.attempts = 0
        """Number of attempts made."""
        self.value: Any = None
        """The job's result, decoded from JSON."""
        self.failure: Failure | None = None
        """The failure of the last attempt that failed."""
        self.progress: Any = 0
        """The last progress that the job wrote."""
        self.logs: list[str] = []
        """The lines of the job's log."""
        self.parent: RecordedJob | None = None
        """The job's parent in a flow."""
        self.children: list[RecordedJob] = []
        """The job's children in a flow."""
        self.pending: list[RecordedJob] = []
        """The children that the job still waits for."""
        self.on_failure: OnFailure = "fail"
        """The effect of this job's failure on its parent."""
        self.spawned: list[RecordedJob] = []
        """Spawned jobs that have not been added to the box yet."""
        self.number_spawned = 0
        """Number of jobs spawned so far."""
        self.idle_waits = 0
        """Number of consecutive waits without a child to wait for."""
        self.run: Run | None = None
        """The current attempt, or `None` if the job is not running."""
        self.deferred_failure: str | None = None
        """The reason why the job will fail without being run, if any."""

    def wall_ms(self, now: float) -> int:
        """Convert virtual time to milliseconds since 1970, counted from when the job was added."""
        return self._now_ms + int((now - self._added) * 1000)

    def __repr__(self) -> str:
        return f"<{self.name} {self.id} in {self.queue}: {self.state}>"

    @property
    def name(self) -> str:
        """The name of the job's task."""
        return self.spec.name

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self.spec.queue

    @property
    def data(self) -> Any:
        """The job's arguments, decoded from JSON."""
        return payload.decode(self.raw_data)

    @property
    def options(self) -> JobOptions:
        """The job's options."""
        return self.spec.options

    @property
    def headers(self) -> dict[str, str]:
        """The job's headers."""
        return self.spec.headers

    @property
    def ended(self) -> bool:
        """True if the job has completed or permanently failed."""
        return self.state in {JobState.COMPLETED, JobState.FAILED}

    @property
    def failed_by_itself(self) -> bool:
        """True if the job has permanently failed and was not cancelled."""
        reason = "" if self.failure is None else self.failure.reason
        return self.state is JobState.FAILED and not is_cancelled(reason)

    def as_job(self) -> Job:
        """Return the job as a worker would read it from Redis."""
        made, started = str(self.attempts).encode(), str(self.attempts + 1).encode()
        encoded = self._encoded
        times = (str(encoded.timestamp_ms), str(encoded.delay_ms), str(encoded.priority))
        values = [encoded.name.encode(), self.raw_data, encoded.options]
        values += [text.encode() for text in times]
        taken: list[bytes | None] = [*values, made, started]
        if self.deferred_failure is not None:
            taken += [self.deferred_failure.encode(), *[None] * (len(RUN_FIELDS) - len(taken) - 1)]
        return decode_taken(self.id.encode(), taken)

    @property
    def key(self) -> str:
        """The job's key in Redis, if it were stored there."""
        return self.spec.calling.producer.client(self.queue).keys.job(self.id)

    def child_results(self, name: str) -> list[bytes]:
        """Return the results of completed children with this name, as JSON."""
        return [
            payload.encode(child.value, "result")
            for child in self.children
            if child.name == name and child.state is JobState.COMPLETED
        ]

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Return the failure reasons of failed children, by queue and id.

        Only children with `on_failure` "ignore" or "continue" are included.
        """
        return {
            (child.queue, child.id): child.failure.reason
            for child in self.children
            if child.failure is not None
            and child.state is JobState.FAILED
            and child.on_failure in {"ignore", "continue"}
        }

    def drop_children(self) -> int:
        """Remove the pending children and return their number."""
        dropped, self.pending = self.pending, []
        for child in dropped:
            child.state = JobState.UNKNOWN
        return len(dropped)

"""A job that was enqueued while a box recorded."""

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
    """One job in a box: what was enqueued, and what became of it when it was run."""

    def __init__(self, spec: JobSpec[Any], number: int, now: float) -> None:
        self.spec = spec
        self.id = spec.options.job_id or str(number)
        self.number = number
        self._added = now
        self._now_ms = int((time.time() + now) * 1000)
        # The same road as to Redis: what could not be stored is refused here, too.
        self._encoded: EncodedJob = encode_job(spec.job, self._now_ms)
        self.raw_data = self._encoded.data
        self.due = now + self._encoded.delay_ms / 1000
        """When it may run, in the seconds of the box."""
        self.state = JobState.DELAYED if self._encoded.delay_ms else JobState.WAITING
        self.attempts = 0
        """How many attempts were made."""
        self.value: Any = None
        """What it returned, as it comes from JSON."""
        self.failure: Failure | None = None
        """What went wrong in the last attempt that failed."""
        self.progress: Any = 0
        self.logs: list[str] = []
        self.parent: RecordedJob | None = None
        """The job that waits for it, in a flow."""
        self.children: list[RecordedJob] = []
        self.pending: list[RecordedJob] = []
        """The children that it still waits for."""
        self.on_failure: OnFailure = "fail"
        self.spawned: list[RecordedJob] = []
        """What it has added to the flow, and the box does not have yet."""
        self.number_spawned = 0
        self.idle_waits = 0
        """How often in a row it waited for children, and had none."""
        self.run: Run | None = None
        """The attempt that is being made."""
        self.doom: str | None = None
        """Why it fails instead of being run."""

    def wall_ms(self, now: float) -> int:
        """Return the time of the box in ms since 1970, as the job has it that was added then."""
        return self._now_ms + int((now - self._added) * 1000)

    def __repr__(self) -> str:
        return f"<{self.name} {self.id} in {self.queue}: {self.state}>"

    @property
    def name(self) -> str:
        """The name of its task."""
        return self.spec.name

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.spec.queue

    @property
    def data(self) -> Any:
        """Its arguments, as they come from JSON."""
        return payload.decode(self.raw_data)

    @property
    def options(self) -> JobOptions:
        """Its options."""
        return self.spec.options

    @property
    def ended(self) -> bool:
        """Whether it has completed, or failed for good."""
        return self.state in {JobState.COMPLETED, JobState.FAILED}

    @property
    def failed_by_itself(self) -> bool:
        """Whether it has failed for good, and was not cancelled."""
        reason = "" if self.failure is None else self.failure.reason
        return self.state is JobState.FAILED and not is_cancelled(reason)

    def as_job(self) -> Job:
        """Return the job as a worker reads it."""
        made, started = str(self.attempts).encode(), str(self.attempts + 1).encode()
        encoded = self._encoded
        times = (str(encoded.timestamp_ms), str(encoded.delay_ms), str(encoded.priority))
        values = [encoded.name.encode(), self.raw_data, encoded.options]
        values += [text.encode() for text in times]
        taken: list[bytes | None] = [*values, made, started]
        if self.doom is not None:
            taken += [self.doom.encode(), *[None] * (len(RUN_FIELDS) - len(taken) - 1)]
        return decode_taken(self.id.encode(), taken)

    @property
    def key(self) -> str:
        """The key that it would have in Redis."""
        return self.spec.calling.producer.client(self.queue).keys.job(self.id)

    def child_results(self, name: str) -> list[bytes]:
        """Return what its children of a name returned, as JSON."""
        return [
            payload.encode(child.value, "result")
            for child in self.children
            if child.name == name and child.state is JobState.COMPLETED
        ]

    def child_failures(self) -> dict[tuple[str, str], str]:
        """Return why children failed that were to be ignored, or not to be waited for."""
        return {
            (child.queue, child.id): child.failure.reason
            for child in self.children
            if child.failure is not None
            and child.state is JobState.FAILED
            and child.on_failure in {"ignore", "continue"}
        }

    def drop_children(self) -> int:
        """Remove the children that have not run."""
        dropped, self.pending = self.pending, []
        for child in dropped:
            child.state = JobState.UNKNOWN
        return len(dropped)

"""Jobs and flows that a box records, and the `JobPort` of a job that runs in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeGuard, cast

from msgspec.structs import replace

from taskbull.app.producer import ByName, JobSpec
from taskbull.core import payload
from taskbull.core.job import Children, Growing, Job, Member, NewJob, arrange
from taskbull.core.keys import JobState
from taskbull.core.options import JobOptions, OnFailure
from taskbull.core.outcome import (
    Cancelled,
    Complete,
    Fail,
    Failure,
    Outcome,
    cancel_reason,
    cancelled,
    is_cancelled,
)
from taskbull.core.retry import failed_for_good
from taskbull.core.steps import StepCall, WaitRecord, encode_record, signal_value
from taskbull.core.wire.job import RUN_FIELDS, EncodedJob, decode_taken, encode_job
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.queue.queue import QueueJob
from taskbull.scripts.streams import LAST_NUMBER, START, Entry, EntryId
from taskbull.worker.run import PortMethod, Run
from taskbull.worker.running_job import wait_record

# A job recorded by a box.


_places = count(1)


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

    unreported: Fail | None = None
    """The outcome of a job that was cancelled before it ran, until its hooks have run."""
    parent: RecordedJob | None = None
    """The job's parent in a flow."""
    number_spawned: int = 0
    """Number of jobs spawned so far."""
    idle_waits: int = 0
    """Number of consecutive waits without a child to wait for."""
    run: Run | None = None
    """The current attempt, or `None` if the job is not running."""
    started_ms: int | None = None
    """Start of the last attempt, in milliseconds since 1970."""
    deferred_failure: str | None = None
    """The reason why the job will fail without being run, if any."""
    has_awaited: bool = False
    """True if the current or last run had a wait that was not over."""

    is_checked = False
    """True after a call of `run` or `advance` that has seen the job's failure."""

    def __init__(self, spec: JobSpec[Any], number: int, now: float) -> None:
        self.spec = spec
        self.id = spec.options.job_id or str(number)
        self.number = number
        self._added = now
        self._now_ms = int((time.time() + now) * 1000)
        # Encode the job as for Redis, so that invalid jobs raise the same errors.
        self._encoded: EncodedJob = encode_job(spec.job, self._now_ms)
        self.raw_data = self._encoded.data
        self.due = now + self.delay
        """The earliest time to run the job, in seconds of virtual time."""
        self.place = 0
        """The job's place among those that are due at the same time. It starts before higher ones,
        and the absolute value is higher if it came later."""
        self.queue_up(self.due, is_front=spec.options.lifo)
        self.state = JobState.DELAYED if self._encoded.delay_ms else JobState.WAITING
        self._ended: float | None = None
        self.attempts = 0
        """Number of attempts made."""
        self.starts = 0
        """Number of runs, with those that ended in a wait or were released."""
        self.value: Any = None
        """The job's result, decoded from JSON."""
        self.failure: Failure | None = None
        """The failure of the last attempt that failed."""
        self.progress: Any = 0
        """The last progress that the job wrote."""
        self.logs: list[str] = []
        """The lines of the job's log."""
        self.entries: list[Entry] = []
        """The items that the job yielded, and its restarts."""
        self._last_entry = START
        self._stream_limit = 1
        self.added_cost = 0
        """Sum of the costs that the job added."""
        self.children: list[RecordedJob] = []
        """The job's children in a flow."""
        self.pending: list[RecordedJob] = []
        """The children that the job still waits for."""
        self.on_failure: OnFailure = "fail"
        """The effect of this job's failure on its parent."""
        self.spawned: list[RecordedJob] = []
        """Spawned jobs that have not been added to the box yet."""
        self.steps: dict[str, bytes] = {}
        """The job's steps, waits and signals, as in Redis. See `core.steps`."""
        self.awaited: dict[str, int | None] = {}
        """The fields in `steps` of the waits that the job is in, and their ends in milliseconds
        since 1970, if they have one."""

    @property
    def delay(self) -> float:
        """The delay before the job's first run, in seconds."""
        return self._encoded.delay_ms / 1000

    def queue_up(self, due: float, *, is_front: bool) -> None:
        """Let the job wait before or after the others that are due then."""
        self.due = due
        self.place = -next(_places) if is_front else next(_places)

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
        made, started = str(self.attempts).encode(), str(self.starts).encode()
        encoded = self._encoded
        times = (str(encoded.timestamp_ms), str(encoded.delay_ms), str(encoded.priority))
        values = [encoded.name.encode(), self.raw_data, encoded.options]
        values += [text.encode() for text in times]
        taken: list[bytes | None] = [*values, made, started]
        if self.deferred_failure is not None:
            taken += [self.deferred_failure.encode(), *[None] * (len(RUN_FIELDS) - len(taken) - 1)]
        job = replace(decode_taken(self.id.encode(), taken), queue=self.queue)
        if self.started_ms is None:
            return job
        return replace(job, processed_ms=self.started_ms, processed_by=WORKER_ID)

    def snapshot(self) -> Job:
        """Return the job as `JobHandle.info` would read it from Redis."""
        failure, job = self.failure, self.as_job()
        is_completed, is_failed = (self.state is x for x in (JobState.COMPLETED, JobState.FAILED))
        return replace(
            job,
            raw_progress=None if self.progress == 0 else payload.encode(self.progress, "progress"),
            raw_returnvalue=payload.encode(self.value, "result") if is_completed else None,
            failed_reason=failure.reason if failure is not None and is_failed else None,
            raw_stacktrace=None if failure is None else payload.encode([failure.stack], "stack"),
            finished_ms=None if self._ended is None else self.wall_ms(self._ended),
        )

    def end(self, state: JobState, now: float) -> None:
        """Store that the job has ended."""
        self.state, self._ended = state, now
        if self._last_entry.run:
            reason = self.failure.reason if self.failure and state is JobState.FAILED else ""
            last = EntryId(self._last_entry.run, LAST_NUMBER)
            self._write(Entry(last, "end", state=state.value, reason=reason))

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

    def begin_wait(
        self, call: StepCall, record: WaitRecord, now_ms: int
    ) -> tuple[bytes, bytes] | None:
        """Begin or continue a wait. Return its end and the signal's value, or None."""
        steps, end = self.steps, None
        steps.setdefault(call.field, encode_record(record))
        number = int(steps.get(f"taken:{call.name}", b"0")) + 1
        sent = steps.get(f"sent:{call.name}#{number}") if call.kind == "signal" else None
        if sent is not None:
            steps[f"taken:{call.name}"] = str(number).encode()
            end = encode_record({"at": now_ms, "sent": number})
        elif record.until is not None and record.until <= now_ms:
            end = encode_record({"at": now_ms})
        if end is None:
            self.awaited[call.field], self.has_awaited = record.until, True
            return None
        steps[f"done:{call.field}"] = end
        return end, b"" if sent is None else signal_value(sent)

    def put_signal(self, name: str, raw: bytes, now: float) -> None:
        """Store a signal, and let the job run if it waits for it.

        Raises:
            WrongState: If the job has ended.
            JobNotFound: If the job was removed.
        """
        if self.state is JobState.UNKNOWN:
            raise JobNotFound(self.queue, self.id)
        if self.ended:
            raise WrongState(self.queue, self.id, "has ended", -3, f"send signal '{name}' to")
        number = int(self.steps.get(f"count:{name}", b"0")) + 1
        self.steps[f"count:{name}"] = str(number).encode()
        self.steps[f"sent:{name}#{number}"] = b":" + raw
        field = next((one for one in self.awaited if one.startswith(f"signal:{name}#")), None)
        if field is not None:
            del self.awaited[field]
            self.release(now)

    def release(self, now: float, *, at_once: bool = False) -> None:
        """Let the job run if its waits and its children are all over, or in any case `at_once`."""
        is_over = self.wait_due(now) == now if self.awaited else not self.pending
        if (is_over or at_once) and self.state is JobState.WAITING_CHILDREN:
            delay = 0.0 if self.starts else self.delay
            self.queue_up(now + delay, is_front=not delay)
            self.state = JobState.DELAYED if delay else JobState.WAITING

    def wait_due(self, now: float) -> float | None:
        """Return the virtual time when the job runs again without a signal, or None."""
        if not self.awaited or self.pending:
            return None
        until, expires_ms = list(self.awaited.values()), self.as_job().expires_ms
        ends = [expires_ms, None if None in until else max(each for each in until if each)]
        end_ms = min((each for each in ends if each is not None), default=None)
        return None if end_ms is None else max(now, now + (end_ms - self.wall_ms(now)) / 1000)

    def open_stream(self, limit: int, life_ms: int) -> None:
        """Begin the items of a new attempt."""
        self._stream_limit = limit
        self._last_entry = EntryId(self._last_entry.run + 1, 0)
        if self._last_entry.run > 1:
            self._write(Entry(self._last_entry, "restart", attempt=self.attempts + 1))

    def emit(self, raw: bytes) -> None:
        """Add an item."""
        self._last_entry = EntryId(self._last_entry.run, self._last_entry.number + 1)
        self._write(Entry(self._last_entry, "item", raw))

    def _write(self, entry: Entry) -> None:
        self.entries.append(entry)
        del self.entries[: -self._stream_limit]

    def flush_stream(self) -> None:
        """Do nothing: all items are here."""

    def drop_children(self) -> int:
        """Remove the pending children and return their number."""
        dropped, self.pending = self.pending, []
        for child in dropped:
            child.state = JobState.UNKNOWN
        return len(dropped)


# Flows in a box: building their jobs, spawning, waiting for children, and cancelling.


def record(spec: JobSpec[Any], number: int, now: float) -> list[RecordedJob]:
    """Return the jobs of a spec, level by level, numbered from `number`.

    A spec without children has a single job.
    """
    if not spec.children and not spec.calling.needs:
        return [RecordedJob(spec, number, now)]
    specs = _specs(spec)
    members = arrange(spec.branch(), lambda place: str(number + place))
    jobs = [RecordedJob(one, number + place, now) for place, one in enumerate(specs)]
    for member, job in zip(members, jobs, strict=True):
        _connect(member, job, jobs)
    return jobs


def _specs(root: JobSpec[Any]) -> list[JobSpec[Any]]:
    """Return the specs of a flow in the same order as `arrange`."""
    found: list[JobSpec[Any]] = []
    left: list[Growing] = [root]
    while left:
        job = left.pop(0)
        spec = job if _is_spec(job) else _foreign(job, root)
        found.append(spec)
        left += [child for group in spec.children for child in group.jobs]
    return found


def _is_spec(job: Growing) -> TypeGuard[JobSpec[Any]]:
    return isinstance(job, JobSpec)


def _foreign(job: Growing, root: JobSpec[Any]) -> JobSpec[Any]:
    branch, children = job.branch(), cast("QueueJob", job).children
    return JobSpec(branch.queue.queue, branch.job, ByName(root.calling.producer), children)


def _connect(member: Member, job: RecordedJob, jobs: list[RecordedJob]) -> None:
    job.on_failure = member.on_failure
    job.children = [jobs[place] for place in member.children]
    job.pending = list(job.children)
    for child in job.children:
        child.parent = job
    if job.children:
        job.state = JobState.WAITING_CHILDREN


def spawn(parent: RecordedJob, children: Children) -> list[str]:
    """Add children to a running job; return their ids."""
    calling = ByName(parent.spec.calling.producer)
    root = JobSpec[Any](parent.queue, NewJob("parent"), calling, (children,))
    specs = _specs(root)
    first = parent.number_spawned
    members = arrange(
        root.branch(),
        lambda place: f"{parent.queue}-{parent.id}-{first + place}" if place else parent.id,
    )
    jobs = [parent]
    for place, one in enumerate(specs[1:], 1):
        job = RecordedJob(one, parent.number + first + place, parent.due)
        job.id = members[place].id
        jobs.append(job)
    for member, job in zip(members[1:], jobs[1:], strict=True):
        _connect(member, job, jobs)
    below = [jobs[place] for place in members[0].children]
    for child in below:
        child.parent = parent
    parent.children += below
    parent.pending += below
    parent.spawned += jobs[1:]
    parent.number_spawned += len(jobs) - 1
    return [child.id for child in below]


def await_children(job: RecordedJob, new: int, now: float) -> None:
    """Make a job wait for its children and waits, or run again if none is pending.

    The job will fail if it waits twice in a row without a child to wait for.
    """
    job.idle_waits = 0 if job.pending or new or job.has_awaited else job.idle_waits + 1
    if job.idle_waits > 1:
        job.deferred_failure = (
            "the task raised WaitForChildren twice in a row, and had no new child to wait for"
        )
    job.state = JobState.WAITING_CHILDREN
    job.release(now)


def refused_by_children(job: RecordedJob, outcome: Outcome) -> Outcome:
    """Return the outcome, or a failure if the job completed while children are pending."""
    if not isinstance(outcome, Complete) or not job.pending:
        return outcome
    return failed_for_good(TaskbullError(f"Job {job.id} has pending dependencies. moveToFinished"))


def cancel(job: RecordedJob, reason: str, now: float) -> Cancelled:
    """Cancel a job and its children that have not run. Ask a running job to stop.

    Raises:
        JobNotFound: If the job was removed.
    """
    if job.run is not None:
        job.run.cancel(reason)
        return Cancelled.REQUESTED
    if job.ended:
        return Cancelled.TOO_LATE
    if job.state is JobState.UNKNOWN:
        raise JobNotFound(job.queue, job.id)
    job.unreported = cancelled(reason)
    job.failure = job.unreported.failure
    job.end(JobState.FAILED, now)
    update_parent(job, now)
    cancel_children(job, now)
    return Cancelled.BEFORE_START


def cancel_children(job: RecordedJob, now: float) -> None:
    """Cancel the children that have not run, after their parent was cancelled."""
    for child in list(job.pending):
        if child.run is None and not child.ended:
            cancel(child, cancel_reason(f"parent {job.key}"), now)


def update_parent(child: RecordedJob, now: float) -> None:
    """Update the parent of a finished job, according to the child's `on_failure`.

    The parent is scheduled to run when it has no pending children. It runs earlier if the child
    failed with `on_failure` "fail" or "continue". A child that failed with "wait" stays pending.
    """
    parent = child.parent
    if parent is None or not child.ended or child not in parent.pending:
        return
    at_once = False
    if child.state is JobState.FAILED:
        if child.on_failure == "wait":
            return
        at_once = child.on_failure in {"fail", "continue"}
        if child.on_failure == "fail":
            parent.deferred_failure = f"child {child.key} failed"
    parent.pending.remove(child)
    parent.release(now, at_once=at_once)


# The `JobPort` of a job that runs in a box.


WORKER_ID = "taskbull.testing"


class BoxPort:
    """A `JobPort` that stores a job's writes in its `RecordedJob`."""

    redis_wait_seconds = 0.0
    is_virtual = True
    has_stream = False

    def __init__(self, recorded: RecordedJob, now_ms: Callable[[], int]) -> None:
        self._recorded = recorded
        self._now_ms = now_ms

    def caused(self, error: BaseException) -> bool:
        return False

    def call(self, method: PortMethod, *arguments: Any) -> Any:
        recorded = self._recorded
        match method:
            case "progress":
                recorded.progress = payload.decode(*arguments)
            case "log":
                recorded.logs.extend(arguments)
            case "update_data":
                [recorded.raw_data] = arguments
            case "add_cost":
                recorded.added_cost += sum(arguments)
            case "spawn":
                return spawn(recorded, *arguments)
            case "load_steps":
                return dict(recorded.steps)
            case "store_step":
                field, raw = arguments
                recorded.steps[field] = raw
            case "wait":
                kind, name, number, place, begun, timeout_ms = arguments
                call, now_ms = StepCall(kind, name, number, place), self._now_ms()
                return recorded.begin_wait(
                    call, wait_record(begun, place, timeout_ms, now_ms), now_ms
                )
            case "hold":
                pass
            case _:
                name = "child_results" if method == "child_results_so_far" else method
                return getattr(recorded, name)(*arguments)
        return None

    async def acall(self, method: PortMethod, *arguments: Any) -> Any:
        return self.call(method, *arguments)

    async def arecord_unknown_task(self, patience: float) -> float:
        return patience  # A box has no other workers.

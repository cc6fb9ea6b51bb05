"""Everything a queue can be asked, as calls: what the async and the sync queue share.

Users' units come in (seconds, datetimes, names of states), calls come out; nothing is sent here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.checks import check_bool, check_choice, check_int, check_text, refusal
from taskbull.core.durations import Duration, seconds, to_ms
from taskbull.core.job import Job, NewJob
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.options import JobOptions
from taskbull.core.states import MAX_PRIORITY, JobState
from taskbull.core.wire.job import EncodedJob, encode_job
from taskbull.core.wire.options import with_telemetry
from taskbull.errors import (
    ConnectionLost,
    EnqueueError,
    JobNotFound,
    MaybeExecuted,
    ServerRefused,
    TaskbullError,
)
from taskbull.observability.tracing import Tracer, current_tracer, sending
from taskbull.queue.lanes import Lanes
from taskbull.scripts import changes, inspection, limits, pausing, removal
from taskbull.scripts.add import Added, add_jobs
from taskbull.scripts.call import Command, Request
from taskbull.scripts.inspection import Metrics
from taskbull.scripts.steps import Steps

T = TypeVar("T")

Operation: TypeAlias = Request[T] | Steps[T]
"""One call, or several."""

Finished: TypeAlias = Literal["completed", "failed"]
JobEntry: TypeAlias = NewJob | tuple[str, Any] | tuple[str, Any, dict[str, Any]]
"""A job for `add_bulk`: what `queue.job` makes, or (name, data) or (name, data, options)."""

BULK = 250
"""Jobs per script call: Redis serves nobody else meanwhile, and that is a millisecond or two."""

_BULK_BYTES = 1 << 20
_DEFAULT = JobOptions()


class ConnectedWorker(Struct, frozen=True):
    """A worker that is connected to the queue, Node's or ours."""

    name: str
    """Its own name; empty if it has none."""
    address: str
    age: int
    """Seconds since it connected."""
    idle: int
    """Seconds since it last sent a command."""


class Batch(Struct, frozen=True):
    """Jobs to be added to one queue, encoded and so checked.

    `jobs` are what `EnqueueError` gives back: the jobs in the form in which the caller knows them.
    """

    jobs: Sequence[Any]
    encoded: list[EncodedJob]
    now_ms: int


class _Unsent(Exception):
    """A part of a bulk did not get through."""

    def __init__(self, error: TaskbullError, *, may_be_added: bool) -> None:
        super().__init__(error)
        self.error = error
        self.may_be_added = may_be_added


class Operations:
    """The operations of one queue; it owns the lanes of its producer side."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self._lanes = Lanes()
        self._process = os.getpid()

    def job(self, name: str, data: Any = None, **options: Any) -> NewJob:
        """Make a job to be added later, checked in full; without `data` it has an empty object."""
        # One object for all jobs without options: what stands in Redis for it is made once.
        chosen = JobOptions(**_known(options)) if options else _DEFAULT
        return NewJob(name, {} if data is None else data, chosen)

    def add(self, batch: Batch) -> Steps[list[Added]]:
        """Add jobs, in order; in a span, where the application traces."""
        tracer = current_tracer()
        return self._add(batch) if tracer is None else self._add_traced(batch, tracer)

    def _add_traced(self, batch: Batch, tracer: Tracer) -> Steps[list[Added]]:
        jobs = batch.encoded
        names, contexts = [job.name for job in jobs], [job.telemetry for job in jobs]
        with sending(tracer, self.keys.queue, names, contexts) as span:
            traced = [_with_telemetry(job, span.telemetry(job.telemetry)) for job in jobs]
            added = yield from self._add(replace(batch, encoded=traced))
            span.sent([one.id for one in added])
        return added

    def _add(self, batch: Batch) -> Steps[list[Added]]:
        added: list[Added] = []
        for part in _parts(batch.encoded):
            try:
                added += yield from self._add_part(part, batch.now_ms)
            except _Unsent as unsent:
                rest = list(batch.jobs[len(added) :])
                raise EnqueueError(
                    f"Queue {self.keys.queue}: {len(rest)} of {len(batch.jobs)} jobs were not "
                    f"added: {unsent.error}",
                    rest,
                    may_be_added=unsent.may_be_added,
                ) from unsent.error
        return added

    @staticmethod
    def batch(jobs: Sequence[NewJob], known_as: Sequence[Any] | None = None) -> Batch:
        """Encode jobs, so that all are checked before the first is sent."""
        now_ms = _now_ms()
        encoded = [encode_job(job, now_ms) for job in jobs]
        return Batch(jobs if known_as is None else known_as, encoded, now_ms)

    def _add_part(self, jobs: Sequence[EncodedJob], now_ms: int) -> Steps[list[Added]]:
        if self._process != os.getpid():  # forked: the lanes are the parent's
            self._lanes, self._process = Lanes(), os.getpid()
        with self._lanes.borrowed() as lane:
            call = add_jobs(self.keys, jobs, now_ms, lane)
            may_be_added = False
            while True:
                try:
                    added: list[Added] = yield call
                except MaybeExecuted:
                    may_be_added = True  # the script knows: sent again, it gives its first answer
                except (ConnectionLost, ServerRefused) as error:
                    raise _Unsent(error, may_be_added=may_be_added) from error
                else:
                    return added

    def entries(self, jobs: Sequence[JobEntry]) -> list[NewJob]:
        """Read the jobs of a bulk."""
        return [self._entry(place, job) for place, job in enumerate(jobs)]

    def _entry(self, place: int, job: JobEntry) -> NewJob:
        match job:
            case NewJob():
                return job
            case (name, data):
                return self.job(name, data)
            case (name, data, dict(options)):
                return self.job(name, data, **options)
            case _:
                raise refusal(f"jobs[{place}]", "be queue.job(…) or (name, data, options)", job)

    def _id(self, job_id: str) -> str:
        """Give the id of a job that is to be changed; what names another key is no job."""
        if check_text("job_id", job_id) in RESERVED_IDS:
            raise JobNotFound(self.keys.queue, job_id)
        return job_id

    def counts(self) -> Request[dict[str, int]]:
        return inspection.count_jobs(self.keys)

    def get_job(self, job_id: str) -> Request[Job | None]:
        return inspection.get_job(self.keys, check_text("job_id", job_id))

    def get_jobs(self, state: JobState | str, start: int, end: int) -> Steps[list[Job]]:
        wanted = _state(state)
        newest_first = wanted in {JobState.COMPLETED, JobState.FAILED}
        return inspection.get_jobs(self.keys, wanted, start, end, ascending=not newest_first)

    def get_state(self, job_id: str) -> Request[JobState]:
        return inspection.get_state(self.keys, check_text("job_id", job_id))

    def pause(self) -> Steps[None]:
        return pausing.pause(self.keys)

    def resume(self) -> Steps[None]:
        return pausing.resume(self.keys)

    def is_paused(self) -> Request[bool]:
        return pausing.is_paused(self.keys)

    def drain(self, *, delayed: bool) -> Steps[int]:
        check_bool("delayed", delayed)
        return removal.drain(self.keys, delayed=delayed)

    def clean(self, grace: Duration, limit: int, state: JobState | str) -> Steps[list[str]]:
        check_int("limit", limit, least=0)
        until_ms = _now_ms() - to_ms(seconds("grace", grace))
        return removal.clean(self.keys, _state(state), until_ms, limit=limit)

    def obliterate(self, *, force: bool) -> Steps[None]:
        check_bool("force", force)
        return removal.obliterate(self.keys, force=force)

    def remove(self, job_id: str) -> Request[bool]:
        return removal.remove_job(self.keys, self._id(job_id))

    def retry(self, job_id: str, state: Finished) -> Request[None]:
        check_choice("state", state, ("completed", "failed"))
        return changes.retry_job(self.keys, self._id(job_id), state)

    def retry_all(self, state: Finished) -> Steps[int]:
        check_choice("state", state, ("completed", "failed"))
        return changes.retry_jobs(self.keys, _now_ms(), state)

    def promote(self, job_id: str) -> Request[None]:
        return changes.promote_job(self.keys, self._id(job_id))

    def promote_all(self) -> Steps[int]:
        return changes.promote_jobs(self.keys)

    def change_priority(self, job_id: str, priority: int, *, lifo: bool) -> Request[None]:
        check_int("priority", priority, least=0, most=MAX_PRIORITY)
        check_bool("lifo", lifo)
        job = self._id(job_id)
        return changes.change_priority(self.keys, job, priority, lifo=lifo)

    def change_delay(self, job_id: str, delay: Duration) -> Request[None]:
        delay_ms = to_ms(seconds("delay", delay))
        return changes.change_delay(self.keys, self._id(job_id), delay_ms, _now_ms())

    def logs(self, job_id: str, start: int, end: int) -> Request[inspection.Logs]:
        return inspection.get_logs(self.keys, check_text("job_id", job_id), start, end)

    def workers(self) -> Request[list[ConnectedWorker]]:
        name = self.keys.connection_name()
        return Command(("CLIENT", "LIST"), self.keys.base, lambda reply: _workers(reply, name))

    def set_global_concurrency(self, limit: int | None) -> Request[None]:
        if limit is not None:
            check_int("global concurrency", limit, least=1)
        return limits.set_global_concurrency(self.keys, limit)

    def set_global_rate_limit(self, max_jobs: int | None, duration: Duration) -> Request[None]:
        if max_jobs is None:
            return limits.set_global_rate_limit(self.keys, None)
        check_int("max", max_jobs, least=1)
        window_ms = to_ms(seconds("duration", duration, positive=True))
        return limits.set_global_rate_limit(self.keys, (max_jobs, window_ms))

    def rate_limit(self, duration: Duration) -> Request[None]:
        return limits.rate_limit(self.keys, to_ms(seconds("duration", duration, positive=True)))

    def metrics(self, state: Finished) -> Request[Metrics]:
        check_choice("state", state, ("completed", "failed"))
        return inspection.get_metrics(self.keys, JobState(state))

    def trim_events(self, length: int) -> Request[int]:
        check_int("length", length, least=0)
        return limits.trim_events(self.keys, length)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        raise refusal("state", f"be one of {', '.join(JobState)}", state) from None


def _known(options: dict[str, Any]) -> dict[str, Any]:
    known = JobOptions.__struct_fields__
    for name in options:
        if name not in known:
            raise refusal("option", f"be one of {', '.join(known)}", name)
    return options


def _with_telemetry(job: EncodedJob, telemetry: str | None) -> EncodedJob:
    if telemetry is None or telemetry == job.telemetry:
        return job
    options = with_telemetry(job.options, telemetry, instead_of=job.telemetry)
    return replace(job, options=options, telemetry=telemetry)


def _parts(jobs: Sequence[EncodedJob]) -> list[list[EncodedJob]]:
    """Divide jobs so that no script call holds Redis, or the connection, for long."""
    parts: list[list[EncodedJob]] = []
    size = _BULK_BYTES
    for job in jobs:
        length = len(job.data) + len(job.options)
        if size + length > _BULK_BYTES or len(parts[-1]) >= BULK:
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += length
    return parts


def _workers(reply: bytes, name: str) -> list[ConnectedWorker]:
    workers: list[ConnectedWorker] = []
    for line in reply.decode("utf-8", "backslashreplace").splitlines():
        client = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        own = client.get("name", "")
        if own == name or own.startswith(f"{name}:w:"):
            address, age, idle = client.get("addr", ""), client["age"], client["idle"]
            workers.append(ConnectedWorker(own[len(name) + 3 :], address, int(age), int(idle)))
    return workers

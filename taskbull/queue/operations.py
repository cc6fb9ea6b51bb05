"""Everything a queue can be asked, as calls: what the async and the sync queue share.

Users' units come in (seconds, datetimes, names of states), calls come out; nothing is sent here.
"""

from __future__ import annotations

import time
from typing import Any, Literal, TypeAlias, Unpack

from taskbull.core.checks import check_bool, check_choice, check_int, check_text, refusal
from taskbull.core.durations import Duration, seconds, to_ms
from taskbull.core.job import Job, NewJob
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.keywords import check_keywords
from taskbull.core.options import JobKeywords, JobOptions
from taskbull.core.states import MAX_PRIORITY, JobState
from taskbull.errors import (
    JobNotFound,
)
from taskbull.scripts import changes, inspection, limits, removal, servers
from taskbull.scripts.call import Request, Steps
from taskbull.scripts.inspection import QueueMetrics
from taskbull.scripts.servers import ConnectedWorker

Finished: TypeAlias = Literal["completed", "failed"]
JobEntry: TypeAlias = NewJob | tuple[str, Any] | tuple[str, Any, dict[str, Any]]
"""A job for `add_bulk`: what `queue.job` makes, or (name, data) or (name, data, options)."""

_DEFAULT = JobOptions()


class Operations:
    """The operations of one queue, but for adding to it: see `adder`."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys

    def job(self, name: str, data: Any = None, **options: Unpack[JobKeywords]) -> NewJob:
        """Make a job to be added later, checked in full; without `data` it has an empty object."""
        # One object for all jobs without options: what stands in Redis for it is made once.
        chosen = _DEFAULT
        if options:
            check_keywords("queue.add", options, JobKeywords)
            chosen = JobOptions(**options)
        return NewJob(name, {} if data is None else data, chosen)

    def entry(self, place: int, job: JobEntry) -> NewJob:
        """Read a job of a bulk."""
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
        return limits.pause(self.keys)

    def resume(self) -> Steps[None]:
        return limits.resume(self.keys)

    def is_paused(self) -> Request[bool]:
        return limits.is_paused(self.keys)

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
        return servers.list_workers(self.keys)

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

    def metrics(self, state: Finished) -> Request[QueueMetrics]:
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

"""Looking at a queue: how many jobs there are, which, and what stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core.job import Ending, Job
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.job import decode_job
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import Call, Command, Steps
from taskbull.scripts.loader import load
from taskbull.scripts.replies import accepted, number, text, texts

COUNT_JOBS = load("count_jobs")
COUNT_PRIORITIES = load("count_priorities")
COUNT_CHILDREN = load("count_children")
GET_LISTED = load("get_listed")
GET_SORTED = load("get_sorted")
GET_STATE = load("get_state")
GET_ENDING = load("get_ending")
GET_LOGS = load("get_logs")
GET_METRICS = load("get_metrics")
NAMES_WAITING = load("names_waiting")

PAGE: Final = 500
"""How many jobs one call reads: 2 ms, if they are small."""


PAGE_BYTES: Final = 32_768
"""After how many bytes a call reads no more: some servers end a connection that is given more."""


class Page(Struct, frozen=True):
    """Jobs that were read in one call."""

    looked_at: int
    """How many places were looked at; 0: there are no more."""
    jobs: list[Job]


class Counts(dict[str, int]):
    """How many jobs are in each state: by `JobState`, or by its name. Shown with plain names."""

    def __repr__(self) -> str:
        return repr({str(state): count for state, count in self.items()})


class Logs(Struct, frozen=True):
    """Some lines of a job's log, and how many there are in all."""

    lines: list[str]
    count: int


class QueueMetrics(Struct, frozen=True):
    """How many jobs have ended: in all, and in each minute, the newest first."""

    count: int
    previous_ms: int
    previous_count: int
    points: list[int]
    point_count: int


class ChildCounts(Struct, frozen=True):
    """How many children of a job there are, by what became of them."""

    processed: int
    unprocessed: int
    ignored: int
    failed: int


_COUNTED: Final = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.DELAYED,
    JobState.PRIORITIZED,
    JobState.WAITING_CHILDREN,
    JobState.PAUSED,
)


def count_jobs(queue: QueueKeys) -> Call[Counts]:
    """Count the jobs in each state; those parked by a pause count as `paused`, not `waiting`."""
    keys = (
        queue.wait,
        queue.active,
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.paused,
    )
    return Call(COUNT_JOBS, keys, (), lambda reply: Counts(zip(_COUNTED, reply, strict=True)))


def count_priorities(queue: QueueKeys, priorities: Sequence[int]) -> Call[dict[int, int]]:
    """Count the jobs that wait for their turn with each of the priorities."""
    keys = (queue.wait, queue.paused, queue.prioritized)
    packed = msgspec.msgpack.encode(list(priorities))
    return Call(
        COUNT_PRIORITIES, keys, (packed,), lambda reply: dict(zip(priorities, reply, strict=True))
    )


def count_children(queue: QueueKeys, job_id: str) -> Call[ChildCounts]:
    """Count the children of a job by what became of them."""
    keys = (
        queue.processed(job_id),
        queue.dependencies(job_id),
        queue.failed_children(job_id),
        queue.unsuccessful(job_id),
    )
    return Call(COUNT_CHILDREN, keys, (), lambda reply: ChildCounts(*reply))


def get_jobs(
    queue: QueueKeys,
    state: JobState,
    start: int = 0,
    stop: int = -1,
    *,
    ascending: bool = True,
    page: int = PAGE,
) -> Steps[list[Job]]:
    """Read as many jobs as there are places from `start` to `stop`, in pieces of bounded size.

    Ascending: the oldest first, in `delayed` the first to be due, in `prioritized` the most urgent.
    A negative `stop` counts from the end. Ids without a job are left out, and others come instead.
    """
    jobs: dict[str, Job] = {}
    if stop < 0:
        stop += yield _count(queue, state)
    place, wanted = start, stop - start + 1
    while len(jobs) < wanted:
        last = place + min(page, wanted - len(jobs)) - 1
        found: Page = yield get_page(queue, state, place, last, ascending=ascending)
        if found.looked_at == 0:
            break
        jobs.update((job.id, job) for job in found.jobs)
        place += found.looked_at
    return list(jobs.values())


def get_page(
    queue: QueueKeys, state: JobState, start: int, stop: int, *, ascending: bool = True
) -> Call[Page]:
    """Read the jobs from place `start` to `stop`, or the first of them, as one reply holds."""
    args = (queue.base, start, stop, int(ascending), PAGE_BYTES)
    match state:
        case JobState.WAITING:  # whoever paused the queue, and however
            return Call(GET_LISTED, (queue.wait, queue.paused), args, _page)
        case JobState.PAUSED | JobState.ACTIVE:
            key = queue.paused if state is JobState.PAUSED else queue.active
            return Call(GET_LISTED, (key, queue.private("none")), args, _page)
        case _:
            return Call(GET_SORTED, (_sorted(queue, state),), args, _page)


def get_job(queue: QueueKeys, job_id: str) -> Command[Job | None]:
    """Read one job."""
    key = queue.job(job_id)

    def read(fields: list[bytes]) -> Job | None:
        return decode_job(job_id.encode(), fields) if fields else None

    return Command(("HGETALL", key), key, read)


def get_state(queue: QueueKeys, job_id: str) -> Call[JobState]:
    """Find out in which state a job is."""
    keys = (
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.active,
        queue.wait,
        queue.paused,
    )
    return Call(GET_STATE, keys, (job_id,), lambda reply: JobState(text(reply)))


def get_ending(queue: QueueKeys, job_id: str) -> Call[Ending | None]:
    """Find out how a job has ended; None: not yet."""
    check = accepted(queue, job_id)

    def read(reply: Any) -> Ending | None:
        code, outcome = reply
        match check(code):
            case 1:
                return Ending(JobState.COMPLETED, raw_value=outcome or b"null")
            case 2:
                return Ending(JobState.FAILED, failed_reason=text(outcome))
            case _:
                return None

    keys = (queue.job(job_id), queue.completed, queue.failed)
    return Call(GET_ENDING, keys, (job_id,), read)


def get_logs(
    queue: QueueKeys, job_id: str, start: int = 0, stop: int = -1, *, ascending: bool = True
) -> Call[Logs]:
    """Read lines of a job's log, from place `start` to `stop`, both included."""
    args = (start, stop, int(ascending))
    return Call(GET_LOGS, (queue.logs(job_id),), args, lambda r: Logs(texts(r[0]), r[1]))


def get_metrics(
    queue: QueueKeys, state: JobState, start: int = 0, stop: int = -1
) -> Call[QueueMetrics]:
    """Read how many jobs have completed, or failed; `start` and `stop` choose the minutes."""
    keys = (queue.metrics_failed, queue.metrics_failed_data)
    if state is JobState.COMPLETED:
        keys = (queue.metrics_completed, queue.metrics_completed_data)
    return Call(GET_METRICS, keys, (start, stop), _metrics)


def names_waiting(queue: QueueKeys, most: int) -> Call[list[str]]:
    """Return the names of the jobs that come next, up to `most` in each state."""
    keys = (queue.wait, queue.paused, queue.prioritized, queue.delayed)
    return Call(NAMES_WAITING, keys, (queue.base, most), texts)


def _count(queue: QueueKeys, state: JobState) -> Call[int]:
    counts = count_jobs(queue)

    def read(reply: Any) -> int:
        count = counts.parse(reply)
        parked = count[JobState.PAUSED] if state is JobState.WAITING else 0
        return count[state] + parked

    return Call(counts.script, counts.keys, counts.args, read)


def _sorted(queue: QueueKeys, state: JobState) -> str:
    sets = {
        JobState.COMPLETED: queue.completed,
        JobState.FAILED: queue.failed,
        JobState.DELAYED: queue.delayed,
        JobState.PRIORITIZED: queue.prioritized,
        JobState.WAITING_CHILDREN: queue.waiting_children,
    }
    if state not in sets:
        raise ConfigurationError(f"there is no list of jobs in state {state}")
    return sets[state]


def _page(reply: Any) -> Page:
    looked_at, flat = reply
    jobs = [decode_job(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
    return Page(looked_at, jobs)


def _metrics(reply: Any) -> QueueMetrics:
    (count, previous_ms, previous_count), points, point_count = reply
    return QueueMetrics(
        number(count),
        number(previous_ms),
        number(previous_count),
        [number(point) for point in points],
        point_count,
    )

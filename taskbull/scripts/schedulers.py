"""Calls that store, list and remove job schedulers, add their next runs and find past runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.job import Job
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.schedule import Schedule
from taskbull.core.wire import schedule as wire
from taskbull.errors import TaskbullError
from taskbull.scripts.browse import instant_of
from taskbull.scripts.call import Call, Steps, load, text

# Past runs of schedules.

FIND_RUN = load("find_run")


class ScheduledRun(Struct, frozen=True):
    """A run of a schedule that is still stored."""

    id: str
    state: JobState
    """Its state: completed, failed, active or waiting. Waiting includes waiting for a retry."""
    started: datetime | None
    finished: datetime | None


def find_run(
    queue: QueueKeys, scheduler_id: str, due_ms: Sequence[int]
) -> Call[ScheduledRun | None]:
    """Find the first stored run among those due at the given times, or None.

    It runs one command per missing run and at most 8 commands for the run that it finds.
    """

    def read(reply: list[bytes]) -> ScheduledRun | None:
        if not reply:
            return None
        job_id, state, started, finished = reply
        return ScheduledRun(
            text(job_id), JobState(text(state)), instant_of(started), instant_of(finished)
        )

    ids = [wire.run_id(scheduler_id, due) for due in due_ms]
    keys = (queue.completed, queue.failed)
    return Call(FIND_RUN, keys, (queue.base, msgspec.msgpack.encode(ids)), read)


# Job schedulers. When a worker fetches one run of a scheduler, it adds the next run.

ADVANCE_SCHEDULER = load("advance_scheduler")
GET_SCHEDULERS = load("get_schedulers")
REMOVE_SCHEDULER = load("remove_scheduler")
UPSERT_SCHEDULER = load("upsert_scheduler")

_PAGE = 250
"""Approximate number of schedulers that one call reads."""


class Upserted(Struct, frozen=True):
    """The result of storing a schedule."""

    job_id: str
    """Job id of the next run."""
    is_changed: bool
    """True if anything was stored."""


def upsert_scheduler(
    queue: QueueKeys, scheduler_id: str, schedule: wire.EncodedSchedule, now_ms: int, *, keeps: bool
) -> Call[Upserted]:
    """Create or change a scheduler, and add its next run in place of a pending one.

    With `keeps`, nothing is changed if an identical scheduler exists and either its next run exists
    or its limit is reached. Raises `TaskbullError` if another job has the id of the next run.
    """
    keys = (queue.repeat, queue.scheduler(scheduler_id), *_places(queue))
    args = (
        queue.base,
        scheduler_id,
        now_ms,
        _or_empty(schedule.due_ms),
        _or_empty(schedule.every_ms),
        _or_empty(schedule.offset_ms),
        _or_empty(schedule.start_ms),
        msgspec.msgpack.encode(schedule.fields),
        schedule.name,
        schedule.data,
        schedule.options,
        int(keeps),
    )
    return Call(UPSERT_SCHEDULER, keys, args, lambda reply: _upserted(scheduler_id, reply))


def declare_scheduler(
    queue: QueueKeys, app: str, declared: DeclaredSchedule, now_ms: int
) -> Call[Upserted] | None:
    """Store a scheduler that an app declares, unless an identical one exists.

    Returns None if the schedule's end has passed. Repeating the call has no effect.
    """
    if wire.is_over(declared.rule, now_ms):
        return None
    encoded = wire.encode_schedule(declared.rule, declared.job, now_ms, app)
    return upsert_scheduler(queue, declared.id, encoded, now_ms, keeps=True)


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number


def _upserted(scheduler_id: str, reply: list[Any]) -> Upserted:
    job_id, code = reply
    if code < 0:
        raise TaskbullError(
            f"Schedule {scheduler_id!r} was not changed: a job with the id of its next run exists"
        )
    return Upserted(text(job_id), code == 1)


def remove_scheduler(queue: QueueKeys, scheduler_id: str) -> Call[bool]:
    """Remove a scheduler, and its next run if that is delayed.

    Returns False if the scheduler does not exist.
    """
    keys = (queue.repeat, queue.scheduler(scheduler_id), queue.delayed, queue.events)
    return Call(
        REMOVE_SCHEDULER, keys, (queue.base, scheduler_id, wire.run_part(scheduler_id)), bool
    )


class SchedulerPage(Struct, frozen=True):
    """A page of a queue's schedulers."""

    schedules: list[Schedule]
    cursor: str | None
    """Cursor for the next page, or None if this is the last page."""


def list_schedulers(queue: QueueKeys, declared_by: str | None = None) -> Steps[list[Schedule]]:
    """Read all schedulers, or those that an app declares, sorted by their next run."""
    found: dict[str, Schedule] = {}
    cursor: str | None = "0"
    while cursor is not None:
        page: SchedulerPage = yield get_schedulers(queue, cursor, declared_by)
        found.update((each.id, each) for each in page.schedules)
        cursor = page.cursor
    never = datetime.max.replace(tzinfo=UTC)
    return sorted(found.values(), key=lambda each: (each.next_run or never, each.id))


def get_schedulers(
    queue: QueueKeys, cursor: str, declared_by: str | None = None
) -> Call[SchedulerPage]:
    """Read a page of the schedulers, in no particular order.

    A scheduler may be on several pages.
    """
    args = (queue.base, "", cursor, _PAGE, declared_by or "")
    return Call(GET_SCHEDULERS, (queue.repeat,), args, lambda reply: _page(queue, reply))


def get_scheduler(queue: QueueKeys, scheduler_id: str) -> Call[Schedule | None]:
    """Read one scheduler, or None if it does not exist."""
    args = (queue.base, scheduler_id, "0", 0, "")
    return Call(
        GET_SCHEDULERS,
        (queue.repeat,),
        args,
        lambda reply: next(iter(_page(queue, reply).schedules), None),
    )


def _page(queue: QueueKeys, reply: list[Any]) -> SchedulerPage:
    cursor, *rest = reply
    found = [
        wire.decode_schedule(queue.queue, *each) for each in zip(*[iter(rest)] * 4, strict=True)
    ]
    return SchedulerPage(found, None if cursor == b"0" else text(cursor))


class Advanced(Struct, frozen=True):
    """The result of adding a scheduler's next run."""

    job_id: str | None
    """Job id of the new run, or None if the scheduler is gone or another call added the run."""
    passed_ms: int | None = None
    """Time of the last run that was skipped because another job has its id."""


def advance_scheduler(
    queue: QueueKeys, job: Job, now_ms: int, after_ms: int = 0
) -> Call[Advanced] | None:
    """Add the run that follows a fetched run. Return None if there is no following run.

    Run the call after fetching the job and before running it. Repeating it, or making it for a
    retry, has no effect. If the result has a skipped time and no job id, make the call again with
    that time as `after_ms`.

    Raises `ConfigurationError` if the rule is invalid. The job still runs, as the scheduler's last.
    """
    if job.scheduler_id is None:
        return None
    old = wire.read_old_key(job.scheduler_id)
    following = wire.next_run(job.options, now_ms, after_ms=after_ms, is_old=old is not None)
    if following is None:
        return None
    scheduler = queue.scheduler(job.scheduler_id)
    keys = (queue.repeat, scheduler, queue.job(job.id), *_places(queue))
    args = (
        queue.base,
        job.scheduler_id,
        job.id,
        now_ms,
        following.count,
        _or_empty(following.due_ms),
        after_ms or "",
        "" if old is None else old.run_part,
    )
    return Call(ADVANCE_SCHEDULER, keys, args, _advanced)


def _advanced(reply: list[Any]) -> Advanced:
    job_id, passed = map(text, reply)
    return Advanced(job_id or None, int(passed) if passed else None)


def _places(queue: QueueKeys) -> tuple[str, ...]:
    """Return the keys that a script needs to add a run."""
    lists = (queue.wait, queue.paused, queue.active)
    return (queue.meta, *lists, queue.prioritized, queue.delayed, queue.events)

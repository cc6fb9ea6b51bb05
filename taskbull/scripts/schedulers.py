"""Job schedulers: taking one run of a scheduler adds the next."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.rules import Schedule
from taskbull.core.schedule import next_run
from taskbull.core.wire.schedule import EncodedSchedule, decode_schedule
from taskbull.errors import TaskbullError
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text

ADVANCE_SCHEDULER = load("advance_scheduler")
GET_SCHEDULERS = load("get_schedulers")
REMOVE_SCHEDULER = load("remove_scheduler")
UPSERT_SCHEDULER = load("upsert_scheduler")


class Upserted(Struct, frozen=True):
    """What became of a schedule that was to be written."""

    job_id: str
    """Of the run that comes next."""
    is_changed: bool
    """Whether anything was written."""


def upsert_scheduler(
    queue: QueueKeys, scheduler_id: str, schedule: EncodedSchedule, now_ms: int, *, keeps: bool
) -> Call[Upserted]:
    """Make a scheduler or change it, and add its next run in place of a pending one.

    With `keeps`, one that stands there as it is, with its next run, is left alone.
    """
    keys = (
        queue.repeat,
        queue.scheduler(scheduler_id),
        queue.meta,
        queue.wait,
        queue.paused,
        queue.active,
        queue.prioritized,
        queue.delayed,
        queue.events,
    )
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


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number


def _upserted(scheduler_id: str, reply: list[Any]) -> Upserted:
    job_id, code = reply
    if code < 0:
        raise TaskbullError(
            f"schedule {scheduler_id!r} was not changed: there is a job at the time of its next run"
        )
    return Upserted(text(job_id), code == 1)


def remove_scheduler(queue: QueueKeys, scheduler_id: str) -> Call[bool]:
    """Remove a scheduler, and its next run if that is delayed; the call gives whether it was."""
    keys = (queue.repeat, queue.scheduler(scheduler_id), queue.delayed, queue.events)
    return Call(REMOVE_SCHEDULER, keys, (queue.base, scheduler_id), bool)


def get_schedulers(queue: QueueKeys, start: int, end: int) -> Call[list[Schedule]]:
    """Read schedulers, by the time of their next runs."""
    args = (queue.base, start, end, "")
    return Call(GET_SCHEDULERS, (queue.repeat,), args, lambda reply: _schedules(queue, reply))


def get_scheduler(queue: QueueKeys, scheduler_id: str) -> Call[Schedule | None]:
    """Read one scheduler; None if there is none of this id."""
    args = (queue.base, 0, 0, scheduler_id)
    return Call(
        GET_SCHEDULERS,
        (queue.repeat,),
        args,
        lambda reply: next(iter(_schedules(queue, reply)), None),
    )


def _schedules(queue: QueueKeys, reply: list[Any]) -> list[Schedule]:
    return [decode_schedule(queue.queue, *each) for each in zip(*[iter(reply)] * 4, strict=True)]


def advance_scheduler(queue: QueueKeys, job: Job, now_ms: int) -> Call[str | None] | None:
    """Add what follows a run that was taken; None if nothing does. The call gives the id, if any.

    To be run after the take and before the job; doing it again, or for a retry, does nothing. A
    rule that cannot be read is a `ConfigurationError`: the job runs, and is the scheduler's last.
    """
    if job.scheduler_id is None:
        return None
    following = next_run(job.options, now_ms)
    if following is None:
        return None
    keys = (
        queue.repeat,
        queue.scheduler(job.scheduler_id),
        queue.job(job.id),
        queue.meta,
        queue.wait,
        queue.paused,
        queue.active,
        queue.prioritized,
        queue.delayed,
        queue.events,
    )
    due = "" if following.due_ms is None else following.due_ms
    args = (queue.base, job.scheduler_id, job.id, now_ms, following.count, due)
    return Call(ADVANCE_SCHEDULER, keys, args, lambda reply: text(reply) or None)

"""Job schedulers: taking one run of a scheduler adds the next."""

from __future__ import annotations

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.schedule import next_run
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text

ADVANCE_SCHEDULER = load("advance_scheduler")


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
        queue.id,
        queue.meta,
        queue.wait,
        queue.paused,
        queue.active,
        queue.prioritized,
        queue.priority_counter,
        queue.delayed,
        queue.marker,
        queue.events,
    )
    due = "" if following.due_ms is None else following.due_ms
    args = (queue.base, job.scheduler_id, job.id, now_ms, following.count, due)
    return Call(ADVANCE_SCHEDULER, keys, args, lambda reply: text(reply) or None)

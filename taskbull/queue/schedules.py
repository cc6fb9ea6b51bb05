"""Queue methods that create, change and remove schedules at run time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from taskbull.core import payload
from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.flow import Growing, check_single, is_job
from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.schedule import Rule, Schedule, check_rule, check_schedule_id
from taskbull.core.validation import check_text, refusal
from taskbull.core.wire.schedule import encode_run, encode_schedule
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    EnqueueError,
    MaybeExecuted,
    ScheduleNotFound,
    ServerRefused,
)
from taskbull.queue.add import Unsent
from taskbull.queue.handle import JobHandle, QueueClient, handle
from taskbull.queue.methods import reads, writes
from taskbull.scripts.call import Operation, Steps, again
from taskbull.scripts.schedulers import (
    declare_scheduler,
    get_scheduler,
    list_schedulers,
    remove_scheduler,
    upsert_scheduler,
)

ScheduledJob: TypeAlias = NewJob | Growing
"""Job that a schedule adds periodically, made with `task.job(…)` or `queue.job(…)`."""


class ScheduleOperations:
    """Operations of a queue on its schedules."""

    keys: QueueKeys
    _client: QueueClient

    @writes
    def upsert_schedule(self, id: str, rule: Rule, job: ScheduledJob) -> Operation[Schedule]:  # noqa: A002
        """Create or replace a schedule, and return it with its next run.

        A pending run is replaced.

        Args:
            id: Id of the schedule.
            rule: A `Cron` or an `Every`.
            job: Job to add, made with `task.job(…)` or `queue.job(…)`.

        Raises:
            ConfigurationError: If an argument is invalid, or the job belongs to another queue.

        Example:
            >>> await queue.upsert_schedule("nightly", Cron("0 3 * * *"), report.job("sales"))
        """
        check_schedule_id(id)
        check_rule(rule)
        return _upsert(self.keys, id, rule, template_of(job, self.keys))

    @writes
    def declare_schedules(
        self, app: str, declared: Sequence[DeclaredSchedule]
    ) -> Operation[list[str]]:
        """Write the schedules that an app declares, and return the ids that changed.

        Workers do this when they start.
        """
        return _declare(self.keys, app, declared)

    @reads
    def schedules(self) -> Operation[list[Schedule]]:
        """Return the schedules by time of the next run. Schedules that have ended come last."""
        return list_schedulers(self.keys)

    @reads
    def get_schedule(self, id: str) -> Operation[Schedule | None]:  # noqa: A002
        """Return a schedule as stored in Redis, or None if it does not exist."""
        return get_scheduler(self.keys, check_text("schedule id", id))

    @writes
    def remove_schedule(self, id: str) -> Operation[bool]:  # noqa: A002
        """Remove a schedule and its next run. Return False if it does not exist.

        A run that has already started continues.
        """
        return remove_scheduler(self.keys, check_text("schedule id", id))

    @writes
    def run_schedule_now(self, id: str) -> Operation[JobHandle[Any]]:  # noqa: A002
        """Add one extra job of a schedule immediately. Its next run is unchanged.

        The job is never added twice.

        Raises:
            ScheduleNotFound: If the schedule does not exist.
            EnqueueError: If the job could not be added.
        """
        return _run_now(self._client, check_text("schedule id", id))


def template_of(job: ScheduledJob, queue: QueueKeys) -> NewJob:
    """Return the job that a schedule adds.

    Raises:
        ConfigurationError: If the job belongs to another queue or is a flow.
    """
    if not is_job(job):
        if isinstance(job, NewJob):
            return job
        raise refusal("job", "be created with task.job(…) or queue.job(…)", job)
    branch = job.branch()
    check_single(branch.job.name, branch.children, branch.needs)
    own, other = queue.queue, branch.queue.queue
    if other != own:
        raise ConfigurationError(
            f"the job belongs to queue '{other}', but the schedule to queue '{own}': use "
            f"app.queue({other!r}), or task.options(queue={own!r}).job(…)"
        )
    return branch.job


def _upsert(keys: QueueKeys, schedule_id: str, rule: Rule, template: NewJob) -> Steps[Schedule]:
    now_ms = int(time.time() * 1000)
    encoded = encode_schedule(rule, template, now_ms)
    lost: MaybeExecuted | None = None
    while True:
        # A call sent again keeps what the first one may have written: the first run may have
        # started.
        call = upsert_scheduler(keys, schedule_id, encoded, now_ms, keeps=lost is not None)
        try:
            yield call
        except MaybeExecuted as error:
            lost = error
        except (ConnectionLost, ServerRefused) as error:
            raise lost or error from error.__cause__
        else:
            break
    written = yield from _read(keys, schedule_id)
    if written is None:
        raise ScheduleNotFound(keys.queue, schedule_id, "it was removed right after it was written")
    return written


def _declare(keys: QueueKeys, app: str, declared: Sequence[DeclaredSchedule]) -> Steps[list[str]]:
    changed: list[str] = []
    for each in declared:
        call = declare_scheduler(keys, app, each, int(time.time() * 1000))
        if call is not None and (yield from again(call)).is_changed:
            changed.append(each.id)
    return changed


def _read(keys: QueueKeys, schedule_id: str) -> Steps[Schedule | None]:
    return (yield from again(get_scheduler(keys, schedule_id)))


def _run_now(client: QueueClient, schedule_id: str) -> Steps[JobHandle[Any]]:
    keys = client.keys
    schedule = yield from _read(keys, schedule_id)
    if schedule is None:
        raise ScheduleNotFound(keys.queue, schedule_id)
    job = encode_run(schedule, int(time.time() * 1000))
    added = yield from client.adder.add((job,))
    if isinstance(added, Unsent):
        raise EnqueueError(
            f"Schedule '{schedule_id}' in queue '{keys.queue}' was not run: {added.error}",
            (),
            may_be_added=added.sent_ms is not None,
        ) from added.error
    return handle(client, schedule.task, added[0], payload.decode)

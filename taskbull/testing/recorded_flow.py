"""Flows in a box: building their jobs, spawning, waiting for children, and cancelling."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

from taskbull.app.producer import ByName, JobSpec
from taskbull.core.cancelling import Cancelled, cancel_reason, cancelled
from taskbull.core.flow import Children, Growing, Member, arrange
from taskbull.core.job import NewJob
from taskbull.core.outcome import Complete, Outcome
from taskbull.core.retry import failed_for_good
from taskbull.core.states import JobState
from taskbull.errors import JobNotFound, TaskbullError
from taskbull.queue.queue import QueueJob
from taskbull.testing.recorded_job import RecordedJob


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


def await_children(job: RecordedJob, new: int) -> None:
    """Make a job wait for its children, or run again if none is pending.

    The job will fail if it waits twice in a row without a child to wait for.
    """
    job.idle_waits = 0 if job.pending or new else job.idle_waits + 1
    if job.idle_waits > 1:
        job.deferred_failure = (
            "the task raised WaitForChildren twice in a row, and had no new child to wait for"
        )
    job.state = JobState.WAITING_CHILDREN if job.pending else JobState.WAITING


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
    job.failure = cancelled(reason).failure
    job.state = JobState.FAILED
    tell_parent(job, now)
    cancel_children(job, now)
    return Cancelled.BEFORE_START


def cancel_children(job: RecordedJob, now: float) -> None:
    """Cancel the children that have not run, after their parent was cancelled."""
    for child in list(job.pending):
        if child.run is None and not child.ended:
            cancel(child, cancel_reason(f"parent {job.key}"), now)


def tell_parent(child: RecordedJob, now: float) -> None:
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
    if parent.state is JobState.WAITING_CHILDREN and (at_once or not parent.pending):
        delay = parent.options.delay or 0.0
        parent.due = now + delay
        parent.state = JobState.DELAYED if delay else JobState.WAITING

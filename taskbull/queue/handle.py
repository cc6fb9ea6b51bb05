"""What adding a job gives: enough to find it again."""

from __future__ import annotations

from msgspec import Struct

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.scripts.add import Added, Result
from taskbull.scripts.replies import REFUSALS


class JobHandle(Struct, frozen=True):
    """A job in a queue."""

    queue: str
    id: str
    name: str
    deduplicated: bool = False
    """Another job stands for the one that was to be added: it has the same dedup key or id."""


def handles(queue: QueueKeys, jobs: list[NewJob], added: list[Added]) -> list[JobHandle]:
    """Give the handles of jobs that were added, in order."""
    return [_handle(queue, job, one) for job, one in zip(jobs, added, strict=True)]


def _handle(queue: QueueKeys, job: NewJob, added: Added) -> JobHandle:
    if added.result in {Result.NO_PARENT, Result.OTHER_PARENT}:
        raise REFUSALS[added.result](queue.queue, added.id)
    return JobHandle(queue.queue, added.id, job.name, added.result is not Result.ADDED)

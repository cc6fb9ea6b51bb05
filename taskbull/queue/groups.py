"""Acting on several jobs at once: those that somebody has chosen, or those that failed alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.row import ID_FIELDS
from taskbull.errors import JobNotFound, WrongState
from taskbull.queue.failures import alike_of
from taskbull.scripts import changes, peeking, removal
from taskbull.scripts.call import Call, Steps
from taskbull.scripts.failures import FAILURES_PEEKED, FailedJob, peek_failures
from taskbull.scripts.peeking import After

_HIGHEST: Final = "\uffff"
"""An id after all others of one score."""


class Selected(Struct, frozen=True):
    """What became of jobs that somebody has chosen."""

    done: list[str]
    left: dict[str, str]
    """Those that were left alone, and why: they have moved on, or run."""


class GroupStep(Struct, frozen=True):
    """How far an action on a group has come."""

    begun_ms: int
    """When it began: what failed later is left alone."""
    after: After | None
    """Where the next step begins; None: it is over."""
    looked_at: int = 0
    done: int = 0

    @property
    def over(self) -> bool:
        """Whether all jobs have been looked at."""
        return self.after is None


def first_step(now_ms: int) -> GroupStep:
    """Return the state of an action that begins now."""
    return GroupStep(now_ms, After(score=str(now_ms), id=_HIGHEST))


def retry_selected(
    queue: QueueKeys, ids: Sequence[str], state: changes.Ended, *, reset_attempts: bool
) -> Steps[Selected]:
    """Retry jobs one by one; those that are not in the state any more are left alone."""

    def retry(job_id: str) -> Call[None]:
        return changes.retry_job(
            queue, job_id, state, reset_attempts=reset_attempts, reset_starts=reset_attempts
        )

    return _each(ids, retry)


def remove_selected(
    queue: QueueKeys, ids: Sequence[str], state: changes.Ended | None = None
) -> Steps[Selected]:
    """Remove jobs one by one; those that run, or are not in the state any more, are left alone."""
    places = {"completed": queue.completed, "failed": queue.failed}
    only_in = "" if state is None else places[state]
    return _each(ids, lambda job_id: removal.remove_job(queue, job_id, only_in=only_in))


def retry_group(
    queue: QueueKeys, fingerprint: str, step: GroupStep, *, reset_attempts: bool
) -> Steps[GroupStep]:
    """Retry those of the next 50 failed jobs that have a fingerprint."""
    alike, after, looked_at = yield from _alike(queue, fingerprint, step)
    acted = yield from retry_selected(queue, alike, "failed", reset_attempts=reset_attempts)
    done = step.done + len(acted.done)
    return GroupStep(step.begun_ms, after, step.looked_at + looked_at, done)


def remove_group(queue: QueueKeys, fingerprint: str, step: GroupStep) -> Steps[GroupStep]:
    """Remove those of the next 50 failed jobs that have a fingerprint."""
    alike, after, looked_at = yield from _alike(queue, fingerprint, step)
    acted = yield from remove_selected(queue, alike, "failed")
    done = step.done + len(acted.done)
    return GroupStep(step.begun_ms, after, step.looked_at + looked_at, done)


def _alike(
    queue: QueueKeys, fingerprint: str, step: GroupStep
) -> Steps[tuple[list[str], After | None, int]]:
    """Find those of the next failed jobs that have a fingerprint, and where to go on."""
    if step.after is None:
        return [], None, 0
    page: peeking.Rows = yield peeking.peek_jobs(
        queue, JobState.FAILED, step.after, FAILURES_PEEKED, fields=ID_FIELDS
    )
    ids = [row.id for row in page.rows]
    found: list[FailedJob] = []
    while len(found) < len(ids):
        some: list[FailedJob] = yield peek_failures(queue, ids=ids[len(found) :])
        found += some
    # The merged rest of many small groups has a name, but no fingerprint of its own.
    alike = [job.id for job in found if alike_of(job).fingerprint == fingerprint]
    return alike, page.after, len(ids)


def _each(ids: Sequence[str], act: Callable[[str], Call[bool] | Call[None]]) -> Steps[Selected]:
    done: list[str] = []
    left: dict[str, str] = {}
    for job_id in ids:
        try:
            result: bool | None = yield act(job_id)
        except (JobNotFound, WrongState) as error:
            left[job_id] = str(error)
            continue
        if result is False:
            left[job_id] = f"job {job_id} runs, or one of its children does"
        else:
            done.append(job_id)
    return Selected(done, left)

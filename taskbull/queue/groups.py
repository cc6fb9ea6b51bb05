"""Acting on several jobs at once: those that somebody has chosen, or those that failed alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.row import ID_FIELDS
from taskbull.errors import JobNotFound, WrongState
from taskbull.queue.failures import alike_of
from taskbull.scripts import changes, peeking, removal
from taskbull.scripts.call import Call, Steps, again
from taskbull.scripts.failures import FAILURES_PEEKED, FailedJob, peek_failures
from taskbull.scripts.peeking import After


class Selected(Struct, frozen=True):
    """What became of jobs that somebody has chosen."""

    done: list[str]
    left: dict[str, str]
    """Those that were left alone, and why: they have moved on, or run."""


class GroupStep(Struct, frozen=True):
    """How far an action on failed jobs has come, the newest first."""

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


class Meant(Struct, frozen=True):
    """Which failed jobs an action is for."""

    fingerprint: str | None
    """What their errors have in common; None: nothing, all are meant."""
    since_ms: int | None = None
    """When the first of them failed; None: at any time."""
    limit: int | None = None
    """How many of them one step may change; None: all that it finds."""


class _Found(Struct, frozen=True):
    """The jobs that one step is to change, and how far it has looked for them."""

    ids: list[str]
    looked_at: int
    after: After | None


def first_step(now_ms: int) -> GroupStep:
    """Return the state of an action that begins now."""
    return GroupStep(now_ms, After(score=str(now_ms + 1)))


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
    queue: QueueKeys, meant: Meant, step: GroupStep, *, reset_attempts: bool
) -> Steps[GroupStep]:
    """Retry those of the next 50 failed jobs that are meant."""
    found = yield from _next(queue, meant, step)
    acted = yield from retry_selected(queue, found.ids, "failed", reset_attempts=reset_attempts)
    return _gone_on(step, found, acted)


def remove_group(queue: QueueKeys, meant: Meant, step: GroupStep) -> Steps[GroupStep]:
    """Remove those of the next 50 failed jobs that are meant."""
    found = yield from _next(queue, meant, step)
    acted = yield from remove_selected(queue, found.ids, "failed")
    return _gone_on(step, found, acted)


def _next(queue: QueueKeys, meant: Meant, step: GroupStep) -> Steps[_Found]:
    """Find those of the next failed jobs that are meant.

    The place to go on is a score and an id, and holds whatever becomes of the jobs.
    """
    if step.after is None:
        return _Found([], 0, None)
    page = yield from again(
        peeking.peek_jobs(
            *(queue, JobState.FAILED, step.after, FAILURES_PEEKED),
            bound=meant.since_ms,
            fields=ID_FIELDS,
        )
    )
    ids = [row.id for row in page.rows]
    if meant.fingerprint is not None:
        ids = yield from _alike(queue, ids, meant.fingerprint)
    if meant.limit is None or len(ids) <= meant.limit:
        return _Found(ids, len(page.rows), page.after)
    chosen = ids[: meant.limit]
    [place] = [place for place, row in enumerate(page.rows) if row.id == chosen[-1]]
    last = page.rows[place]
    return _Found(chosen, place + 1, After(score=repr(last.score), id=last.id))


def _alike(queue: QueueKeys, ids: Sequence[str], fingerprint: str) -> Steps[list[str]]:
    """Return which of some failed jobs have a fingerprint."""
    jobs: list[FailedJob] = []
    while len(jobs) < len(ids):
        jobs += yield from again(peek_failures(queue, ids=ids[len(jobs) :]))
    return [job.id for job in jobs if alike_of(job).fingerprint == fingerprint]


def _gone_on(step: GroupStep, found: _Found, acted: Selected) -> GroupStep:
    return GroupStep(
        step.begun_ms,
        found.after,
        step.looked_at + found.looked_at,
        step.done + len(acted.done),
    )


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

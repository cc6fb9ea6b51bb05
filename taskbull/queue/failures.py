"""Group failed jobs by their error, and retry or remove groups and selections of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from math import sqrt
from random import Random
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from taskbull.core.fingerprint import ErrorFingerprint, describe, frame_of, make_fingerprint
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.wire.job import ID_FIELDS, unescape
from taskbull.errors import JobNotFound, WrongState
from taskbull.scripts import browse, change, removal
from taskbull.scripts.browse import FAILURES_READ, After, FailedJob, FailuresStep, list_failures
from taskbull.scripts.call import Call, Steps, again

# Groups of failed jobs: counted exactly for the newest jobs, estimated for the rest.


MOST_GROUPS: Final = 100
"""Number of groups above which the smallest groups of a task and error class are merged."""

OTHER_MESSAGES: Final = "(other messages)"


class FailureGroup(Struct, frozen=True):
    """Failed jobs of one task with similar errors."""

    task: str
    error: str
    """Their message if it is the same for all, otherwise with `<…>` for the parts that differ."""
    count: int
    """Number of jobs in the group among those read individually."""
    first: datetime | None
    """Time of the first failure."""
    last: datetime | None
    newest: str
    """Id of the job that failed last."""
    reason: str
    """Start of the last job's message."""
    fingerprint: str = ""
    """Id of the error, for `retry_group` and `remove_group` of a queue."""
    frame: str = ""
    """Source location of the newest error, such as `mail.py:88 in render`."""
    about: int = 0
    """Total number of jobs: `count` plus an estimate for the jobs that were only sampled."""
    margin: int = 0
    """Error margin of `about`: three sigma, or 0 if it is exact."""
    times: list[datetime] = field(default_factory=list[datetime])
    """Failure times of the jobs that were read, newest first."""
    is_rest: bool = False
    """True for a group merged from many small ones. Its fingerprint matches no job."""


class Failures(Struct, frozen=True):
    """Causes of the failed jobs in a queue, largest group first."""

    total: int
    """Number of failed jobs."""
    examined: int
    """Number of newest jobs that were read."""
    groups: list[FailureGroup]
    sampled: int = 0
    """Number of older jobs that were read, one in each equal part."""
    window: dict[str, FailedJob] = field(default_factory=dict[str, FailedJob])
    """Newest jobs by id. Pass them to the next call to avoid reading them again."""
    sample: list[FailedJob] = field(default_factory=list[FailedJob])
    """Older jobs that were read."""
    sampled_at: float = 0.0
    """Time of the sample, in seconds since 1970."""
    likeness: dict[str, ErrorFingerprint] = field(default_factory=dict[str, ErrorFingerprint])
    """Features shared with similar errors, by job id."""


def group_by_fingerprint(
    jobs: Iterable[FailedJob], known: Mapping[str, ErrorFingerprint] = MappingProxyType({})
) -> dict[str, ErrorFingerprint]:
    """Return the error features of failed jobs by id. Known ones are reused."""
    return {job.id: known.get(job.id) or fingerprint_of(job) for job in jobs}


def group_failures(
    jobs: Iterable[FailedJob],
    sample: Sequence[FailedJob] = (),
    older: int = 0,
    likeness: Mapping[str, ErrorFingerprint] = MappingProxyType({}),
) -> list[FailureGroup]:
    """Group failed jobs by task and error, largest group first.

    Args:
        jobs: Failed jobs, newest first.
        sample: Some of the older jobs, as chosen by `spread`. They represent all older jobs.
        older: Number of older jobs.
        likeness: Known results of `group_by_fingerprint`.
    """
    groups: dict[ErrorFingerprint, list[FailedJob]] = {}
    for job in jobs:
        groups.setdefault(likeness.get(job.id) or fingerprint_of(job), []).append(job)
    rest: dict[ErrorFingerprint, list[FailedJob]] = {}
    for job in sample:
        rest.setdefault(likeness.get(job.id) or fingerprint_of(job), []).append(job)
    small = _smallest(groups, rest)
    groups, rest = _merged(groups, small), _merged(rest, small)
    merged = {_rest_of(what) for what in small}
    found = [
        _group(
            *(what, groups.get(what, []), rest.get(what, []), len(sample), older),
            is_rest=what in merged,
        )
        for what in {**groups, **rest}
    ]
    return sorted(found, key=lambda group: -group.about)


def fingerprint_of(job: FailedJob) -> ErrorFingerprint:
    """Return the error features of a failed job."""
    return make_fingerprint(
        job.name, job.reason, unescape(job.stack_head), unescape(job.stack_tail)
    )


def spread(start: int, stop: int, most: int) -> list[int]:
    """Return at most `most` positions in `range(start, stop)`, a random one in each equal part.

    Positions at equal distances would give wrong shares if errors recur at regular distances.
    """
    many = stop - start
    if many <= most:
        return list(range(start, stop))
    random = Random(many)  # noqa: S311 - a sample
    return [
        start + random.randrange(number * many // most, (number + 1) * many // most)
        for number in range(most)
    ]


def _group(
    what: ErrorFingerprint,
    window: list[FailedJob],
    sample: list[FailedJob],
    sampled: int,
    older: int,
    *,
    is_rest: bool,
) -> FailureGroup:
    all_of_them = [*window, *sample]
    newest = all_of_them[0]
    times = [job.finished_at for job in all_of_them if job.finished_at is not None]
    share = len(sample) / sampled if sampled else 0.0
    is_exact = sampled == older
    margin = 0.0
    if sampled and not is_exact:
        # Even an error that is missing in the sample may have some older jobs.
        likely = max(share, min(3 / sampled, 0.5))
        margin = 3 * older * sqrt(likely * (1 - likely) / sampled)
    return FailureGroup(
        what.task,
        what.error if is_rest else describe(what, [job.reason for job in all_of_them]),
        len(window),
        min(times, default=None),
        max(times, default=None),
        newest.id,
        newest.reason,
        what.fingerprint,
        frame_of(unescape(newest.stack_head), unescape(newest.stack_tail)),
        len(window) + round(share * older),
        round(margin),
        times,
        is_rest,
    )


_Groups = Mapping[ErrorFingerprint, list[FailedJob]]


def _smallest(groups: _Groups, rest: _Groups) -> set[ErrorFingerprint]:
    """Return the groups to merge because there are too many."""
    names = {**rest, **groups}
    if len(names) <= MOST_GROUPS:
        return set()
    by_size = sorted(
        names, key=lambda what: len(groups.get(what, ())) + len(rest.get(what, ())), reverse=True
    )
    return set(by_size[MOST_GROUPS - 1 :])


def _merged(
    groups: _Groups, small: Collection[ErrorFingerprint]
) -> dict[ErrorFingerprint, list[FailedJob]]:
    """Merge the small groups of each task and error class."""
    found: dict[ErrorFingerprint, list[FailedJob]] = {}
    for what, jobs in groups.items():
        found.setdefault(_rest_of(what) if what in small else what, []).extend(jobs)
    return found


def _rest_of(what: ErrorFingerprint) -> ErrorFingerprint:
    return replace(what, message=OTHER_MESSAGES)


# Actions on selected jobs, or on jobs with the same error


class Selected(Struct, frozen=True):
    """Result of an action on selected jobs."""

    done: list[str]
    left: dict[str, str]
    """Skipped jobs with the reason: their state has changed, or they are running."""


class GroupStep(Struct, frozen=True):
    """Progress of an action on failed jobs, newest first."""

    begun_ms: int
    """Start time. Jobs that failed later are skipped."""
    after: After | None
    """Start of the next step, or None when the action is complete."""
    examined: int = 0
    done: int = 0

    @property
    def over(self) -> bool:
        """True if all jobs have been processed."""
        return self.after is None


class FailureFilter(Struct, frozen=True):
    """Selection of failed jobs for an action."""

    fingerprint: str | None
    """Fingerprint of their errors. None selects all jobs."""
    since_ms: int | None = None
    """Earliest failure time. None means no limit."""
    limit: int | None = None
    """Maximum number of jobs to change per step. None means no limit."""


class _Found(Struct, frozen=True):
    """The jobs that a step changes, and its position in the list."""

    ids: list[str]
    examined: int
    after: After | None


def first_step(now_ms: int) -> GroupStep:
    """Return the initial state of an action that starts now."""
    return GroupStep(now_ms, After(score=str(now_ms + 1)))


def retry_selected(
    queue: QueueKeys, ids: Sequence[str], state: change.Ended, *, reset_attempts: bool
) -> Steps[Selected]:
    """Retry jobs one by one. Jobs that have left the state are skipped."""

    def retry(job_id: str) -> Call[None]:
        return change.retry_job(
            queue, job_id, state, reset_attempts=reset_attempts, reset_starts=reset_attempts
        )

    return _each(ids, retry)


def remove_selected(
    queue: QueueKeys, ids: Sequence[str], state: change.Ended | None = None
) -> Steps[Selected]:
    """Remove jobs one by one. Jobs that are running or have left the state are skipped."""
    places = {"completed": queue.completed, "failed": queue.failed}
    only_in = "" if state is None else places[state]
    return _each(ids, lambda job_id: removal.remove_job(queue, job_id, only_in=only_in))


def retry_group(
    queue: QueueKeys, meant: FailureFilter, step: GroupStep, *, reset_attempts: bool
) -> Steps[GroupStep]:
    """Retry the selected jobs among the next 50 failed jobs."""
    found = yield from _next(queue, meant, step)
    acted = yield from retry_selected(queue, found.ids, "failed", reset_attempts=reset_attempts)
    return _advanced(step, found, acted)


def remove_group(queue: QueueKeys, meant: FailureFilter, step: GroupStep) -> Steps[GroupStep]:
    """Remove the selected jobs among the next 50 failed jobs."""
    found = yield from _next(queue, meant, step)
    acted = yield from remove_selected(queue, found.ids, "failed")
    return _advanced(step, found, acted)


def _next(queue: QueueKeys, meant: FailureFilter, step: GroupStep) -> Steps[_Found]:
    """Find the selected jobs among the next failed jobs.

    The position is a score and an id, so it stays valid if jobs move or disappear.
    """
    if step.after is None:
        return _Found([], 0, None)
    page = yield from again(
        browse.list_jobs(
            *(queue, JobState.FAILED, step.after, FAILURES_READ),
            bound=meant.since_ms,
            fields=ID_FIELDS,
        )
    )
    ids = [row.job.id for row in page.rows]
    if meant.fingerprint is not None:
        ids = yield from _ids_with_fingerprint(queue, ids, meant.fingerprint)
    if meant.limit is None or len(ids) <= meant.limit:
        return _Found(ids, len(page.rows), page.after)
    chosen = ids[: meant.limit]
    [place] = [place for place, row in enumerate(page.rows) if row.job.id == chosen[-1]]
    last = page.rows[place]
    return _Found(chosen, place + 1, After(score=repr(last.score), id=last.job.id))


def _ids_with_fingerprint(
    queue: QueueKeys, ids: Sequence[str], fingerprint: str
) -> Steps[list[str]]:
    """Return the ids of the jobs with this fingerprint."""
    jobs: list[FailedJob] = []
    examined = 0
    while examined < len(ids):
        step: FailuresStep = yield from again(list_failures(queue, ids=ids[examined:]))
        examined += step.examined
        jobs += step.jobs
    return [job.id for job in jobs if fingerprint_of(job).fingerprint == fingerprint]


def _advanced(step: GroupStep, found: _Found, acted: Selected) -> GroupStep:
    return GroupStep(
        step.begun_ms,
        found.after,
        step.examined + found.examined,
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
            left[job_id] = f"Job '{job_id}' is running, or one of its children is"
        else:
            done.append(job_id)
    return Selected(done, left)

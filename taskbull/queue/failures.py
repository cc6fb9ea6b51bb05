"""Failed jobs put together by what made them fail: exact for the newest, estimated for the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from math import sqrt
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from taskbull.core.fingerprint import Alike, alike, frame_of
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.job import ID_FIELDS, unescape
from taskbull.errors import JobNotFound, WrongState
from taskbull.scripts import browse, change, removal
from taskbull.scripts.browse import FAILURES_PEEKED, After, FailedJob, peek_failures
from taskbull.scripts.call import Call, Steps, again

# Failed jobs put together by what made them fail: exact for the newest, estimated for the rest.


MOST_GROUPS: Final = 100
"""Above this, the smallest groups of one task and class are one."""

OTHER_MESSAGES: Final = "(other messages)"


class FailureGroup(Struct, frozen=True):
    """Failed jobs of one task whose errors are alike."""

    task: str
    error: str
    """What their messages have in common; `<…>` stands for what differs."""
    count: int
    """How many of those that were looked at one by one."""
    first: datetime | None
    """When the first of them failed."""
    last: datetime | None
    newest: str
    """The id of the job that failed last."""
    reason: str
    """The beginning of its message."""
    fingerprint: str = ""
    """By which such errors are known: see `retry_group` and `remove_group` of a queue."""
    frame: str = ""
    """Where the newest broke, such as `mail.py:88 in render`."""
    about: int = 0
    """How many there are in all: `count`, and an estimate for those that were only sampled."""
    margin: int = 0
    """By how much that may be wrong: two sigma; 0: it is exact."""
    times: list[datetime] = field(default_factory=list[datetime])
    """When those looked at failed, the newest first."""
    is_rest: bool = False
    """Whether it is what is left of many groups, with messages of different kinds: no job is known
    by its fingerprint."""


class Failures(Struct, frozen=True):
    """Why jobs of a queue failed: the groups of those looked at, the largest first."""

    total: int
    """How many failed jobs there are."""
    looked_at: int
    """How many of them were looked at: the newest."""
    groups: list[FailureGroup]
    sampled: int = 0
    """How many of the older ones were looked at, evenly spaced."""
    window: dict[str, FailedJob] = field(default_factory=dict[str, FailedJob])
    """The newest by id: given to the next look, they are not read again."""
    sample: list[FailedJob] = field(default_factory=list[FailedJob])
    """Those of the older ones that were looked at."""
    sampled_at: float = 0.0
    """When they were, in seconds since 1970."""
    likeness: dict[str, Alike] = field(default_factory=dict[str, Alike])
    """What each of them, by id, has in common with others."""


def liken(
    jobs: Iterable[FailedJob], known: Mapping[str, Alike] = MappingProxyType({})
) -> dict[str, Alike]:
    """Return what failed jobs have in common with others, by id, if it is not known already."""
    return {job.id: known.get(job.id) or alike_of(job) for job in jobs}


def group_failures(
    jobs: Iterable[FailedJob],
    sample: Sequence[FailedJob] = (),
    older: int = 0,
    likeness: Mapping[str, Alike] = MappingProxyType({}),
) -> list[FailureGroup]:
    """Put failed jobs, the newest first, together by task and error; the largest group first.

    `sample` are some of the `older` ones, evenly spaced: what they are like is taken for all.
    `likeness` is what is known of them by `liken`.
    """
    groups: dict[Alike, list[FailedJob]] = {}
    for job in jobs:
        groups.setdefault(likeness.get(job.id) or alike_of(job), []).append(job)
    rest: dict[Alike, list[FailedJob]] = {}
    for job in sample:
        rest.setdefault(likeness.get(job.id) or alike_of(job), []).append(job)
    small = _smallest(groups, rest)
    groups, rest = _merged(groups, small), _merged(rest, small)
    merged = {_rest_of(what) for what in small}
    found = [
        replace(
            _group(what, groups.get(what, []), rest.get(what, []), len(sample), older),
            is_rest=what in merged,
        )
        for what in {**groups, **rest}
    ]
    return sorted(found, key=lambda group: -group.about)


def alike_of(job: FailedJob) -> Alike:
    """Return what a failed job has in common with others."""
    return alike(job.name, job.reason, unescape(job.stack_head), unescape(job.stack_tail))


def spread(start: int, stop: int, most: int) -> list[int]:
    """Return at most so many places from `start` to before `stop`, evenly spaced."""
    many = stop - start
    if many <= most:
        return list(range(start, stop))
    return [start + number * many // most for number in range(most)]


def _group(
    what: Alike, window: list[FailedJob], sample: list[FailedJob], sampled: int, older: int
) -> FailureGroup:
    all_of_them = [*window, *sample]
    newest = all_of_them[0]
    times = [job.finished_at for job in all_of_them if job.finished_at is not None]
    share = len(sample) / sampled if sampled else 0.0
    is_exact = sampled == older
    margin = 0 if is_exact or not sampled else 2 * older * sqrt(share * (1 - share) / sampled)
    return FailureGroup(
        what.task,
        what.error,
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
    )


_Groups = Mapping[Alike, list[FailedJob]]


def _smallest(groups: _Groups, rest: _Groups) -> set[Alike]:
    """Return the groups that are too many to be shown."""
    names = {**rest, **groups}
    if len(names) <= MOST_GROUPS:
        return set()
    by_size = sorted(
        names, key=lambda what: len(groups.get(what, ())) + len(rest.get(what, ())), reverse=True
    )
    return set(by_size[MOST_GROUPS - 1 :])


def _merged(groups: _Groups, small: Collection[Alike]) -> dict[Alike, list[FailedJob]]:
    """Put the small groups of one task and class together."""
    found: dict[Alike, list[FailedJob]] = {}
    for what, jobs in groups.items():
        found.setdefault(_rest_of(what) if what in small else what, []).extend(jobs)
    return found


def _rest_of(what: Alike) -> Alike:
    return replace(what, message=OTHER_MESSAGES)


# Acting on several jobs at once: those that somebody has chosen, or those that failed alike.


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
    queue: QueueKeys, ids: Sequence[str], state: change.Ended, *, reset_attempts: bool
) -> Steps[Selected]:
    """Retry jobs one by one; those that are not in the state any more are left alone."""

    def retry(job_id: str) -> Call[None]:
        return change.retry_job(
            queue, job_id, state, reset_attempts=reset_attempts, reset_starts=reset_attempts
        )

    return _each(ids, retry)


def remove_selected(
    queue: QueueKeys, ids: Sequence[str], state: change.Ended | None = None
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
        browse.peek_jobs(
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

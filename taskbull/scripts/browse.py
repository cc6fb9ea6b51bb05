"""Looking at many queues and jobs without reading them: every read is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.keys import QueueKeys
from taskbull.core.queue_health import EndCounts
from taskbull.core.states import STATES, JobState, due_ms_of_score
from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.job import (
    DATA_FIELD,
    LINE_FIELDS,
    OPTIONS_FIELD,
    WHOLE_FIELDS,
    Peeked,
    decode_row,
    flat,
    read_ready_ms,
)
from taskbull.core.wire.numbers import read_number
from taskbull.errors import ConfigurationError
from taskbull.scripts.call import Call, Command, Word, number, text, texts
from taskbull.scripts.loader import load
from taskbull.scripts.read import ChildCounts, Counts, count_jobs

# Looking at many queues and jobs without reading them: every read is bounded.


SURVEY_QUEUE = load("survey_queue")
PEEK_ACTIVE = load("peek_active")
COUNT_ENDS = load("count_ends")

PEEKED: Final = 100
"""How many jobs one call looks at: less than a millisecond."""

LONGEST: Final = 300
"""Bytes after which a field is cut."""

_LONGEST_OPTIONS: Final = 4096


class Surveyed(Struct, frozen=True):
    """A queue at a glance."""

    counts: Counts
    paused: bool
    version: str | None
    """What its producer wrote about itself, such as `bullmq:5.62.0`."""
    waiting_since: datetime | None
    """When the job that has waited longest was added, or became due if it was delayed."""
    next_id: str | None = None
    """The id of that job."""
    concurrency: int | None = None
    """How many of its jobs may run at once, in all workers."""
    rate_max: int | None = None
    """How many may start in each window."""
    rate_window: float | None = None
    """The seconds of a window."""
    last_id: int = 0
    """The last id that was given out: how many jobs were added without one of their own."""
    started: int = 0
    """How many jobs have started in the window, where somebody counts them."""
    limited_for: float | None = None
    """How many seconds the window still lasts; None: there is none."""
    note: bytes = b""
    """Why it is paused, as `pause` wrote it."""
    next_due: datetime | None = None
    """When the first delayed job is due."""
    next_scheduled: datetime | None = None
    """When the next schedule is to run."""
    completed: EndCounts | None = None
    """None: no worker counts."""
    failed: EndCounts | None = None


UNKNOWN: Final = Surveyed(
    Counts(dict.fromkeys(STATES, 0)), paused=False, version=None, waiting_since=None
)
"""What is known of a queue that cannot be read."""


class ActiveJob(Struct, frozen=True):
    """A running job, and who runs it."""

    id: str
    name: str
    worker: str
    """The name of its worker; empty if that is not known."""
    started_at: datetime | None
    lock_seconds: float | None
    """How long its lock still lives; None: it has none, because its worker is gone."""


class EndsByMinute(Struct, frozen=True):
    """How many jobs ended in each minute, of those that are still kept."""

    minute_ms: int
    """When the newest of the minutes began."""
    completed: list[int]
    failed: list[int]
    completed_since_ms: float | None
    """When the oldest that is kept ended; None: none is."""
    failed_since_ms: float | None


def survey_queue(queue: QueueKeys, minutes: int = 0) -> Call[Surveyed]:
    """Count the jobs in each state, and see what holds for the queue as a whole.

    About 35 commands, none of which depends on how many jobs there are; `minutes`: for how many the
    counts of each are read.
    """
    counted = count_jobs(queue)

    def read(reply: Any) -> Surveyed:
        counts, meta, first, values, life, scores, completed, done, failed, broken = reply
        paused, version, concurrency, rate_max, window_ms = meta
        ready = [
            (ready_ms, text(job_id))
            for job_id, *fields in zip(*(first[place::3] for place in range(3)), strict=True)
            if (ready_ms := read_ready_ms(*fields)) is not None
        ]
        since_ms, next_id = min(ready, default=(None, None))
        counter, limiter, note = values
        due, scheduled = (float(score) if score else None for score in scores)
        window = read_number(window_ms)
        return Surveyed(
            counted.parse(counts),
            bool(paused),
            text(version) if version else None,
            None if since_ms is None else instant_from_ms(since_ms),
            next_id,
            read_number(concurrency),
            read_number(rate_max),
            None if window is None else window / 1000,
            number(counter),
            number(limiter),
            max(life, 0) / 1000 if life >= 0 else None,
            note,
            None if due is None else instant_from_ms(due_ms_of_score(due)),
            None if scheduled is None else instant_from_ms(scheduled),
            _end_counts(completed, done),
            _end_counts(failed, broken),
        )

    keys = (
        *counted.keys,
        queue.meta,
        queue.id,
        queue.repeat,
        queue.limiter,
        queue.private("note"),
        queue.metrics_completed,
        queue.metrics_completed_data,
        queue.metrics_failed,
        queue.metrics_failed_data,
    )
    return Call(SURVEY_QUEUE, keys, (queue.base, _LONGEST_OPTIONS, minutes), read)


def count_ends(queue: QueueKeys, minute_ms: int, minutes: int) -> Call[EndsByMinute]:
    """Count the jobs that ended in each of up to 60 minutes, the newest first, as they are kept.

    Two commands for each minute, however many jobs there are.
    """

    def read(reply: Any) -> EndsByMinute:
        completed, failed, (done, broken) = reply
        return EndsByMinute(
            minute_ms,
            completed,
            failed,
            float(done) if done else None,
            float(broken) if broken else None,
        )

    return Call(COUNT_ENDS, (queue.completed, queue.failed), (minute_ms, minutes), read)


def peek_active(queue: QueueKeys, start: int, stop: int) -> Call[list[ActiveJob]]:
    """See who runs the jobs from place `start` to `stop`, the longest running first."""
    return Call(PEEK_ACTIVE, (queue.active,), (queue.base, start, stop, LONGEST), _active)


def exists(queue: QueueKeys) -> Command[bool]:
    """Find out whether anybody has ever used a queue."""
    return Command(("EXISTS", queue.meta), queue.meta, bool)


def get_due(queue: QueueKeys, job_id: str) -> Command[datetime | None]:
    """Find out when a delayed job is due; None: it is not delayed."""

    def read(score: bytes | None) -> datetime | None:
        return None if score is None else instant_from_ms(due_ms_of_score(float(score)))

    return Command(("ZSCORE", queue.delayed, job_id), queue.delayed, read)


def get_next_due_ms(queue: QueueKeys) -> Command[int | None]:
    """Find out when the next delayed job is due, in ms since 1970; None: there is none."""

    def read(reply: list[Any]) -> int | None:
        return due_ms_of_score(float(reply[1])) if reply else None

    words: tuple[Word, ...] = ("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
    return Command(words, queue.delayed, read)


def check_types(queue: QueueKeys) -> list[Command[str | None]]:
    """Find keys of a wrong type: each command returns what is wrong with one key, or None."""
    kinds = {
        "hash": (queue.meta,),
        "list": (queue.wait, queue.paused, queue.active),
        "zset": (queue.prioritized, queue.delayed, queue.completed, queue.failed, queue.marker),
        "stream": (queue.events,),
    }
    return [_check_type(key, kind) for kind, keys in kinds.items() for key in keys]


def _check_type(key: str, wanted: str) -> Command[str | None]:
    def read(reply: bytes) -> str | None:
        kind = text(reply)
        return None if kind in {wanted, "none"} else f"{key} is a {kind}, and not a {wanted}"

    return Command(("TYPE", key), key, read)


def get_options(queue: QueueKeys, job_id: str) -> Command[Any]:
    """Read the options of a job as they stand in Redis; None if they are not JSON."""

    def read(raw: bytes | None) -> Any:
        try:
            return payload.decode(raw or b"null")
        except ValueError:
            return None

    key = queue.job(job_id)
    return Command(("HGET", key, OPTIONS_FIELD), key, read)


def get_lock_seconds(queue: QueueKeys, job_id: str) -> Command[float]:
    """Find out for how long a job's lock lives; 0: it has none."""
    key = queue.lock(job_id)
    return Command(("PTTL", key), key, lambda ms: max(0, ms) / 1000)


def _active(reply: list[Any]) -> list[ActiveJob]:
    return [
        ActiveJob(text(i), cut_text(n), cut_text(w), instant_of(s), _lock_seconds(lock))
        for i, n, w, s, lock in zip(*(reply[place::5] for place in range(5)), strict=True)
    ]


def _lock_seconds(ttl_ms: int) -> float | None:
    if ttl_ms < 0:  # as PTTL has it: -1 is for ever, -2 that there is none
        return inf if ttl_ms == -1 else None
    return ttl_ms / 1000


def _end_counts(totals: list[bytes | None], points: list[bytes]) -> EndCounts | None:
    if totals[0] is None:
        return None
    count, previous_ms, previous_count = map(number, totals)
    return EndCounts(count, previous_ms, previous_count, [number(point) for point in points])


def cut_text(raw: bytes) -> str:
    """Read a text that may have been cut in the middle of a character."""
    return raw.decode("utf-8", "ignore") if len(raw) == LONGEST else text(raw)


def instant_of(raw: bytes) -> datetime | None:
    """Read an instant in ms that somebody else wrote; None if it is none."""
    ms = read_number(raw)
    return None if ms is None else instant_from_ms(ms)


# Looking at failed jobs: what is needed to tell which of them failed alike.


PEEK_FAILURES = load("peek_failures")
PEEK_RETRIED = load("peek_retried")

FAILURES_PEEKED: Final = 50
"""How many jobs one call looks at: about a millisecond."""

_ROOM: Final = 262_144
"""Bytes of stacks after which a call reads no more."""

_pack = msgspec.msgpack.encode


class FailedJob(Struct, frozen=True):
    """What is needed of a failed job to tell which others failed alike."""

    id: str
    name: str
    reason: str
    """The first bytes of it."""
    finished_at: datetime | None
    stack_head: str = ""
    """The beginning of its newest stack, as JSON has it; empty if all are too large."""
    stack_tail: str = ""
    """And its end."""


def peek_failures(
    queue: QueueKeys, ranks: Sequence[int] = (), ids: Sequence[str] = ()
) -> Call[list[FailedJob]]:
    """See why jobs failed: those at some places, counted from the newest, or those with some ids.

    At most 50 are to be asked for. Where they have many bytes only the first of them are read, but
    at least one; one that is gone has an empty name.
    """
    args = (queue.base, _pack(list(ranks)), _pack(list(ids)), LONGEST, _ROOM)
    return Call(PEEK_FAILURES, (queue.failed,), args, _failures)


class RetriedStep(Struct, frozen=True):
    """Jobs of a state that have failed before, among some that were looked at."""

    looked_at: int
    jobs: list[FailedJob]
    """Of each, `finished_at` is when its last attempt began: that is all that is stored."""


def peek_retried(queue: QueueKeys, state: JobState, start: int) -> Call[RetriedStep]:
    """See why jobs failed before that have not ended: 50 of a state, from the next to run on."""

    def read(reply: Any) -> RetriedStep:
        looked_at, flat = reply
        jobs = [
            FailedJob(
                text(i), cut_text(name), cut_text(why), instant_of(at), text(head), text(tail)
            )
            for i, name, why, at, head, tail in zip(
                *(flat[place::6] for place in range(6)), strict=True
            )
        ]
        return RetriedStep(looked_at, jobs)

    places = {
        JobState.WAITING: queue.wait,
        JobState.PAUSED: queue.paused,
        JobState.ACTIVE: queue.active,
        JobState.DELAYED: queue.delayed,
        JobState.PRIORITIZED: queue.prioritized,
    }
    args = (queue.base, start, FAILURES_PEEKED, LONGEST, _ROOM)
    return Call(PEEK_RETRIED, (places[state],), args, read)


def get_failed_ids(queue: QueueKeys, most: int) -> Command[list[str]]:
    """List the ids of the newest failed jobs."""
    words: tuple[Word, ...] = ("ZREVRANGE", queue.failed, 0, most - 1)
    return Command(words, queue.failed, texts)


def _failures(reply: list[bytes]) -> list[FailedJob]:
    return [
        FailedJob(
            text(job_id),
            cut_text(name),
            cut_text(reason),
            instant_of(finished),
            text(head),
            text(tail),
        )
        for job_id, _, name, reason, finished, head, tail in zip(
            *(reply[place::7] for place in range(7)), strict=True
        )
    ]


# Looking at jobs without reading them whole: pages of a state, one job, a search.
#
# Each call looks at a bounded number of jobs, and reads at most `ROOM` bytes of what may be large,
# whatever stands in the queue. All of them only read: a user of Redis without write rights will
# do.


PEEK_LISTED = load("peek_listed")
PEEK_SORTED = load("peek_sorted")
PLACE_JOB = load("place_job")
SEARCH_JOBS = load("search_jobs")

ROWS: Final = 50
"""How many jobs one page has at most."""

PIECE: Final = 25
"""How many of them one call should ask for: a millisecond."""

SEARCHED: Final = 100
"""How many jobs one step of a search looks at."""

ROOM: Final = 262_144
"""Bytes of large fields that one call reads."""

_DEEPEST: Final = 20_000
"""How far a job is looked for in a list, from each of its ends: a fraction of a millisecond."""

NEWEST_FIRST: Final = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States of which people want to see the latest job first; of others the next to run."""

pack = msgspec.msgpack.encode


class Row(Struct, frozen=True):
    """A job on a page: its id, and what was read of it; None: it is gone."""

    id: str
    score: float | None
    """Its score, where its state is a sorted set."""
    peeked: Peeked | None


class After(Struct, frozen=True):
    """The end of a page, after which the next begins."""

    place: int = 0
    """Of a list: how many jobs come before."""
    score: str = ""
    """Of a sorted set: the score of the last job, as Redis writes it."""
    id: str = ""


START: Final = After()


class Rows(Struct, frozen=True):
    """A page of jobs."""

    total: int
    """How many jobs are in this state."""
    rows: list[Row]
    after: After | None
    """Where the next page begins; None: this is the last one."""


class PlacedJob(Struct, frozen=True):
    """One job: what was read of it, and where it is."""

    state: JobState
    """Jobs that a pause has parked are `paused`."""
    score: float | None
    peeked: Peeked | None
    """None: there is no such job."""
    lock_ms: int
    """How long its lock lives, as PTTL has it: -1 for ever, -2 there is none."""
    children: ChildCounts
    before: int | None
    """How many jobs of the same list or set come before it, where that is known."""
    sure: bool
    """Whether state and place are exact, and not guessed from the timestamps of others."""
    last_id: int
    """The last id that the queue has given out."""


class Found(Struct, frozen=True):
    """What one step of a search has found, and where the next begins."""

    rows: list[Row]
    looked_at: int
    too_large: int
    """Jobs with a field that was not looked at."""
    after: After | None
    """None: there is nothing left to look at."""
    total: int
    """How many jobs are in this state."""
    reached: datetime | None
    """When the last that was looked at ended; was due, if it is delayed; else was added."""


def peek_jobs(
    queue: QueueKeys,
    state: JobState,
    after: After = START,
    limit: int = ROWS,
    *,
    bound: float | None = None,
    fields: Mapping[str, int] = LINE_FIELDS,
) -> Call[Rows]:
    """See a page of the jobs in a state; of a sorted set up to the score `bound`.

    About 24 commands for each job.
    """
    common = (queue.base, pack(flat(fields)), ROOM)
    keys = _places(queue, state)
    if state in LISTS:
        args: tuple[Word, ...] = (*common, after.place, limit)
        return Call(PEEK_LISTED, keys, args, lambda reply: _listed(reply, fields, after, limit))
    edge = _edge(state, bound)
    args = (*common, int(state in NEWEST_FIRST), after.score, after.id, edge, limit)
    return Call(PEEK_SORTED, keys, args, lambda reply: _sorted(reply, fields, limit))


def place_job(queue: QueueKeys, job_id: str) -> Call[PlacedJob]:
    """See a job, its state, its lock, and how many come before it: about 45 commands.

    Of a list with more than 40,000 jobs only the ends are searched, and what its timestamp says.
    """

    def read(reply: Any) -> PlacedJob:
        state, score, peeked, lock, children, before, sure, counter = reply
        job = None if not peeked else decode_row(job_id.encode(), WHOLE_FIELDS, peeked)
        return PlacedJob(
            JobState(text(state)),
            _score(score),
            job,
            lock,
            ChildCounts(*children),
            None if before < 0 else before,
            bool(sure),
            number(counter),
        )

    keys = (
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.prioritized,
        queue.waiting_children,
        queue.active,
        queue.wait,
        queue.paused,
        queue.id,
    )
    args = (queue.base, job_id, pack(flat(WHOLE_FIELDS)), ROOM, _DEEPEST)
    return Call(PLACE_JOB, keys, args, read)


def search_jobs(
    queue: QueueKeys,
    state: JobState,
    wanted: Sequence[tuple[Sequence[str], Sequence[str]]],
    after: After = START,
    *,
    bound: float | None = None,
) -> Call[Found]:
    """Look for texts in the next 100 jobs of a state, or as many as have 256 kB.

    Each of `wanted` is fields and texts: one of the texts has to be in one of the fields, and that
    for each of them.
    """
    newest = state in NEWEST_FIRST

    def read(reply: Any) -> Found:
        looked_at, too_large, last, score, done, hits, total, added = reply
        more = After(after.place + looked_at, text(score), text(last))
        return Found(
            _rows(hits, LINE_FIELDS),
            looked_at,
            too_large,
            None if done or not looked_at else more,
            total,
            _reached(state, score, added),
        )

    [place, *_] = _places(queue, state)
    args = (
        queue.base,
        pack([[list(fields), list(texts)] for fields, texts in wanted]),
        pack(flat(LINE_FIELDS)),
        0 if after.score else after.place,
        int(newest),
        after.score,
        after.id,
        _edge(state, bound),
        SEARCHED,
        ROOM,
    )
    return Call(SEARCH_JOBS, (place,), args, read)


def get_data(queue: QueueKeys, job_id: str) -> Command[Any]:
    """Read the data of a job; None if there are none, or if they are not JSON."""
    key = queue.job(job_id)

    def read(raw: bytes | None) -> Any:
        try:
            return payload.decode(raw or b"null")
        except ValueError:
            return None

    return Command(("HGET", key, DATA_FIELD), key, read)


LISTS: Final = frozenset({JobState.WAITING, JobState.ACTIVE, JobState.PAUSED})


def _places(queue: QueueKeys, state: JobState) -> tuple[str, ...]:
    places = {
        JobState.WAITING: (queue.wait, queue.paused),  # whoever paused the queue, and however
        JobState.PAUSED: (queue.paused, queue.private("none")),
        JobState.ACTIVE: (queue.active, queue.private("none")),
        JobState.COMPLETED: (queue.completed,),
        JobState.FAILED: (queue.failed,),
        JobState.DELAYED: (queue.delayed,),
        JobState.PRIORITIZED: (queue.prioritized,),
        JobState.WAITING_CHILDREN: (queue.waiting_children,),
    }
    if state not in places:
        raise ConfigurationError(f"there is no list of jobs in state {state}")
    return places[state]


def _reached(state: JobState, score: bytes, added: bytes) -> datetime | None:
    if state in NEWEST_FIRST:
        return instant_from_ms(float(score)) if score else None
    if state is JobState.DELAYED:
        return instant_from_ms(due_ms_of_score(float(score))) if score else None
    return instant_of(added)


def _edge(state: JobState, bound: float | None) -> Word:
    if bound is not None:
        return f"{bound:.0f}"
    return "-inf" if state in NEWEST_FIRST else "+inf"


def _listed(reply: Any, fields: Mapping[str, int], after: After, limit: int) -> Rows:
    total, flat_rows = reply
    rows = _rows(flat_rows, fields)
    end = after.place + len(rows)
    return Rows(total, rows, After(end) if len(rows) == limit and end < total else None)


def _sorted(reply: Any, fields: Mapping[str, int], limit: int) -> Rows:
    total, flat_rows = reply
    rows = _rows(flat_rows, fields)
    after = None
    if len(rows) == limit:
        after = After(score=text(flat_rows[-2]), id=text(flat_rows[-3]))
    return Rows(total, rows, after)


def _rows(reply: list[Any], fields: Mapping[str, int]) -> list[Row]:
    return [
        Row(text(i), _score(score), decode_row(i, fields, peeked) if peeked else None)
        for i, score, peeked in zip(*(reply[place::3] for place in range(3)), strict=True)
    ]


def _score(raw: bytes) -> float | None:
    return float(raw) if raw else None

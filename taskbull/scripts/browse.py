"""Bounded reads for dashboards and tools: queue surveys, failed jobs, pages of jobs, searches.

Each call looks at a bounded number of jobs and reads a bounded number of bytes, whatever the queue
contains. Only `get_options` and `get_data` read a whole field of any size. The calls never write,
so a read-only Redis user is enough.
"""

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

# Surveys of queues, their running jobs and single properties of jobs.

SURVEY_QUEUE = load("survey_queue")
PEEK_ACTIVE = load("peek_active")
COUNT_ENDS = load("count_ends")

PEEKED: Final = 100
"""Number of jobs that one call looks at. It takes less than a millisecond."""

LONGEST: Final = 300
"""Maximum length of a field, in bytes. Longer fields are truncated."""

_LONGEST_OPTIONS: Final = 4096


class Surveyed(Struct, frozen=True):
    """A summary of a queue."""

    counts: Counts
    paused: bool
    version: str | None
    """Version string that the producer stored, such as `bullmq:5.62.0`."""
    waiting_since: datetime | None
    """Time when the longest-waiting job was added, or became due if it was delayed."""
    next_id: str | None = None
    """Id of that job."""
    concurrency: int | None = None
    """Maximum number of jobs that run concurrently, across all workers."""
    rate_max: int | None = None
    """Maximum number of jobs that start in each rate-limit window."""
    rate_window: float | None = None
    """Length of the rate-limit window, in seconds."""
    last_id: int = 0
    """Last id that the queue assigned: the number of jobs added without a custom id."""
    started: int = 0
    """Number of jobs started in the current window, or 0 if workers do not count them."""
    limited_for: float | None = None
    """Seconds until the current window ends, or None if there is no window."""
    note: bytes = b""
    """Reason for the pause, as stored by `pause_noted`."""
    next_due: datetime | None = None
    """Time when the first delayed job is due."""
    next_scheduled: datetime | None = None
    """Time of the next scheduled run."""
    completed: EndCounts | None = None
    """Counts from BullMQ's metrics, or None if no worker collects them."""
    failed: EndCounts | None = None
    """Same as `completed`, for failed jobs."""


UNKNOWN: Final = Surveyed(
    Counts(dict.fromkeys(STATES, 0)), paused=False, version=None, waiting_since=None
)
"""Placeholder for a queue that cannot be read."""


class ActiveJob(Struct, frozen=True):
    """A running job and its worker."""

    id: str
    name: str
    worker: str
    """Name of its worker, or empty if unknown."""
    started_at: datetime | None
    lock_seconds: float | None
    """Seconds until its lock expires, or None if the lock is lost because its worker is gone."""


class EndsByMinute(Struct, frozen=True):
    """Number of stored jobs that finished in each minute, the newest minute first."""

    minute_ms: int
    """Start of the newest minute."""
    completed: list[int]
    failed: list[int]
    completed_since_ms: float | None
    """Time when the oldest stored completed job finished, or None if none is stored."""
    failed_since_ms: float | None
    """Same as `completed_since_ms`, for failed jobs."""


def survey_queue(queue: QueueKeys, minutes: int = 0) -> Call[Surveyed]:
    """Read a queue's job counts, limits and other properties.

    It runs about 35 commands. Their cost does not depend on the number of jobs. `minutes` is the
    number of per-minute metrics to read.
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
    """Count the stored jobs that finished in each of up to 60 minutes, the newest first.

    It runs two commands per minute, regardless of the number of jobs.
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
    """Read the running jobs from place `start` to `stop`, the longest-running first."""
    return Call(PEEK_ACTIVE, (queue.active,), (queue.base, start, stop, LONGEST), _active)


def exists(queue: QueueKeys) -> Command[bool]:
    """Return True if the queue has been used."""
    return Command(("EXISTS", queue.meta), queue.meta, bool)


def get_due(queue: QueueKeys, job_id: str) -> Command[datetime | None]:
    """Return the time when a delayed job is due, or None if it is not delayed."""

    def read(score: bytes | None) -> datetime | None:
        return None if score is None else instant_from_ms(due_ms_of_score(float(score)))

    return Command(("ZSCORE", queue.delayed, job_id), queue.delayed, read)


def get_next_due_ms(queue: QueueKeys) -> Command[int | None]:
    """Return the time when the next delayed job is due, in ms since 1970, or None."""

    def read(reply: list[Any]) -> int | None:
        return due_ms_of_score(float(reply[1])) if reply else None

    words: tuple[Word, ...] = ("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
    return Command(words, queue.delayed, read)


def check_types(queue: QueueKeys) -> list[Command[str | None]]:
    """Check the types of a queue's keys. Each command returns a problem with one key, or None."""
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
    """Read a job's stored options, or None if they are not JSON."""

    def read(raw: bytes | None) -> Any:
        try:
            return payload.decode(raw or b"null")
        except ValueError:
            return None

    key = queue.job(job_id)
    return Command(("HGET", key, OPTIONS_FIELD), key, read)


def get_lock_seconds(queue: QueueKeys, job_id: str) -> Command[float]:
    """Return the seconds until a job's lock expires, or 0 if it has no lock."""
    key = queue.lock(job_id)
    return Command(("PTTL", key), key, lambda ms: max(0, ms) / 1000)


def _active(reply: list[Any]) -> list[ActiveJob]:
    return [
        ActiveJob(text(i), cut_text(n), cut_text(w), instant_of(s), _lock_seconds(lock))
        for i, n, w, s, lock in zip(*(reply[place::5] for place in range(5)), strict=True)
    ]


def _lock_seconds(ttl_ms: int) -> float | None:
    if ttl_ms < 0:  # PTTL returns -1 for a key without expiry and -2 for a missing key.
        return inf if ttl_ms == -1 else None
    return ttl_ms / 1000


def _end_counts(totals: list[bytes | None], points: list[bytes]) -> EndCounts | None:
    if totals[0] is None:
        return None
    count, previous_ms, previous_count = map(number, totals)
    return EndCounts(count, previous_ms, previous_count, [number(point) for point in points])


def cut_text(raw: bytes) -> str:
    """Decode text that may have been truncated in the middle of a character."""
    return raw.decode("utf-8", "ignore") if len(raw) == LONGEST else text(raw)


def instant_of(raw: bytes) -> datetime | None:
    """Decode a stored time in ms, or return None if the value is not a valid number."""
    ms = read_number(raw)
    return None if ms is None else instant_from_ms(ms)


# Failed jobs: only the fields needed to group jobs by error.

PEEK_FAILURES = load("peek_failures")
PEEK_RETRIED = load("peek_retried")

FAILURES_PEEKED: Final = 50
"""Number of jobs that one call looks at. It takes about a millisecond."""

_ROOM: Final = 262_144
"""Limit on stack-trace bytes. A call stops reading once it exceeds this."""

_pack = msgspec.msgpack.encode


class FailedJob(Struct, frozen=True):
    """The fields of a failed job that are needed to group it with similar failures."""

    id: str
    name: str
    reason: str
    """First bytes of the failure reason."""
    finished_at: datetime | None
    stack_head: str = ""
    """Start of its newest stack trace, as JSON. Empty if the stored stack traces are too large."""
    stack_tail: str = ""
    """End of its newest stack trace, as JSON."""


def peek_failures(
    queue: QueueKeys, ranks: Sequence[int] = (), ids: Sequence[str] = ()
) -> Call[list[FailedJob]]:
    """Read failed jobs, either by rank (counted from the newest) or by id.

    Ask for at most 50 jobs. If they are large, only the first ones are read, but at least one. A
    job that no longer exists has an empty name.
    """
    args = (queue.base, _pack(list(ranks)), _pack(list(ids)), LONGEST, _ROOM)
    return Call(PEEK_FAILURES, (queue.failed,), args, _failures)


class RetriedStep(Struct, frozen=True):
    """Unfinished jobs in one state that failed in an earlier attempt."""

    looked_at: int
    """Number of jobs that were checked."""
    jobs: list[FailedJob]
    """Their `finished_at` is the start of the last attempt. Redis stores no end time for it."""


def peek_retried(queue: QueueKeys, state: JobState, start: int) -> Call[RetriedStep]:
    """Read unfinished jobs that failed before: up to 50 in a state, the next to run first."""

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


# Parts of jobs: pages of a state, one job, searches. Each call reads at most `ROOM` bytes of
# fields that may be large.

PEEK_LISTED = load("peek_listed")
PEEK_SORTED = load("peek_sorted")
PLACE_JOB = load("place_job")
SEARCH_JOBS = load("search_jobs")

ROWS: Final = 50
"""Maximum number of jobs on a page."""

PIECE: Final = 25
"""Number of jobs that one call should request. It takes a millisecond."""

SEARCHED: Final = 100
"""Number of jobs that one search step looks at."""

ROOM: Final = 262_144
"""Maximum number of bytes of large fields that one call reads."""

_DEEPEST: Final = 20_000
"""Number of list entries searched from each end. It takes a fraction of a millisecond."""

NEWEST_FIRST: Final = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States that list the latest job first. Other states list the next job to run first."""

pack = msgspec.msgpack.encode


class Row(Struct, frozen=True):
    """A job on a page."""

    id: str
    score: float | None
    """Its score, if its state is stored as a sorted set."""
    peeked: Peeked | None
    """Fields that were read, or None if the job no longer exists."""


class After(Struct, frozen=True):
    """A cursor: the position after the last job of a page."""

    place: int = 0
    """Number of jobs before the cursor, in a list."""
    score: str = ""
    """Score of the last job as formatted by Redis, in a sorted set."""
    id: str = ""
    """Id of the last job, in a sorted set."""


START: Final = After()


class Rows(Struct, frozen=True):
    """A page of jobs."""

    total: int
    """Number of jobs in this state."""
    rows: list[Row]
    after: After | None
    """Cursor for the next page, or None if this is the last page."""


class PlacedJob(Struct, frozen=True):
    """One job, its state and its position."""

    state: JobState
    """Its state. Jobs in the paused list are `paused`."""
    score: float | None
    peeked: Peeked | None
    """Fields that were read, or None if the job does not exist."""
    lock_ms: int
    """Result of PTTL for its lock: -1 if it never expires, -2 if there is no lock."""
    children: ChildCounts
    before: int | None
    """Number of jobs before it in the same list or set, if known."""
    sure: bool
    """True if state and position are exact, False if guessed from other jobs' timestamps."""
    last_id: int
    """Last id that the queue assigned."""


class Found(Struct, frozen=True):
    """The result of one search step."""

    rows: list[Row]
    looked_at: int
    too_large: int
    """Number of jobs with a field that was too large to search."""
    after: After | None
    """Cursor for the next step, or None if the search is complete."""
    total: int
    """Number of jobs in this state."""
    reached: datetime | None
    """Time that the last searched job finished, was due if delayed, or was added otherwise."""


def peek_jobs(
    queue: QueueKeys,
    state: JobState,
    after: After = START,
    limit: int = ROWS,
    *,
    bound: float | None = None,
    fields: Mapping[str, int] = LINE_FIELDS,
) -> Call[Rows]:
    """Read a page of the jobs in a state.

    If the state is a sorted set, the page ends at the score `bound`. It runs about 24 commands per
    job.
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
    """Read a job, its state, its lock and the number of jobs before it.

    It runs about 45 commands. In a list of more than 40,000 jobs, the script searches near the
    position that the job's timestamp suggests, then the first and last 20,000 jobs. If the job is
    not found there, its position is a guess.
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
    """Search the next 100 jobs in a state for texts, or fewer if they exceed 256 kB.

    Each item of `wanted` is a pair of fields and texts. A job matches an item if one of the fields
    contains one of the texts. A job must match all items.
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
    """Read a job's data, or None if there is none or it is not JSON."""
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
        # BullMQ 5 moves waiting jobs to the paused list; BullMQ 6 leaves them in the wait list.
        JobState.WAITING: (queue.wait, queue.paused),
        JobState.PAUSED: (queue.paused, queue.private("none")),
        JobState.ACTIVE: (queue.active, queue.private("none")),
        JobState.COMPLETED: (queue.completed,),
        JobState.FAILED: (queue.failed,),
        JobState.DELAYED: (queue.delayed,),
        JobState.PRIORITIZED: (queue.prioritized,),
        JobState.WAITING_CHILDREN: (queue.waiting_children,),
    }
    if state not in places:
        raise ConfigurationError(f"jobs in state '{state}' cannot be listed")
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

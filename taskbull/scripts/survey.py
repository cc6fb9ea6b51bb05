"""Looking at many queues and jobs without reading them: every read is bounded."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import Any, Final

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.durations import instant_from_ms
from taskbull.core.keys import QueueKeys
from taskbull.core.rates import EndCounts
from taskbull.core.states import STATES, due_ms_of_score
from taskbull.core.wire.job import OPTIONS_FIELD, read_ready_ms
from taskbull.core.wire.numbers import read_number
from taskbull.scripts.call import Call, Command, Word
from taskbull.scripts.inspection import Counts, count_jobs
from taskbull.scripts.loader import load
from taskbull.scripts.replies import number, text

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

"""Looking at many queues and jobs without reading them: every read is bounded."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import Any, Final

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.durations import instant_from_ms
from taskbull.core.keys import QueueKeys
from taskbull.core.states import due_ms_of_score
from taskbull.core.wire.job import OPTIONS_FIELD, read_ready_ms
from taskbull.core.wire.numbers import read_number
from taskbull.scripts.call import Call, Command, Word
from taskbull.scripts.inspection import Counts, count_jobs
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text

SURVEY_QUEUE = load("survey_queue")
PEEK_ACTIVE = load("peek_active")
PEEK_FAILURES = load("peek_failures")

PEEKED: Final = 100
"""How many jobs one call looks at: less than a millisecond."""

_LONGEST: Final = 300
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


class ActiveJob(Struct, frozen=True):
    """A running job, and who runs it."""

    id: str
    name: str
    worker: str
    """The name of its worker; empty if that is not known."""
    started_at: datetime | None
    lock_seconds: float | None
    """How long its lock still lives; None: it has none, because its worker is gone."""


class FailedJob(Struct, frozen=True):
    """What is needed of a failed job to tell which others failed alike."""

    id: str
    name: str
    reason: str
    """The first bytes of it."""
    finished_at: datetime | None


def survey_queue(queue: QueueKeys) -> Call[Surveyed]:
    """Count the jobs in each state, and see what holds for the queue as a whole."""
    counted = count_jobs(queue)

    def read(reply: Any) -> Surveyed:
        counts, paused, version, first = reply
        ready = [read_ready_ms(*pair) for pair in zip(first[::2], first[1::2], strict=True)]
        known = [ms for ms in ready if ms is not None]
        return Surveyed(
            counted.parse(counts),
            bool(paused),
            None if version is None else text(version),
            instant_from_ms(min(known)) if known else None,
        )

    keys = (*counted.keys, queue.meta)
    return Call(SURVEY_QUEUE, keys, (queue.base, _LONGEST_OPTIONS), read)


def peek_active(queue: QueueKeys, start: int, stop: int) -> Call[list[ActiveJob]]:
    """See who runs the jobs from place `start` to `stop`, the longest running first."""
    return Call(PEEK_ACTIVE, (queue.active,), (queue.base, start, stop, _LONGEST), _active)


def peek_failures(queue: QueueKeys, start: int, stop: int) -> Call[list[FailedJob]]:
    """See why the jobs from place `start` to `stop` failed, the newest first."""
    return Call(PEEK_FAILURES, (queue.failed,), (queue.base, start, stop, _LONGEST), _failures)


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
        ActiveJob(text(i), _cut(n), _cut(w), _instant(s), _lock_seconds(lock))
        for i, n, w, s, lock in zip(*(reply[place::5] for place in range(5)), strict=True)
    ]


def _lock_seconds(ttl_ms: int) -> float | None:
    if ttl_ms < 0:  # as PTTL has it: -1 is for ever, -2 that there is none
        return inf if ttl_ms == -1 else None
    return ttl_ms / 1000


def _failures(reply: list[bytes]) -> list[FailedJob]:
    return [
        FailedJob(text(job_id), _cut(name), _cut(reason), _instant(finished))
        for job_id, name, reason, finished in zip(
            *(reply[place::4] for place in range(4)), strict=True
        )
    ]


def _cut(raw: bytes) -> str:
    return raw.decode("utf-8", "ignore") if len(raw) == _LONGEST else text(raw)


def _instant(raw: bytes) -> datetime | None:
    ms = read_number(raw)
    return None if ms is None else instant_from_ms(ms)

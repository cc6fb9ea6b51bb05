"""Calls for the records that taskbull stores beside BullMQ's keys.

Dashboards store form numbers and operations. Workers store status records, error counts and queue
names, and elect a sampler per queue. The records expire or are pruned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core.fingerprint import ErrorFingerprint
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.wire.job import OPTIONS_FIELD, TIMESTAMP_FIELD, read_ready_ms
from taskbull.core.worker_record import Seen, WorkerRecord, decode_record, encode_record
from taskbull.scripts.call import Call, Command, Steps, Word, load, nothing, number, text, texts
from taskbull.scripts.groups import MOST_GROUPS, count_group_jobs
from taskbull.scripts.read import Counts, count_jobs

# Dashboards: submitted forms and operations, shared between all dashboards of a prefix.

_ONCE_MS: Final = 600_000
"""Time during which a repeated form is recognized, in milliseconds."""

_KEPT_MS: Final = 3_600_000
"""Lifetime of operation records, in milliseconds."""


def claim_number(prefix: str, number: str, by: str) -> Command[bool]:
    """Claim a form's number. Return True if it was not claimed before."""
    key = _once(prefix, number)
    words: tuple[Word, ...] = ("SET", key, by, "NX", "PX", _ONCE_MS)
    return Command(words, key, lambda reply: reply is not None)


def get_claimant(prefix: str, number: str) -> Command[str]:
    """Return the claimant of a form's number, or an empty string."""
    key = _once(prefix, number)
    return Command(("GET", key), key, lambda reply: "" if reply is None else text(reply))


def write_operation(prefix: str, operation_id: str, record: bytes) -> list[Command[None]]:
    """Store the record of an operation. All records expire an hour after the last write."""
    key = operations_key(prefix)
    return [
        Command(("HSET", key, operation_id, record), key, nothing),
        Command(("PEXPIRE", key, _KEPT_MS), key, nothing),
    ]


def forget_operations(prefix: str, operation_ids: Sequence[str]) -> Command[None]:
    """Delete the records of old operations."""
    key = operations_key(prefix)
    return Command(("HDEL", key, *operation_ids), key, nothing)


def get_operations(prefix: str) -> Command[dict[str, bytes]]:
    """Read the records of current and recent operations, by id."""
    key = operations_key(prefix)

    def read(reply: list[bytes]) -> dict[str, bytes]:
        return {text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}

    return Command(("HGETALL", key), key, read)


def get_next_schedulers(queue: QueueKeys, most: int) -> Command[list[tuple[float, str]]]:
    """List the schedulers that run next, as pairs of time (in ms since 1970) and id."""

    def read(reply: list[bytes]) -> list[tuple[float, str]]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [(float(score), text(scheduler)) for scheduler, score in pairs]

    words: tuple[Word, ...] = ("ZRANGE", queue.repeat, 0, most - 1, "WITHSCORES")
    return Command(words, queue.repeat, read)


def operations_key(prefix: str) -> str:
    """Return the key of the operations hash. It is unique, because no queue has an empty name."""
    return f"{prefix}::tb:operations"


def _once(prefix: str, number: str) -> str:
    return f"{prefix}::tb:once:{number}"


# Workers: status records, error counts and the registry of queue names.

RECORD_WORKER = load("record_worker")
GET_RECORDS = load("get_records")
RECORD_ERRORS = load("record_errors")

RECORD_LIFE_MS: Final = 62_500
"""Lifetime of a record: two and a half times the renewal interval of an idle worker."""

_MEMORY_MS: Final = 86_400_000
"""Retention of a stopped worker's last-seen time, in milliseconds."""

_ERRORS_LIFE_MS: Final = 25 * 3_600_000
MOST_ERRORS: Final = 200
_HOUR_MS: Final = 3_600_000
_MOST_WORKERS: Final = 100
_MOST_QUEUES: Final = 10_000

OTHER: Final = "other"


class CountedError(Struct, frozen=True):
    """Attempts that failed with the same error and were retried."""

    fingerprint: str
    task: str
    error: str
    count: int


def record_worker(queue: QueueKeys, record: WorkerRecord) -> Call[None]:
    """Store a worker's status record, with 6 commands."""
    return _note(queue, record.id, record.at_ms, encode_record(record))


def forget_worker(queue: QueueKeys, worker_id: str, now_ms: int) -> Call[None]:
    """Delete the record of a worker that has stopped, and update its last-seen time."""
    return _note(queue, worker_id, now_ms, b"")


def get_records(queue: QueueKeys) -> Call[list[Seen]]:
    """Read the records of the 100 taskbull workers seen most recently, with 101 commands."""

    def read(reply: list[bytes]) -> list[Seen]:
        return [
            Seen(text(worker), number(at), decode_record(record) if record else None)
            for worker, at, record in zip(*(reply[place::3] for place in range(3)), strict=True)
        ]

    return Call(GET_RECORDS, (_workers(queue),), (queue.base, _MOST_WORKERS), read)


def record_errors(
    queue: QueueKeys, counted: Mapping[ErrorFingerprint, int], now_ms: int
) -> Call[None]:
    """Count failed attempts by error. Redis keeps up to `MOST_ERRORS` different errors per hour."""
    flat: list[Any] = []
    for what, count in counted.items():
        flat += [
            what.fingerprint,
            count,
            msgspec.json.encode([what.task[:200], what.error]).decode(),
        ]
    args = (msgspec.msgpack.encode(flat), MOST_ERRORS, _ERRORS_LIFE_MS)
    return Call(RECORD_ERRORS, (_errors(queue, now_ms),), args, nothing)


def get_errors(queue: QueueKeys, now_ms: int) -> Command[list[CountedError]]:
    """Read the failed attempts that taskbull workers counted in one clock hour, by frequency."""
    key = _errors(queue, now_ms)

    def read(reply: list[bytes]) -> list[CountedError]:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        found = [
            CountedError(text(name), *_about(fields.get(name + b":a")), number(count))
            for name, count in fields.items()
            if not name.endswith(b":a")
        ]
        return sorted(found, key=lambda each: -each.count)

    return Command(("HGETALL", key), key, read)


def register_queues(prefix: str, names: list[str], now_ms: int) -> Command[None]:
    """Register queue names, so that tools can find the queues without a search."""
    key = queues_key(prefix)
    scored: list[Word] = [word for name in names[:_MOST_QUEUES] for word in (now_ms, name)]
    return Command(("ZADD", key, *scored), key, nothing)


def register_found(prefix: str, names: list[str], now_ms: int) -> Command[None]:
    """Register queue names found by a search, unless they are already registered."""
    key = queues_key(prefix)
    scored: list[Word] = [word for name in names[:_MOST_QUEUES] for word in (now_ms, name)]
    return Command(("ZADD", key, "NX", *scored), key, nothing)


def unregister_queue(prefix: str, name: str) -> Command[None]:
    """Remove a queue name from the registry."""
    key = queues_key(prefix)
    return Command(("ZREM", key, name), key, nothing)


def get_registered(prefix: str) -> Command[list[str]]:
    """Read the registered queue names, sorted: the 10,000 that were registered last."""
    key = queues_key(prefix)
    words: tuple[Word, ...] = ("ZREVRANGE", key, 0, _MOST_QUEUES - 1)
    return Command(words, key, lambda reply: sorted(text(name) for name in reply))


def get_registered_before(prefix: str, at_ms: int) -> Command[list[str]]:
    """Read the queue names that were last registered at or before `at_ms`."""
    key = queues_key(prefix)
    words: tuple[Word, ...] = ("ZRANGEBYSCORE", key, "-inf", at_ms, "LIMIT", 0, _MOST_QUEUES)
    return Command(words, key, texts)


def queues_key(prefix: str) -> str:
    """Return the key of the registry. It is unique, because no queue has an empty name."""
    return f"{prefix}::tb:queues"


def _note(queue: QueueKeys, worker_id: str, now_ms: int, record: bytes) -> Call[None]:
    keys = (_workers(queue), queue.private("worker", worker_id, "about"))
    args = (worker_id, now_ms, record, RECORD_LIFE_MS, _MEMORY_MS)
    return Call(RECORD_WORKER, keys, args, nothing)


def _workers(queue: QueueKeys) -> str:
    return queue.private("workers")


def _errors(queue: QueueKeys, now_ms: int) -> str:
    return queue.private("errors", str(now_ms // _HOUR_MS))


def _about(raw: bytes | None) -> tuple[str, str]:
    try:
        task, error = msgspec.json.decode(raw or b"", type=tuple[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", OTHER
    return task, error


# Queue samples, taken by one worker per queue: the one that holds a key that expires.


class Sample(Struct, frozen=True):
    """The job counts of a queue, and the time when the longest-waiting job became ready."""

    counts: Counts
    waiting_since_ms: int | None
    """Time when that job became ready, or None if no job waits or the time is unknown."""
    group_jobs: dict[tuple[str, str], int]
    """Number of jobs by group and state, as `count_group_jobs` returns it."""


def sample_queue(
    queue: QueueKeys, worker_id: str, term_ms: int, *, held: bool
) -> Steps[Sample | None]:
    """Return a sample of a queue, or None if another worker samples it.

    A worker remains the sampler of a queue as long as it samples it at least every `term_ms`. Set
    `held` if this worker was the sampler last time.
    """
    if not (yield from _chosen(queue, worker_id, term_ms, held=held)):
        return None
    return (yield from read_sample(queue))


def read_sample(queue: QueueKeys) -> Steps[Sample]:
    """Return a sample of a queue without writing, even if another worker samples it."""
    counts: Counts = yield count_jobs(queue)
    since: list[int] = []
    for state, words in (
        (JobState.WAITING, ("LRANGE", queue.wait, -1, -1)),
        (JobState.PAUSED, ("LRANGE", queue.paused, -1, -1)),
        (JobState.PRIORITIZED, ("ZRANGE", queue.prioritized, 0, 0)),
    ):
        if not counts[state]:
            continue
        found: list[str] = yield Command(words, queue.wait, texts)
        for job_id in found:
            key = queue.job(job_id)
            fields = ("HMGET", key, TIMESTAMP_FIELD, OPTIONS_FIELD)
            ready_ms: int | None = yield Command(fields, key, lambda reply: read_ready_ms(*reply))
            if ready_ms is not None:
                since.append(ready_ms)
    group_jobs: dict[tuple[str, str], int] = {}
    if counts[JobState.PRIORITIZED]:
        group_jobs = yield from count_group_jobs(queue, MOST_GROUPS)
    return Sample(counts, min(since, default=None), group_jobs)


def resign(queue: QueueKeys) -> Command[int]:
    """Stop being the sampler of a queue, so that another worker can take over."""
    key = _key(queue)
    return Command(("DEL", key), key, int)


def _chosen(queue: QueueKeys, worker_id: str, term_ms: int, *, held: bool) -> Steps[bool]:
    # The key may change hands between these commands. Then two workers report one sample each.
    key = _key(queue)
    take = Command(("SET", key, worker_id, "NX", "PX", term_ms), key, bool)
    if not held and (yield take):
        return True
    holder: bytes | None = yield Command(("GET", key), key, lambda found: found)
    if holder is None:
        return bool((yield take))
    if holder != worker_id.encode():
        return False
    # Unlike PEXPIRE, Redis refuses SET when its memory is full, so that the worker notices.
    return bool((yield Command(("SET", key, worker_id, "XX", "PX", term_ms), key, bool)))


def _key(queue: QueueKeys) -> str:
    return queue.private("sampler")

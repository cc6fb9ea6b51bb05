"""Ending and taking jobs: what a worker does all day, many of each in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from taskbull.core.durations import to_ms
from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import (
    Completed,
    Failed,
    Limited,
    Released,
    Retried,
    Snoozed,
    Written,
)
from taskbull.core.retention import Keep
from taskbull.core.states import MAX_DUE_MS
from taskbull.core.wire.job import decode_taken, encode_stacktrace
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import texts

CYCLE = load("cycle")

pack = msgspec.msgpack.encode

Packed: TypeAlias = msgspec.Raw
"""An outcome in the form in which the script takes it."""

_NO_BOUNDS = (-1, -1, -1)


class Taking(Struct, frozen=True):
    """How a worker takes jobs; the same in every call but for the token and the number."""

    lock_life_ms: int
    max_starts: int = 0
    window_ms: int = 0
    worker_name: str = ""
    data_points: int = 0


class Keeping(Struct, frozen=True):
    """How a worker keeps jobs that do not say it themselves; None: all."""

    completed: Keep | None = None
    failed: Keep | None = None


class Cycled(Struct, frozen=True):
    """What a cycle did."""

    codes: list[int]
    """Per outcome 0, or a negative code: see the script."""
    jobs: list[Job]
    limited_ms: int
    """How long the queue lets nobody start a job; 0 if it does."""
    next_due_ms: int
    """When the next delayed job is due, if no job was taken; 0 if there is none."""
    full: bool
    """No job was taken, for Redis is out of memory."""
    reasons: list[str]
    """Of each outcome that was refused or denied, in turn: what Redis said."""
    dropped: list[str]
    """Ids in the waiting list that were not those of jobs that can be run."""


def cycle(
    queue: QueueKeys,
    now_ms: int,
    outcomes: Sequence[Packed],
    want: int,
    token: str,
    taking: Taking,
) -> Call[Cycled]:
    """End jobs and take up to `want` others; the call gives what became of both.

    `token` is `<carrier>:<number>`, with a number that the carrier has not used before.
    """
    keys = (
        queue.meta,
        queue.wait,
        queue.paused,
        queue.active,
        queue.prioritized,
        queue.priority_counter,
        queue.delayed,
        queue.completed,
        queue.failed,
        queue.stalled,
        queue.limiter,
        queue.marker,
        queue.events,
        queue.id,
        memo(queue, token),
    )
    args = (
        queue.base,
        now_ms,
        pack(outcomes),
        want,
        token,
        taking.lock_life_ms,
        taking.max_starts,
        taking.window_ms,
        taking.worker_name,
        taking.data_points,
    )
    return Call(CYCLE, keys, args, partial(_cycled, now_ms, taking.worker_name or None))


def memo(queue: QueueKeys, token: str) -> str:
    """Name the key that remembers what the last call of a carrier answered to its outcomes."""
    return queue.private("cycle", token.rpartition(":")[0] or token)


KEEP_ALL = Keeping()


def pack_outcome(
    job: Job,
    token: str,
    outcome: Written,
    attempts: int,
    now_ms: int,
    keep: Keeping = KEEP_ALL,
) -> Packed:
    """Put an outcome into the script's form.

    `attempts` is how many the job has in all; what the job itself says about keeping wins over
    `keep`. Delays end before BullMQ's own end of time. Each outcome is packed by itself, so that
    one that cannot be packed raises alone.
    """
    return msgspec.Raw(pack(_entry(job, token, outcome, attempts, now_ms, keep)))


def _entry(
    job: Job, token: str, outcome: Written, attempts: int, now_ms: int, keep: Keeping
) -> tuple[object, ...]:
    match outcome:
        case Completed(value):
            return (
                job.id,
                token,
                1,
                value.decode(),
                _keep(job.options.keep_completed or keep.completed),
            )
        case Failed(failure, _):
            stacks = encode_stacktrace(job, failure.stack).decode()
            kept = _keep(job.options.keep_failed or keep.failed)
            return job.id, token, 2, failure.reason, stacks, kept, attempts
        case Retried(failure, delay, remembered):
            stacks = encode_stacktrace(job, failure.stack).decode()
            previous = -1 if remembered is None else to_ms(remembered)
            wait = _wait_ms(delay, now_ms)
            lifo = job.options.lifo
            return job.id, token, 3, failure.reason, stacks, wait, lifo, previous
        case Snoozed(delay):
            return job.id, token, 4, _wait_ms(delay, now_ms)
        case Limited(delay):
            return job.id, token, 5, to_ms(delay)
        case Released():
            return job.id, token, 5, 0
        case _:
            assert_never(outcome)


def _wait_ms(delay: float, now_ms: int) -> int:
    return min(to_ms(delay), MAX_DUE_MS - now_ms)


def _keep(keep: Keep | None) -> tuple[int, int, int]:
    if keep is None:
        return _NO_BOUNDS
    return (
        -1 if keep.count is None else keep.count,
        -1 if keep.age is None else -(-to_ms(keep.age) // 1000),
        -1 if keep.limit is None else keep.limit,
    )


def _cycled(now_ms: int, worker: str | None, reply: Any) -> Cycled:
    codes, jobs, limited, next_due, full, reasons, dropped = reply
    taken = [
        decode_taken(job_id, fields, now_ms, worker)
        for job_id, fields in zip(jobs[::2], jobs[1::2], strict=True)
    ]
    return Cycled(codes, taken, limited, next_due, full == 1, texts(reasons), texts(dropped))

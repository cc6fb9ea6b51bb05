"""Adding jobs: any number and kind of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.durations import to_ms
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.job import EncodedJob
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load

ADD = load("add")

MEMO_LIFE_MS = 900_000
"""For how long Redis knows what a call has done."""

pack = msgspec.msgpack.encode


class Result(IntEnum):
    """What became of a job that was to be added."""

    ADDED = 0
    DUPLICATE = 1
    """A job of that id was there; it is as it was."""
    DEDUPLICATED = 2
    """Another job stands for it; the id is that one's."""
    NO_PARENT = -5
    OTHER_PARENT = -7


class Added(Struct, frozen=True):
    """The answer for one job."""

    id: str
    result: Result


class Lane(Struct):
    """A line of add calls, one after the other: each is numbered, and the last is remembered.

    That makes adding idempotent: a call whose reply was lost is sent again under its number, and
    gets the first answer if it had been executed. One that arrives when the lane has gone on is
    not executed at all. The mark is a digest of the call's jobs: two processes that are clones of
    one image have the same lanes, but not the same calls.
    """

    producer: str
    number: int
    calls: int = 0
    mark: str = ""

    def begin_call(self) -> None:
        """Go on to the next call."""
        self.calls += 1
        self.mark = ""


def add_jobs(
    queue: QueueKeys, jobs: Sequence[EncodedJob], now_ms: int, lane: Lane
) -> Call[list[Added]]:
    """Add jobs, in order, as the lane's current call; it gives one answer for each.

    No answer at all: the lane's number was used by another, and nothing was done.
    """
    keys = (
        queue.private("add", lane.producer, str(lane.number)),
        queue.id,
        queue.meta,
        queue.wait,
        queue.paused,
        queue.active,
        queue.prioritized,
        queue.priority_counter,
        queue.delayed,
        queue.waiting_children,
        queue.completed,
        queue.marker,
        queue.events,
    )
    packed = pack([_entry(job) for job in jobs])
    if not lane.mark:
        lane.mark = blake2b(packed, digest_size=8).hexdigest()
    args = (queue.base, now_ms, lane.calls, lane.mark, MEMO_LIFE_MS, packed)
    return Call(ADD, keys, args, _added)


def _entry(job: EncodedJob) -> tuple[object, ...]:
    entry = (  # text, not bytes: the msgpack in Redis knows no binary strings
        job.job_id,
        job.name,
        job.data.decode(),
        job.options.decode(),
        job.timestamp_ms,
        job.delay_ms,
        job.priority,
        job.lifo,
        _special(job) if job.dedup or job.parent or job.has_children else False,
    )
    return entry if job.place is None else (*entry, job.place)


def _special(job: EncodedJob) -> dict[str, object]:
    special: dict[str, object] = {"children": job.has_children}
    if (dedup := job.dedup) is not None:
        ttl_ms = 0 if dedup.ttl is None else to_ms(dedup.ttl)
        special["dedup"] = (dedup.key, ttl_ms, dedup.extend, dedup.replace, dedup.keep_last)
    if (parent := job.parent) is not None:
        special["parent"] = (parent.key, parent.id, parent.queue_key, parent.stored.decode())
    return special


def _added(reply: Any) -> list[Added]:
    return [
        Added(job_id.decode(), Result(code))
        for job_id, code in zip(reply[::2], reply[1::2], strict=True)
    ]

"""What became of a cycle whose reply was lost: told by what is in Redis, not by hope."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.job import decode_taken
from taskbull.scripts.call import Call, Steps
from taskbull.scripts.cycle import Taking, memo
from taskbull.scripts.loader import load
from taskbull.scripts.replies import texts

SETTLE_CYCLE = load("settle_cycle")
ADOPT_JOBS = load("adopt_jobs")

PIECE = 5000
"""How many active jobs one call looks at: 2 ms of the server's time."""

REPLY_BYTES = 1 << 20
"""How much one reply may bring of the jobs that are adopted; the last one may exceed it."""

pack = msgspec.msgpack.encode


class Settled(Struct, frozen=True):
    """What a lost cycle has done."""

    taken: list[str]
    """The ids of the jobs that it took."""
    codes: list[int]
    """What it answered for each outcome; empty: it was not executed, or nobody knows any more."""
    held: list[bool]
    """Of each outcome, whether its job is still locked: then it was not written."""


class Adopted(Struct, frozen=True):
    """Some of the jobs that a lost cycle took."""

    count: int
    """How many of those that were asked for are done with."""
    jobs: list[Job]
    """Those of them that are still ours; their locks were renewed."""


class _Piece(Struct, frozen=True):
    position: int
    settled: Settled


def settle_cycle(
    queue: QueueKeys,
    token: str,
    ended: Sequence[tuple[str, str]],
    want: int,
    *,
    piece: int = PIECE,
) -> Steps[Settled]:
    """Find what a cycle did that would have taken `want` jobs; `ended` are pairs of id and token.

    It reads only, so it may be asked again.
    """
    taken: dict[str, None] = {}
    position = 0
    outcomes = [part for pair in ended for part in pair]
    first: Settled | None = None
    while True:
        found: _Piece = yield _look(queue, token, outcomes, position, piece)
        taken.update(dict.fromkeys(found.settled.taken))
        if first is None:
            first = found.settled
            outcomes = []
        if found.position < 0 or len(taken) >= want:
            # The first that was taken first.
            return Settled(list(taken)[::-1], first.codes, first.held)
        position = found.position


def adopt_jobs(
    queue: QueueKeys,
    token: str,
    job_ids: Sequence[str],
    taken_ms: int,
    taking: Taking,
    *,
    size: int = REPLY_BYTES,
) -> Call[Adopted]:
    """Renew the locks of jobs that a lost cycle took, and read as many as one reply may hold.

    `taken_ms` and `taking` are what the cycle was given. Doing it again does no harm.
    """
    args = (queue.base, token, pack(job_ids), taking.lock_life_ms, size)
    read = partial(_adopted, taken_ms, taking.worker_name or None)
    return Call(ADOPT_JOBS, (queue.stalled,), args, read)


def _look(
    queue: QueueKeys, token: str, outcomes: Sequence[str], position: int, size: int
) -> Call[_Piece]:
    args = (queue.base, token, pack(outcomes), position, size)
    return Call(SETTLE_CYCLE, (queue.active, memo(queue, token)), args, _piece)


def _piece(reply: Any) -> _Piece:
    position, taken, codes, held = reply
    return _Piece(position, Settled(texts(taken), codes, [one == 1 for one in held]))


def _adopted(taken_ms: int, worker: str | None, reply: Any) -> Adopted:
    count, flat = reply
    jobs = [
        decode_taken(job_id, fields, taken_ms, worker)
        for job_id, fields in zip(flat[::2], flat[1::2], strict=True)
    ]
    return Adopted(count, jobs)

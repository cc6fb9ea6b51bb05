"""What became of a cycle whose reply was lost: told by what is in Redis, not by hope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.wire.job import decode_taken
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.steps import Steps

SETTLE_CYCLE = load("settle_cycle")

PIECE = 1000
"""How many active jobs one call looks at."""

pack = msgspec.msgpack.encode


class Trace(Struct, frozen=True):
    """What is seen of an outcome that may have been written."""

    held: bool
    """The job is still locked by its token: the outcome was not written."""
    finished_ms: int
    """-1 if the job is gone, 0 if it has not finished."""
    attempts_made: int


class Settled(Struct, frozen=True):
    """What a lost cycle has done."""

    jobs: list[Job]
    """Those that it took."""
    traces: list[Trace]
    """Of each outcome that it carried."""


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
    jobs: dict[str, Job] = {}
    position = 0
    outcomes = [part for pair in ended for part in pair]
    traces: list[Trace] | None = None
    while True:
        found: _Piece = yield _look(queue, token, outcomes, position, piece)
        jobs.update((job.id, job) for job in found.settled.jobs)
        if traces is None:
            traces = found.settled.traces
            outcomes = []
        if found.position < 0 or len(jobs) >= want:
            return Settled(list(jobs.values())[::-1], traces)  # the first that was taken first
        position = found.position


def _look(
    queue: QueueKeys, token: str, outcomes: Sequence[str], position: int, size: int
) -> Call[_Piece]:
    args = (queue.base, token, pack(outcomes), position, size)
    return Call(SETTLE_CYCLE, (queue.active,), args, _piece)


def _piece(reply: Any) -> _Piece:
    position, flat, marks = reply
    jobs = [decode_taken(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
    traces = [
        Trace(held == 1, finished, made)
        for held, finished, made in zip(marks[::3], marks[1::3], marks[2::3], strict=True)
    ]
    return _Piece(position, Settled(jobs, traces))

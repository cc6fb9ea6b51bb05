"""The locks of running jobs, and the sweep that rescues jobs whose lock is gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call, Steps
from taskbull.scripts.loader import load
from taskbull.scripts.replies import texts

EXTEND_LOCKS = load("extend_locks")
EXTEND_LOCK = load("extend_lock")
SWEEP_STALLED = load("sweep_stalled")

PIECE = 100
"""How many active jobs one call looks at: 2 ms of the server's time if all of them have stalled."""

_BEGIN, _OVER, _NOT_DUE = -1, -1, -2

pack = msgspec.msgpack.encode


class Extended(Struct, frozen=True):
    """What became of locks that were to be renewed."""

    lost: set[str]
    """The ids of jobs whose lock is gone, or another's."""
    cancelled: Mapping[str, str] = {}
    """The ids of jobs that were cancelled, with the reason."""


def extend_locks(
    queue: QueueKeys, held: Iterable[tuple[str, str]], duration_ms: int
) -> Call[Extended]:
    """Renew the locks in `held`, pairs of id and token."""
    flat = [part for job_and_token in held for part in job_and_token]
    return Call(EXTEND_LOCKS, (queue.stalled,), (queue.base, pack(flat), duration_ms), _extended)


def _extended(reply: Any) -> Extended:
    lost, flat = texts(reply[0]), texts(reply[1])
    return Extended(set(lost), dict(zip(flat[::2], flat[1::2], strict=True)))


def extend_lock(queue: QueueKeys, job_id: str, token: str, duration_ms: int) -> Call[bool]:
    """Renew one lock, also while the queue's slot is on two nodes; the call tells if it is held."""
    return Call(EXTEND_LOCK, (queue.lock(job_id),), (token, duration_ms), bool)


class Sweep(Struct, frozen=True):
    """What a sweep found: the ids of jobs put back, and those of them that will fail."""

    put_back: list[str]
    doomed: list[str]
    has_leftovers: bool = False
    """Whether there may be flows that are half added or half cancelled."""


class SweepPiece(Struct, frozen=True):
    """What one piece of a sweep found, and where the next one begins."""

    position: int
    put_back: list[str]
    doomed: list[str]
    has_leftovers: bool


def sweep_stalled(
    queue: QueueKeys, now_ms: int, *, interval_ms: int, max_stalls: int, piece: int = PIECE
) -> Steps[Sweep | None]:
    """Put back active jobs whose lock is gone; None if another worker has swept just before."""
    put_back: list[str] = []
    doomed: list[str] = []
    position = _BEGIN
    while True:
        swept: SweepPiece = yield sweep_piece(
            queue, now_ms, interval_ms, max_stalls, position=position, size=piece
        )
        if swept.position == _NOT_DUE:
            return None
        put_back += swept.put_back
        doomed += swept.doomed
        if swept.position == _OVER:
            return Sweep(put_back, doomed, swept.has_leftovers)
        position = swept.position


def sweep_piece(
    queue: QueueKeys,
    now_ms: int,
    interval_ms: int,
    max_stalls: int,
    *,
    position: int = _BEGIN,
    size: int = PIECE,
) -> Call[SweepPiece]:
    """Sweep one piece of the active jobs; -1 begins, if it is time for a sweep."""
    keys = (
        queue.stalled_check,
        queue.stalled,
        queue.private("suspects"),
        queue.active,
        queue.wait,
        queue.paused,
        queue.repeat,
        queue.meta,
        queue.events,
        queue.marker,
    )
    args = (queue.base, now_ms, interval_ms, max_stalls, position, size)
    return Call(SWEEP_STALLED, keys, args, _swept)


def _swept(reply: Any) -> SweepPiece:
    position, put_back, doomed, *leftovers = reply
    return SweepPiece(position, texts(put_back), texts(doomed), any(leftovers))

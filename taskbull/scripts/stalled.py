"""The sweep that rescues the jobs of workers that are gone."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import texts
from taskbull.scripts.steps import Steps

SWEEP_STALLED = load("sweep_stalled")

PIECE = 150
"""How many active jobs one call looks at."""

_BEGIN, _OVER, _NOT_DUE = -1, -1, -2


class Sweep(Struct, frozen=True):
    """What a sweep found: the ids of jobs put back, and those of them that will fail."""

    put_back: list[str]
    doomed: list[str]


class Swept(Struct, frozen=True):
    """What one piece of a sweep found, and where the next one begins."""

    position: int
    put_back: list[str]
    doomed: list[str]


def sweep_stalled(
    queue: QueueKeys, now_ms: int, *, interval_ms: int, max_stalls: int, piece: int = PIECE
) -> Steps[Sweep | None]:
    """Put back active jobs whose lock is gone; None if another worker has swept just before."""
    put_back: list[str] = []
    doomed: list[str] = []
    position = _BEGIN
    while True:
        swept: Swept = yield sweep_piece(
            queue, now_ms, interval_ms, max_stalls, position=position, size=piece
        )
        if swept.position == _NOT_DUE:
            return None
        put_back += swept.put_back
        doomed += swept.doomed
        if swept.position == _OVER:
            return Sweep(put_back, doomed)
        position = swept.position


def sweep_piece(
    queue: QueueKeys,
    now_ms: int,
    interval_ms: int,
    max_stalls: int,
    *,
    position: int = _BEGIN,
    size: int = PIECE,
) -> Call[Swept]:
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


def _swept(reply: Any) -> Swept:
    position, put_back, doomed = reply
    return Swept(position, texts(put_back), texts(doomed))

"""Pausing and resuming a queue."""

from __future__ import annotations

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call, Command
from taskbull.scripts.loader import load
from taskbull.scripts.steps import Steps

PAUSE = load("pause")
RESUME = load("resume")

PIECE = 1_000
"""How many ids one call moves from list to list, if there are jobs in both."""


def pause(queue: QueueKeys, *, piece: int = PIECE) -> Steps[None]:
    """Let no worker take a job until the queue is resumed; jobs that run go on."""
    more = yield _pause(queue, begin=True, size=piece)
    while more:
        more = yield _pause(queue, begin=False, size=piece)


def resume(queue: QueueKeys, *, piece: int = PIECE) -> Steps[None]:
    """Let workers take jobs again; nothing that waits is lost or loses its place."""
    keys = (
        queue.wait,
        queue.paused,
        queue.prioritized,
        queue.delayed,
        queue.active,
        queue.meta,
        queue.events,
        queue.marker,
    )
    more = True
    while more:
        more = yield Call(RESUME, keys, (piece,), bool)


def is_paused(queue: QueueKeys) -> Command[bool]:
    """Tell whether the queue is paused."""
    return Command(("HEXISTS", queue.meta, "paused"), queue.meta, bool)


def _pause(queue: QueueKeys, *, begin: bool, size: int) -> Call[bool]:
    keys = (queue.wait, queue.paused, queue.active, queue.meta, queue.events, queue.marker)
    return Call(PAUSE, keys, (int(begin), size), bool)

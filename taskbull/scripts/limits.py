"""What a queue allows: any jobs at all, how many at once, in a while, how long a history."""

from __future__ import annotations

from taskbull.core.keys import QueueKeys
from taskbull.core.states import MAX_SAFE_INTEGER
from taskbull.core.wire.meta import (
    CONCURRENCY_FIELD,
    PAUSED_FIELD,
    RATE_LIMIT_FIELD,
    RATE_WINDOW_FIELD,
)
from taskbull.scripts.call import Call, Command, Steps
from taskbull.scripts.loader import load
from taskbull.scripts.replies import nothing, number

RATE_LIMIT_TTL = load("rate_limit_ttl")
IS_MAXED = load("is_maxed")
PAUSE = load("pause")
RESUME = load("resume")

PIECE = 1_000
"""How many ids one call moves from list to list, if there are jobs in both."""


def pause(queue: QueueKeys, *, piece: int = PIECE) -> Steps[None]:
    """Stop workers from taking jobs until the queue is resumed; running jobs continue."""
    more = yield _pause(queue, begin=True, size=piece)
    while more:
        more = yield _pause(queue, begin=False, size=piece)


def pause_noted(queue: QueueKeys, note: bytes) -> Steps[None]:
    """Pause a queue, and write down why."""
    key = _note(queue)
    yield Command(("SET", key, note), key, nothing)
    yield from pause(queue)


def resume(queue: QueueKeys, *, piece: int = PIECE) -> Steps[None]:
    """Allow workers to take jobs again; nothing that waits is lost or loses its place."""
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
    yield Command(("DEL", _note(queue)), queue.meta, nothing)


def is_paused(queue: QueueKeys) -> Command[bool]:
    """Return whether the queue is paused."""
    return Command(("HEXISTS", queue.meta, PAUSED_FIELD), queue.meta, bool)


def _note(queue: QueueKeys) -> str:
    return queue.private("note")


def _pause(queue: QueueKeys, *, begin: bool, size: int) -> Call[bool]:
    keys = (queue.wait, queue.paused, queue.active, queue.meta, queue.events, queue.marker)
    return Call(PAUSE, keys, (int(begin), size), bool)


def get_global_concurrency(queue: QueueKeys) -> Command[int]:
    """Return how many jobs may run at once, in all workers together; 0: any number."""
    return Command(("HGET", queue.meta, CONCURRENCY_FIELD), queue.meta, number)


def set_global_concurrency(queue: QueueKeys, limit: int | None) -> Command[None]:
    """Allow `limit` jobs at once, in all workers together; None: any number."""
    if limit is None:
        words = ("HDEL", queue.meta, CONCURRENCY_FIELD)
        return Command(words, queue.meta, nothing)
    return Command(("HSET", queue.meta, CONCURRENCY_FIELD, limit), queue.meta, nothing)


def set_global_rate_limit(queue: QueueKeys, limit: tuple[int, int] | None) -> Command[None]:
    """Allow (number, ms) starts in each window, in all workers together; None: any number."""
    if limit is None:
        words = ("HDEL", queue.meta, RATE_LIMIT_FIELD, RATE_WINDOW_FIELD)
        return Command(words, queue.meta, nothing)
    most, window_ms = limit
    fields = (RATE_LIMIT_FIELD, most, RATE_WINDOW_FIELD, window_ms)
    return Command(("HSET", queue.meta, *fields), queue.meta, nothing)


def rate_limit(queue: QueueKeys, duration_ms: int) -> Command[None]:
    """Start no job for a while, where a rate limit is set at all, as in BullMQ."""
    words = ("SET", queue.limiter, MAX_SAFE_INTEGER, "PX", duration_ms)
    return Command(words, queue.limiter, nothing)


def remove_rate_limit(queue: QueueKeys) -> Command[None]:
    """Forget how many jobs were started in the current window."""
    return Command(("DEL", queue.limiter), queue.limiter, nothing)


def rate_limit_ttl(queue: QueueKeys, max_jobs: int | None = None) -> Call[int]:
    """Return the ms for which no job is started; `max_jobs` is the limit of a worker, if any."""
    return Call(RATE_LIMIT_TTL, (queue.limiter, queue.meta), (max_jobs or 0,), int)


def is_maxed(queue: QueueKeys) -> Call[bool]:
    """Return whether as many jobs run as the global concurrency allows."""
    return Call(IS_MAXED, (queue.active, queue.meta), (), bool)


def trim_events(queue: QueueKeys, length: int) -> Command[int]:
    """Keep about the last `length` events; the call gives how many were dropped."""
    return Command(("XTRIM", queue.events, "MAXLEN", "~", length), queue.events, int)

"""The marker: where BullMQ's producers ring, and an idle worker waits."""

from __future__ import annotations

from typing import Any, Final

from taskbull.core.keys import QueueKeys
from taskbull.core.wire.numbers import bounded
from taskbull.scripts.call import Command
from taskbull.scripts.replies import nothing

_DELAYED: Final = b"1"
"""The member whose score is the time when the next delayed job is due."""


def wait_for_marker(queue: QueueKeys, timeout: float) -> Command[float | None]:
    """Wait for the marker; return when there is a job to take, in ms since 1970; None: no marker.

    0 is at once.
    """
    return Command(("BZPOPMIN", queue.marker, timeout), queue.marker, _due_ms, held=timeout)


def ring(queue: QueueKeys) -> Command[None]:
    """Wake a worker."""
    return Command(("ZADD", queue.marker, 0, "0"), queue.marker, nothing)


def has_jobs_to_come(queue: QueueKeys) -> Command[bool]:
    """Find out whether any job waits, or will."""
    words = ("EXISTS", queue.wait, queue.prioritized, queue.delayed)
    return Command(words, queue.wait, bool)


def _due_ms(reply: Any) -> float | None:
    if not reply:
        return None
    _, member, score = reply
    return (bounded(float(score)) or 0) if member == _DELAYED else 0

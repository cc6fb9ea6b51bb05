"""The states of a job, and the score and priority arithmetic of the format."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is."""

    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    PAUSED = "paused"
    UNKNOWN = "unknown"


STATES = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.PAUSED,
    JobState.FAILED,
    JobState.COMPLETED,
)
"""The states in which a job can be, in the order in which people look at them."""


MAX_PRIORITY = 2**21 - 1
"""The least urgent priority: one more, and its scores would leave a double's integers."""

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that JSON, Redis scores and Node hold exactly."""

MAX_DUE_MS = 2**41 - 1
"""The last millisecond that a delayed score can hold: 6 September 2039."""

_PRIORITY_STEP = 2**32
_DELAY_STEP = 4096


def priority_score(priority: int, counter: int) -> int:
    """Return the score in `prioritized`; lower runs first, `counter` orders equal priorities."""
    return priority * _PRIORITY_STEP + counter % _PRIORITY_STEP


def priority_of_score(score: float) -> int:
    """Return the priority that a score in `prioritized` stands for."""
    return _whole(score) // _PRIORITY_STEP


def due_ms(base_ms: int, delay_ms: int) -> int:
    """Return when a job is due, at most the last instant that a score can hold."""
    return min(base_ms + max(delay_ms, 0), MAX_DUE_MS)


def delay_score_range(due: int) -> tuple[int, int]:
    """Return the lowest and highest score of jobs that are due in this millisecond."""
    lowest = due * _DELAY_STEP
    return lowest, lowest + _DELAY_STEP - 1


def due_ms_of_score(score: float) -> int:
    """Return the millisecond at which a job with this score in `delayed` is due."""
    return _whole(score) // _DELAY_STEP


def _whole(score: float) -> int:
    # Anybody may write any score, infinity included.
    return int(max(-MAX_SAFE_INTEGER, min(score, MAX_SAFE_INTEGER)))


def highest_due_score(now_ms: int) -> int:
    """Return the highest score in `delayed` that is due at `now_ms`."""
    return delay_score_range(now_ms)[1]

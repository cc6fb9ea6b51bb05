"""Job states, and the arithmetic of BullMQ's priority and delay scores."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """State of a job."""

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
"""States of stored jobs, in display order."""


MAX_PRIORITY = 2**21 - 1
"""Least urgent priority. The scores of a larger one would exceed a double's exact integers."""

MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that JSON, Redis scores and Node represent exactly."""

MAX_DUE_MS = 2**41 - 1
"""Last millisecond that a score in `delayed` can hold: 6 September 2039."""

_PRIORITY_STEP = 2**32
_DELAY_STEP = 4096


def priority_score(priority: int, counter: int) -> int:
    """Return the score in `prioritized`. Lower runs first; `counter` orders equal priorities."""
    return priority * _PRIORITY_STEP + counter % _PRIORITY_STEP


def priority_of_score(score: float) -> int:
    """Return the priority that a score in `prioritized` encodes."""
    return _whole(score) // _PRIORITY_STEP


def due_ms(base_ms: int, delay_ms: int) -> int:
    """Return the time when a job is due, capped at `MAX_DUE_MS`."""
    return min(base_ms + max(delay_ms, 0), MAX_DUE_MS)


def delay_score_range(due: int) -> tuple[int, int]:
    """Return the lowest and the highest score of jobs that are due in this millisecond."""
    lowest = due * _DELAY_STEP
    return lowest, lowest + _DELAY_STEP - 1


def due_ms_of_score(score: float) -> int:
    """Return the due time in ms that a score in `delayed` encodes."""
    return _whole(score) // _DELAY_STEP


def _whole(score: float) -> int:
    # Other clients may write any score, including infinity.
    return int(max(-MAX_SAFE_INTEGER, min(score, MAX_SAFE_INTEGER)))


def highest_due_score(now_ms: int) -> int:
    """Return the highest score in `delayed` that is due at `now_ms`."""
    return delay_score_range(now_ms)[1]

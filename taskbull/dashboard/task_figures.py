"""How jobs of each task fare: figures over those that ended last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.dashboard.board import Board
from taskbull.dashboard.visit import Visit
from taskbull.queue.job_row import JobRow
from taskbull.queue.looked import START

_PAGES: Final = 5
"""Calls for each of the two ends, 50 jobs each."""

_FRESH: Final = 30.0


class TaskFigures(Struct, frozen=True):
    """One task: durations are seconds, None if not known."""

    name: str
    share: float
    """Of all jobs that were looked at."""
    failed: float
    """The share of its own jobs that failed."""
    waited: float | None
    took: float | None
    took_long: float | None
    """What 95 % of them stayed below."""


class QueueFigures(Struct, frozen=True):
    """The tasks of a queue, the most frequent first."""

    looked_at: int
    tasks: list[TaskFigures]


def figures_of(rows: Sequence[JobRow]) -> QueueFigures:
    """Return the figures of each task over some jobs that have ended."""
    by_name: dict[str, list[JobRow]] = {}
    for row in rows:
        if not row.gone:
            by_name.setdefault(row.job.name, []).append(row)
    looked_at = sum(map(len, by_name.values()))
    tasks = [_figures(name, some, looked_at) for name, some in by_name.items()]
    return QueueFigures(looked_at, sorted(tasks, key=lambda task: -task.share))


def _figures(name: str, rows: Sequence[JobRow], of: int) -> TaskFigures:
    waited = [
        (job.processed_ms - job.created_ms - job.delay_ms) / 1000
        for job in (row.job for row in rows)
        if job.processed_ms is not None and job.created_ms is not None and job.attempts_made <= 1
    ]
    took = [
        (job.finished_ms - job.processed_ms) / 1000
        for job in (row.job for row in rows)
        if job.finished_ms is not None and job.processed_ms is not None
    ]
    failed = sum(row.state is JobState.FAILED for row in rows)
    return TaskFigures(
        name,
        len(rows) / of,
        failed / len(rows),
        _below(waited, 0.5),
        _below(took, 0.5),
        _below(took, 0.95),
    )


def _below(values: list[float], share: float) -> float | None:
    """Return what this share of the values stays below."""
    if not values:
        return None
    return max(0.0, sorted(values)[min(int(len(values) * share), len(values) - 1)])


async def read_figures(board: Board, visit: Visit, queue: str) -> QueueFigures:
    """Read the figures of a queue: up to ten calls, and none for half a minute after that."""

    async def read() -> QueueFigures:
        rows: list[JobRow] = []
        for state in (JobState.COMPLETED, JobState.FAILED):
            after = START
            for _ in range(_PAGES):
                await visit.pace()
                page = await visit.server.peek(queue, state, after=after)
                rows += page.rows
                if page.after is None:
                    break
                after = page.after
        return figures_of(_newest(rows))

    return await board.views.read(("figures", queue), read, _FRESH)


def _newest(rows: Sequence[JobRow]) -> list[JobRow]:
    """Leave out what is older than the other end reaches back: shares would be wrong."""
    full = _PAGES * 50
    since = 0
    for state in (JobState.COMPLETED, JobState.FAILED):
        ended = [row.job.finished_ms or 0 for row in rows if row.state is state]
        if len(ended) == full:
            since = max(since, min(ended))
    return [row for row in rows if (row.job.finished_ms or 0) >= since]

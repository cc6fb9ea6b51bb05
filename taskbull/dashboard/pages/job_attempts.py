"""The attempts of a job, one by one: when each began, how long it took, how it ended."""

from __future__ import annotations

from typing import Final

from taskbull.core.attempt_times import AttemptEnd, AttemptTimes, JobHistory, attempts_of
from taskbull.core.fingerprint import alike
from taskbull.core.job import Job
from taskbull.core.states import JobState
from taskbull.dashboard.board import Board
from taskbull.dashboard.html import Element, Node, h2, p, section, span, th, tr
from taskbull.dashboard.parts import cell, grid
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import clock, duration, number
from taskbull.queue.job_row import JobRow

_SHOWN: Final = 20
_FRESH: Final = 60.0
_NONE: Final = JobHistory([], 0, whole=True)
_COLUMNS: tuple[Node, ...] = (
    th("#", scope="col", class_="n"),
    "Began",
    th("Took", scope="col", class_="n"),
    "Ended",
    "Error",
)
_ENDS = {
    "running": ("▶ runs", None),
    "completed": ("✓ done", None),
    "failed": ("✗ failed", "bad"),
    "stalled": ("? stalled: its worker was gone", "warn"),
    "again": ("↺ tried again", "warn"),
}


async def attempts(board: Board, visit: Visit, row: JobRow) -> Element:
    """Show the attempts of a job that has had several; their times, as far as they are known."""
    job = row.job
    started = job.attempts_started or job.attempts_made
    if started < 2:
        return section(id="attempts", hidden=True)
    # They only change when an attempt begins or ends.
    view = ("history", row.queue, job.id, started, job.attempts_made, row.state)
    history: JobHistory = await board.views.read(
        view, lambda: visit.server.history(row.queue, job.id), _FRESH
    )
    known = {each.number: each for each in attempts_of(history.events, started)}
    known.setdefault(started, _last(row, started))
    errors = _errors(job, list(known.values()), started)
    first = max(1, started - _SHOWN + 1)
    return section(
        h2("Attempts"),
        grid(
            "attempt-list",
            _COLUMNS,
            [_line(each, known.get(each), errors) for each in range(started, first - 1, -1)],
            "",
        ),
        p(_source(history, started - len(known)), class_="quiet"),
        id="attempts",
        class_="card",
    )


def _line(place: int, times: AttemptTimes | None, errors: dict[int, str]) -> Element:
    error = span(errors.get(place, ""), class_="cut")
    if times is None:
        return tr(
            cell("#", str(place), kind="n"),
            cell("Began", "–"),
            cell("Took", "–", kind="n"),
            cell("Ended", span("not known any more", class_="quiet")),
            cell("Error", error, kind="w"),
        )
    words, look = _ENDS[times.end]
    took = None
    if times.began is not None and times.ended is not None:
        took = (times.ended - times.began).total_seconds()
    return tr(
        cell("#", str(place), kind="n"),
        cell("Began", clock(times.began), kind="nw"),
        cell("Took", duration(took), kind="n"),
        cell("Ended", span(words, class_=look), kind="nw"),
        cell("Error", error, kind="w"),
    )


_STATE_ENDS: Final[dict[JobState, AttemptEnd]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.ACTIVE: "running",
}


def _last(row: JobRow, started: int) -> AttemptTimes:
    """Return the last attempt as the job itself has it."""
    job, end = row.job, _STATE_ENDS.get(row.state, "again")
    return AttemptTimes(started, job.processed_on, job.finished_on, end)


def _errors(job: Job, known: list[AttemptTimes], started: int) -> dict[int, str]:
    """Return the error of each attempt: there is one stack for each that failed, the last last."""
    stacks = job.stacktrace
    if len(stacks) == started or (len(stacks) == started - 1 and known[-1].end != "failed"):
        failed = list(range(1, len(stacks) + 1))
    else:
        failed = [each.number for each in known if each.end in {"again", "failed"}]
        if len(failed) != len(stacks):
            return {}
    reasons = [alike("", "", stack[:300], stack[-600:]).kind for stack in stacks]
    return dict(zip(failed, reasons, strict=True))


def _source(history: JobHistory, missing: int) -> str:
    told = f"Times are those of the newest {number(history.looked_at)} events of the queue"
    if missing > 0:
        return f"{told}, which reach no further back; of the last attempt, those of the job."
    return f"{told}; of the last attempt, those of the job where the events do not tell."

"""The jobs of one state, in lines."""

from __future__ import annotations

from taskbull.core.states import JobState
from taskbull.dashboard.html import (
    Element,
    Node,
    a,
    button,
    code,
    div,
    form,
    input_,
    span,
    strong,
    th,
    tr,
)
from taskbull.dashboard.pages.sight import TABS, Sight
from taskbull.dashboard.parts import cell, grid
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago, duration, number, since
from taskbull.queue.job_row import JobRow, JobRows
from taskbull.queue.looked import After

_WHEN = {
    JobState.WAITING: "Added",
    JobState.PRIORITIZED: "Added",
    JobState.WAITING_CHILDREN: "Added",
    JobState.ACTIVE: "Started",
    JobState.DELAYED: "Due",
}

_BULK = {
    JobState.FAILED: ("retry", "remove"),
    JobState.COMPLETED: ("retry", "remove"),
    JobState.DELAYED: ("promote", "cancel", "remove"),
    JobState.ACTIVE: ("cancel",),
}
_LABELS = {"retry": "Retry", "remove": "Remove…", "promote": "Run now", "cancel": "Cancel…"}


def job_list(visit: Visit, sight: Sight, page: JobRows, back: str) -> Element:
    """Return a page of jobs, to be ticked and acted on."""
    actions = [name for name in _BULK.get(sight.state, ("remove",)) if visit.may(name)]
    tick_all = input_(type="checkbox", data_all=True, hidden=True, aria_label="Select all shown")
    when = _WHEN.get(sight.state, "Ended")
    columns: list[Node] = [
        th(tick_all, scope="col") if actions else None,
        "Id",
        "Task",
        th("Attempts", scope="col", class_="n"),
        when,
        th("Took", scope="col", class_="n"),
        "About",
    ]
    rows = [job_line(visit, sight, row) for row in page.rows]
    sign = TABS[sight.state].lower()
    empty = f"No {sign} jobs." if sight.is_first else "No more jobs."
    return form(
        [
            input_(type="hidden", name=name, value=value)
            for name, value in (("q", sight.queue), ("state", str(sight.state)), ("back", back))
        ],
        grid("jobs", [column for column in columns if column is not None], rows, empty),
        div(
            span(
                span("", data_ticked=True),
                f"{len(page.rows):,} shown, {number(page.total)} in all",
            ),
            [
                button(
                    _LABELS[name],
                    type="submit",
                    name="action",
                    value=name,
                    class_="danger" if name in {"remove", "cancel"} else None,
                )
                for name in actions
            ]
            if page.rows
            else None,
            _pager(sight, page),
            class_="bulk",
        ),
        method="post",
        action="confirm",
        class_="select ask",
    )


def _pager(sight: Sight, page: JobRows) -> Element:
    order = "older" if sight.state in {JobState.FAILED, JobState.COMPLETED} else "later"
    return span(
        None if sight.is_first else a("‹ first", href=sight.at(After()).address),
        None if page.after is None else a(f"{order} ›", href=sight.at(page.after).address),
        class_="pager",
    )


def job_line(visit: Visit, sight: Sight, row: JobRow) -> Element:
    """Return the line of a job."""
    job = row.job
    tick = input_(type="checkbox", name="id", value=job.id, aria_label=f"Select job {job.id}")
    may_act = any(visit.may(name) for name in _BULK.get(sight.state, ("remove",)))
    return tr(
        cell("", tick, kind="tickbox") if may_act else None,
        cell("Id", link_to(job.id, "job", q=row.queue, id=job.id), kind="nw lead"),
        cell("Task", strong(job.name) if job.name else span("gone", class_="quiet")),
        cell("Attempts", _attempts(row), kind="n"),
        cell(_WHEN.get(sight.state, "Ended"), _when(row), kind="nw"),
        cell("Took", duration(_took(row)), kind="n"),
        cell("About", about(visit, row), kind="w"),
        id=f"job-{job.id}",
    )


def _attempts(row: JobRow) -> str:
    made = max(row.job.attempts_made, row.job.attempts_started)
    return f"{made}/{row.attempts}" if made else "–"


def _when(row: JobRow) -> Node:
    match row.state:
        case JobState.ACTIVE:
            return since(row.job.processed_on)
        case JobState.DELAYED:
            return ago(row.due)
        case JobState.FAILED | JobState.COMPLETED:
            return ago(row.job.finished_on)
        case _:
            return ago(row.job.timestamp)


def _took(row: JobRow) -> float | None:
    job = row.job
    if job.processed_ms is None or job.finished_ms is None:
        return None
    return (job.finished_ms - job.processed_ms) / 1000


def about(visit: Visit, row: JobRow) -> Node:
    """Return the most telling line of a job: its error, who runs it, or its data."""
    if row.gone:
        return span("only its id is left", class_="quiet")
    if row.state is JobState.FAILED or (
        row.job.failed_reason and row.state is not JobState.COMPLETED
    ):
        first = (row.job.failed_reason or "").strip().partition("\n")[0]
        return span(first, class_="cut bad" if row.state is JobState.FAILED else "cut warn")
    if row.state is JobState.ACTIVE and row.job.processed_by:
        return span("on ", code(row.job.processed_by), class_="cut")
    shown = row.result if row.state is JobState.COMPLETED else row.data
    text = " ".join(visit.settings.redactor.show(shown).split())
    return code(text, class_="cut quiet")

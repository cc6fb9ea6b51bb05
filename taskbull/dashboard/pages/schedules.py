"""The schedules page: next and last run of each schedule, and overdue ones."""

from __future__ import annotations

import time
from typing import Final

from taskbull.core.schedule import Schedule
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.html import Element, Node, div, h1, p, small, span, strong, th, tr, url
from taskbull.dashboard.layout import Content, ago, ask_button, badge, cell, duration, grid, number
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.state import DashboardState
from taskbull.monitor.browse import ScheduledRun

_LATE: Final = 60.0
_SHOWN: Final = 50
_DATA_SHOWN: Final = 60
_LARGEST_DATA: Final = 10_000
"""Data above this many bytes is not shown, because masking secrets takes time."""


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the schedules page, for one queue or all."""
    queue = ctx.query.get("q")
    sample = await dashboard.sampler.latest([queue] if queue else [])
    names = [queue] if queue else [
        name for name, state in sample.queues.items() if state.found.next_scheduled is not None
    ]  # fmt: skip
    start = ctx.query.number("n")
    found = await dashboard.views.read(
        ("schedules", tuple(names), start),
        lambda: ctx.server.next_schedules(names, start=start, limit=_SHOWN),
    )
    last = await dashboard.views.read(
        ("last runs", tuple(names), start), lambda: ctx.server.last_runs(found.schedules)
    )
    back = url("schedules", q=queue or None, n=start or None)
    body = [
        div(h1("Schedules", f" in {queue}" if queue else ""), class_="head"),
        grid(
            "schedules",
            [
                "Schedule",
                "Queue",
                "Task",
                "Rule",
                "Next",
                "Last run",
                th("Runs", scope="col", class_="n"),
                th("Actions", scope="col"),
            ],
            [
                _row(ctx, schedule, run, back)
                for schedule, run in zip(found.schedules, last, strict=True)
            ],
            "No schedules.",
        ),
        p(
            link_to("more ›", "schedules", q=queue or None, n=start + _SHOWN)
            if found.more
            else None,
            class_="quiet",
        ),
    ]
    return Content("Schedules", body, "schedules", queue or None)


def _row(ctx: RequestContext, schedule: Schedule, last: ScheduledRun | None, back: str) -> Element:
    fields = {"q": schedule.queue, "id": schedule.id}
    return tr(
        cell("Schedule", div(strong(schedule.id), _declared(schedule)), kind="lead"),
        cell("Queue", link_to(schedule.queue, "queue", q=schedule.queue)),
        cell("Task", schedule.task, " ", small(_arguments(ctx, schedule), class_="quiet")),
        cell("Rule", schedule.describe(), kind="w"),
        cell("Next", _next(schedule), kind="nw"),
        cell("Last run", _last(schedule, last), kind="nw"),
        cell("Runs", number(schedule.count), kind="n"),
        cell(
            "",
            div(
                ask_button(ctx, "run-schedule", "Run now", fields, back, "light"),
                ask_button(ctx, "remove-schedule", "Remove…", fields, back, "danger"),
                class_="actions",
            ),
            kind="bare",
        ),
    )


def _declared(schedule: Schedule) -> Node:
    if schedule.declared_by is None:
        return None
    return div(small("declared by ", schedule.declared_by, class_="quiet"))


def _arguments(ctx: RequestContext, schedule: Schedule) -> str:
    """Return the start of the data, with secrets masked."""
    if schedule.raw_data == b"{}" or len(schedule.raw_data) > _LARGEST_DATA:
        return ""
    text = " ".join(
        ctx.settings.redactor.show(schedule.raw_data.decode("utf-8", "replace")).split()
    )
    return text if len(text) <= _DATA_SHOWN else f"{text[:_DATA_SHOWN]}…"


def _last(schedule: Schedule, run: ScheduledRun | None) -> Node:
    if run is None:
        never = schedule.count <= 1 and schedule.is_pending
        return span("none yet" if never else "no longer stored", class_="quiet")
    when = ago(run.finished or run.started) if run.finished or run.started else "not started"
    return [badge(run.state), " ", link_to(when, "job", q=schedule.queue, id=run.id)]


def _next(schedule: Schedule) -> Node:
    if schedule.ended:
        return span("ended", class_="quiet")
    if schedule.next_run is None:
        return "–"
    late = time.time() - schedule.next_run.timestamp()
    if late > _LATE:
        return span(f"! {duration(late)} late", class_="bad")
    return ago(schedule.next_run)

"""The operations page (current and recent actions), and the error pages."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from taskbull.dashboard import html as h
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.html import body
from taskbull.dashboard.layout import Content, ago, ask_button, cell, grid, live_rows, meter, number
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    JobNotFound,
    JobsActive,
    MaybeExecuted,
    ScheduleNotFound,
    ServerRefused,
    TaskbullError,
    WorkerNotFound,
    WrongState,
)
from taskbull.monitor.audit import OperationRecord

# Operations: actions that are running, or finished in the last hour, with their users.


_SILENT_MS: Final = 15_000
"""Milliseconds without progress until an operation counts as interrupted."""

_COLUMNS: tuple[h.Node, ...] = (
    "State",
    "Action",
    "Queue",
    "About",
    h.th("Jobs", scope="col", class_="n"),
    "By",
    "When",
    h.th("Stop", scope="col"),
)

_EMPTY = "No actions in the last hour."


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the operations page."""
    rows = await _rows(dashboard, ctx)
    body = [
        h.div(h.h1("Operations"), class_="head"),
        h.p(
            "Actions from all dashboards and command lines on this Redis in the last hour.",
            class_="quiet",
        ),
        grid("operations", _COLUMNS, list(rows.values()), _EMPTY),
    ]
    return Content("Operations", body, "operations", live=h.url("live", page="operations"))


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    rows = await _rows(dashboard, ctx)
    return Parts(lists=live_rows("operations", _COLUMNS, rows, _EMPTY))


async def _rows(dashboard: DashboardState, ctx: RequestContext) -> dict[str, h.Element]:
    found = await dashboard.views.read(("operations",), ctx.server.operations)
    return {f"operation-{record.id}": _row(ctx, record) for record in found}


def _row(ctx: RequestContext, record: OperationRecord) -> h.Element:
    began = datetime.fromtimestamp(record.began_ms / 1000, UTC)
    runs = record.ended_ms is None
    silent = runs and time.time() * 1000 - record.beat_ms > _SILENT_MS
    return h.tr(
        cell("State", _state(record, silent=silent), kind="lead nw"),
        cell("Action", h.strong(record.action)),
        cell("Queue", link_to(record.queue, "queue", q=record.queue)),
        cell("About", record.what, _progress(record) if runs else None, kind="w"),
        cell("Jobs", number(record.count), kind="n"),
        cell("By", record.by),
        cell("When", ago(began), kind="nw"),
        cell("", _stop(ctx, record) if runs and not silent else None, kind="bare"),
        id=f"operation-{record.id}",
    )


def _state(record: OperationRecord, *, silent: bool) -> h.Element:
    if silent:
        return h.span("! interrupted", class_="warn")
    if record.ended_ms is None:
        return h.span("▶ running", class_="badge s-active")
    fine = record.outcome in {"done", "stopped"}
    return h.span(record.outcome or "done", class_="quiet" if fine else "bad")


def _progress(record: OperationRecord) -> h.Node:
    if not record.total:
        return None
    words = f"{number(record.examined)} of {number(record.total)} checked"
    return h.div(meter(100 * record.examined / record.total, words))


def _stop(ctx: RequestContext, record: OperationRecord) -> h.Node:
    fields = {"q": record.queue, "id": record.id}
    return ask_button(ctx, "stop", "Stop", fields, h.url("operations"), "light")


# Error pages.


_STATUSES: tuple[tuple[type[TaskbullError], int], ...] = (
    (JobNotFound, 404),
    (ScheduleNotFound, 404),
    (WorkerNotFound, 404),
    (WrongState, 409),
    (JobsActive, 409),
    (ConfigurationError, 400),
    (ConnectionLost, 503),
    (MaybeExecuted, 504),
)


def describe_error(error: TaskbullError) -> Refused:
    """Return the error response for a taskbull error."""
    status = next((number for kind, number in _STATUSES if isinstance(error, kind)), 502)
    said = str(error).rstrip(".")
    if isinstance(error, ConnectionLost):
        said = f"Redis is unavailable: {said}. Reload this page when Redis is back"
    elif isinstance(error, ServerRefused) and error.code == "NOPERM":
        said = f"Redis denies access: {said}. taskbull doctor names the missing permission"
    elif isinstance(error, MaybeExecuted):
        said += ". The action may have been executed. Check before you try again"
    return Refused(status, f"{said}.")


def problem(refused: Refused) -> Content:
    """Return the error page for an admitted user."""
    body = h.section(
        h.h1(HTTPStatus(refused.status).phrase),
        h.p(refused.reason),
        h.p(h.a("Overview", href="./")),
        class_="problem",
    )
    return Content(HTTPStatus(refused.status).phrase, body, page="-", status=refused.status)


def bare_problem(refused: Refused) -> h.Element:
    """Return the error page for a user without access. It shows only the error."""
    phrase = HTTPStatus(refused.status).phrase
    return h.html_(
        h.head(
            h.meta(charset="utf-8"),
            h.meta(name="viewport", content="width=device-width, initial-scale=1"),
            h.title(f"{phrase} – taskbull"),
            h.link(rel="stylesheet", href="static/style.css"),
        ),
        body(h.main(h.section(h.h1(phrase), h.p(refused.reason), class_="problem"))),
        lang="en",
    )

"""What is being done to queues, and was done in the last hour, by whom."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from taskbull.dashboard.board import Board
from taskbull.dashboard.frame import Content
from taskbull.dashboard.html import Element, Node, div, h1, p, span, strong, th, tr, url
from taskbull.dashboard.live import Parts
from taskbull.dashboard.parts import ask_button, cell, grid, meter
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago, number
from taskbull.queue.board_operations import OperationRecord

_SILENT_MS: Final = 15_000
"""After which an operation that does not get on has lost its process."""

_COLUMNS: tuple[Node, ...] = (
    "State",
    "Action",
    "Queue",
    "About",
    th("Jobs", scope="col", class_="n"),
    "By",
    "When",
    th("Stop", scope="col"),
)


async def show(board: Board, visit: Visit) -> Content:
    """Return the page of operations."""
    rows = await _rows(board, visit)
    body = [
        div(h1("Operations"), class_="head"),
        p("What was done here in the last hour, by any dashboard of this Redis.", class_="quiet"),
        grid("operations", _COLUMNS, list(rows.values()), "Nothing was done in the last hour."),
    ]
    return Content("Operations", body, "operations", live=url("live", page="operations"))


async def parts(board: Board, visit: Visit) -> Parts:
    """Return what changes on it."""
    rows = await _rows(board, visit)
    return Parts(lists={"operations": rows} if rows else {})


async def _rows(board: Board, visit: Visit) -> dict[str, Element]:
    found = await board.views.read(("operations",), visit.server.operations)
    return {f"operation-{record.id}": _row(visit, record) for record in found}


def _row(visit: Visit, record: OperationRecord) -> Element:
    began = datetime.fromtimestamp(record.began_ms / 1000, UTC)
    runs = record.ended_ms is None
    silent = runs and time.time() * 1000 - record.beat_ms > _SILENT_MS
    return tr(
        cell("State", _state(record, silent=silent), kind="lead nw"),
        cell("Action", strong(record.action)),
        cell("Queue", link_to(record.queue, "queue", q=record.queue)),
        cell("About", record.what, _progress(record) if runs else None, kind="w"),
        cell("Jobs", number(record.count), kind="n"),
        cell("By", record.by),
        cell("When", ago(began), kind="nw"),
        cell("", _stop(visit, record) if runs and not silent else None, kind="bare"),
        id=f"operation-{record.id}",
    )


def _state(record: OperationRecord, *, silent: bool) -> Element:
    if silent:
        return span("! broken off", class_="warn")
    if record.ended_ms is None:
        return span("▶ running", class_="badge s-active")
    fine = record.outcome in {"done", "stopped"}
    return span(record.outcome or "done", class_="quiet" if fine else "bad")


def _progress(record: OperationRecord) -> Node:
    if not record.total:
        return None
    words = f"{number(record.looked_at)} of {number(record.total)} looked at"
    return div(meter(100 * record.looked_at / record.total, words))


def _stop(visit: Visit, record: OperationRecord) -> Node:
    fields = {"q": record.queue, "id": record.id}
    return ask_button(visit, "stop", "Stop", fields, url("operations"), "light")

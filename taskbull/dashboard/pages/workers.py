"""The workers page: Node.js and Python workers, and the longest-running jobs."""

from __future__ import annotations

from functools import partial
from typing import Final

from taskbull.core.validation import instant_from_ms
from taskbull.core.worker_record import WorkerRecord
from taskbull.dashboard.components import cell, duration, grid, number, since, size
from taskbull.dashboard.components import link as link_to
from taskbull.dashboard.html import (
    Element,
    Node,
    code,
    div,
    h1,
    h2,
    p,
    section,
    span,
    strong,
    th,
    tr,
    url,
)
from taskbull.dashboard.layout import Content
from taskbull.dashboard.request_context import RequestContext
from taskbull.dashboard.sampler import BoardSample, QueueState
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import SerializationError, ServerRefused
from taskbull.monitor.browse import ConnectedWorker

_LONGEST: Final = 100


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the workers page."""
    sample = await dashboard.sampler.latest()
    body = [
        div(h1("Workers"), class_="head"),
        None
        if sample.workers.refusal is None
        else p(
            "This Redis does not list its connections (CLIENT LIST is refused), so only taskbull "
            "workers are shown.",
            class_="notice",
        ),
        grid("workers", _COLUMNS, list(_rows(sample).values()), "No workers are connected."),
        await _longest(dashboard, ctx, sample),
    ]
    return Content(
        "Workers", body, "workers", live=url("live", page="workers"), read_at=sample.stale_since
    )


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    sample = await dashboard.sampler.latest()
    longest = await _longest(dashboard, ctx, sample)
    return Parts({"longest": longest}, {"workers": _rows(sample)}, sample.problem)


_COLUMNS: tuple[Node, ...] = (
    "Worker",
    "Queue",
    "Host",
    "Software",
    th("Running", scope="col", class_="n"),
    "Uptime",
    th("Lag", scope="col", class_="n"),
    th("Memory", scope="col", class_="n"),
)


def _rows(sample: BoardSample) -> dict[str, Element]:
    rows: dict[str, Element] = {}
    for state in sample.queues.values():
        recorded = {record.id: record for record in state.facts.records}
        for record in recorded.values():
            rows[f"worker-{state.name}-{record.id}"] = _ours(state, record)
        for place, worker in enumerate(state.workers):
            if worker.name not in recorded:
                rows[f"worker-{state.name}-{worker.address}-{place}"] = _other(state, worker, place)
    return rows


def _ours(state: QueueState, record: WorkerRecord) -> Element:
    circuit = record.circuit
    is_open = circuit is not None and circuit.state != "closed"
    started = instant_from_ms(record.started_ms)
    return tr(
        cell("Worker", strong(record.id), kind="lead"),
        cell("Queue", link_to(state.name, "queue", q=state.name, state="active")),
        cell("Host", f"{record.host} · pid {record.pid}"),
        cell(
            "Software",
            f"taskbull {record.version}, Python {record.python}, {record.backend}",
            span(" ⚡ circuit open", class_="bad") if is_open else None,
            span(" stopping", class_="warn") if record.stopping else None,
        ),
        cell("Running", f"{number(record.running)}/{number(record.concurrency)}", kind="n"),
        cell("Uptime", since(started), kind="nw"),
        cell("Lag", duration(record.lag_ms / 1000), kind="n"),
        cell("Memory", size(record.memory) if record.memory else "–", kind="n"),
        id=f"worker-{state.name}-{record.id}",
    )


def _other(state: QueueState, worker: ConnectedWorker, place: int) -> Element:
    return tr(
        cell("Worker", strong(worker.name or "unnamed"), kind="lead"),
        cell("Queue", link_to(state.name, "queue", q=state.name, state="active")),
        cell("Host", worker.address),
        cell("Software", "Node.js or another BullMQ client"),
        cell("Running", "–", kind="n"),
        cell("Uptime", duration(worker.age), kind="nw"),
        cell("Lag", "–", kind="n"),
        cell("Memory", "–", kind="n"),
        id=f"worker-{state.name}-{worker.address}-{place}",
    )


async def _longest(dashboard: DashboardState, ctx: RequestContext, sample: BoardSample) -> Element:
    busy = [state.name for state in sample.queues.values() if state.found.counts["active"]][:20]
    rows: list[Element] = []
    for queue in busy:
        read = partial(ctx.server.active, queue, _LONGEST)
        try:
            active = await dashboard.views.read(("active", queue), read, 5.0)
        except (ServerRefused, SerializationError):
            continue  # The overview shows the error.
        rows += [
            tr(
                cell("Job", link_to(row.job.id, "job", q=queue, id=row.job.id), kind="lead"),
                cell("Queue", queue),
                cell("Task", row.job.name),
                cell("Worker", code(row.job.processed_by) if row.job.processed_by else "–"),
                cell("Running for", since(row.job.processed_on), kind="nw"),
                cell(
                    "Lock",
                    span("! lost (worker gone)", class_="bad")
                    if row.lock_seconds is None
                    else f"expires in {duration(row.lock_seconds)}",
                ),
            )
            for row in active[:5]
        ]
    columns: list[Node] = ["Job", "Queue", "Task", "Worker", "Running for", "Lock"]
    return section(
        h2("Longest-running jobs"),
        grid("longest-jobs", columns, rows, "No running jobs."),
        id="longest",
    )

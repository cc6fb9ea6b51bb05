"""The workers page: Node.js and Python workers, and the longest-running jobs."""

from __future__ import annotations

from functools import partial
from typing import Final

from taskbull.core.diagnosis import span
from taskbull.core.validation import instant_from_ms
from taskbull.core.worker_record import WorkerRecord, is_made_id
from taskbull.dashboard import html as h
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.layout import (
    Content,
    ask_button,
    cell,
    duration,
    grid,
    live_rows,
    number,
    since,
    size,
)
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.queue_line import QueueState, Sample
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import SerializationError, ServerRefused
from taskbull.monitor.browse import ConnectedWorker

_LONGEST: Final = 100


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the workers page."""
    sample = await dashboard.sampler.latest()
    body = [
        h.div(h.h1("Workers"), class_="head"),
        None
        if sample.workers.refusal is None
        else h.p(
            "This Redis does not list its connections (CLIENT LIST is refused), so only taskbull "
            "workers are shown.",
            class_="notice",
        ),
        grid("workers", _COLUMNS, list(_rows(ctx, sample).values()), _EMPTY),
        await _longest(dashboard, ctx, sample),
    ]
    return Content(
        "Workers", body, "workers", live=h.url("live", page="workers"), read_at=sample.stale_since
    )


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    sample = await dashboard.sampler.latest()
    longest = await _longest(dashboard, ctx, sample)
    rows = live_rows("workers", _COLUMNS, _rows(ctx, sample), _EMPTY)
    return Parts({"longest": longest}, rows, sample.problem)


_COLUMNS: tuple[h.Node, ...] = (
    "Worker",
    "Queue",
    "Host",
    "Software",
    h.th("Running", scope="col", class_="n"),
    "Uptime",
    h.th("Lag", scope="col", class_="n"),
    h.th("Memory", scope="col", class_="n"),
    h.th("Actions", scope="col"),
)

_EMPTY = "No workers are connected."


def _rows(ctx: RequestContext, sample: Sample) -> dict[str, h.Element]:
    rows: dict[str, h.Element] = {}
    for state in sample.queues.values():
        recorded = {record.id: record for record in state.facts.records}
        for record in recorded.values():
            rows[f"worker-{state.name}-{record.id}"] = _ours(ctx, state, record)
        for place, worker in enumerate(state.workers):
            if worker.name not in recorded:
                rows[f"worker-{state.name}-{worker.address}-{place}"] = _other(state, worker, place)
    return rows


def _ours(ctx: RequestContext, state: QueueState, record: WorkerRecord) -> h.Element:
    circuit = record.circuit
    is_open = circuit is not None and circuit.state != "closed"
    started = instant_from_ms(record.started_ms)
    return h.tr(
        cell("Worker", h.strong(record.id), kind="lead"),
        cell("Queue", link_to(state.name, "queue", q=state.name, state="active")),
        cell("Host", f"{record.host} · pid {record.pid}"),
        cell(
            "Software",
            f"taskbull {record.version}, Python {record.python}, {record.backend}",
            h.span(" ⚡ circuit open", class_="bad") if is_open else None,
            h.span(f" not responding for {_silent(state, record.id)}", class_="bad")
            if record.id in state.facts.silent
            else None,
            h.span(" stopping", class_="warn") if record.stopping else None,
            h.span(" quiet", class_="warn") if record.quiet else None,
        ),
        cell("Running", f"{number(record.running)}/{number(record.concurrency)}", kind="n"),
        cell("Uptime", since(started), kind="nw"),
        cell("Lag", duration(record.lag_ms / 1000), kind="n"),
        cell("Memory", size(record.memory) if record.memory else "–", kind="n"),
        cell("", h.div(_quiet_button(ctx, state, record), class_="actions"), kind="bare"),
        id=f"worker-{state.name}-{record.id}",
    )


def _quiet_button(ctx: RequestContext, state: QueueState, record: WorkerRecord) -> h.Element | None:
    fields = {"q": state.name, "id": record.id}
    if record.quiet:
        return ask_button(ctx, "resume-worker", "Resume", fields, "workers", "light")
    return ask_button(ctx, "quiet", "Quiet", fields, "workers", "light")


def _other(state: QueueState, worker: ConnectedWorker, place: int) -> h.Element:
    return h.tr(
        cell("Worker", h.strong(worker.name or "unnamed"), kind="lead"),
        cell("Queue", link_to(state.name, "queue", q=state.name, state="active")),
        cell("Host", worker.address),
        cell("Software", _software(state, worker.name)),
        cell("Running", "–", kind="n"),
        cell("Uptime", duration(worker.age), kind="nw"),
        cell("Lag", "–", kind="n"),
        cell("Memory", "–", kind="n"),
        cell("", kind="bare"),
        id=f"worker-{state.name}-{worker.address}-{place}",
    )


def _software(state: QueueState, worker: str) -> list[h.Node]:
    if worker in state.facts.silent:
        return ["taskbull", h.span(f" not responding for {_silent(state, worker)}", class_="bad")]
    if is_made_id(worker):
        return ["taskbull, without a status record"]
    return ["Node.js or another BullMQ client"]


def _silent(state: QueueState, worker: str) -> str:
    facts = state.facts
    return span((facts.now - facts.silent[worker]).total_seconds())


_RUNNING: tuple[h.Node, ...] = ("Job", "Queue", "Task", "Worker", "Running for", "Lock")


async def _longest(dashboard: DashboardState, ctx: RequestContext, sample: Sample) -> h.Element:
    busy = [state.name for state in sample.queues.values() if state.found.counts["active"]][:20]
    rows = [row for queue in busy for row in await _running(dashboard, ctx, queue)]
    return h.section(
        h.h2("Longest-running jobs"),
        [
            h.p(link_to(state.name, "queue", q=state.name), ": ", _all_busy(state), class_="warn")
            for state in sample.queues.values()
            if _all_busy(state)
        ],
        grid("longest-jobs", _RUNNING, rows, "No running jobs."),
        id="longest",
    )


def _all_busy(state: QueueState) -> str:
    """Return a sentence if jobs wait and no slot is free, otherwise an empty string."""
    slots = state.facts.busy_slots
    if not slots or not state.facts.waiting or state.facts.paused:
        return ""
    waiting = f"{number(state.facts.waiting)} waiting"
    return (
        f"All {number(slots)} slots are busy, {waiting}."
        if slots > 1
        else (f"The only slot is busy, {waiting}.")
    )


async def running_jobs(
    dashboard: DashboardState, ctx: RequestContext, state: QueueState
) -> h.Element:
    """Return the longest-running jobs of a queue if all slots are busy; otherwise it is hidden."""
    words = _all_busy(state)
    if not words:
        return h.section(id="busy", hidden=True)
    return h.section(
        h.h2(words),
        grid("busy-jobs", _RUNNING, await _running(dashboard, ctx, state.name), "No running jobs."),
        h.p(
            "Cancel a job that hangs, or start another worker. A sync function cannot be stopped: "
            "cancel it, then restart its worker. ",
            link_to("All running jobs", "queue", q=state.name, state="active"),
            class_="quiet",
        ),
        id="busy",
        class_="busy",
    )


async def _running(dashboard: DashboardState, ctx: RequestContext, queue: str) -> list[h.Element]:
    read = partial(ctx.server.active, queue, _LONGEST)
    try:
        active = await dashboard.views.read(("active", queue), read, 5.0)
    except (ServerRefused, SerializationError):
        return []  # The overview shows the error.
    return [
        h.tr(
            cell("Job", link_to(row.job.id, "job", q=queue, id=row.job.id), kind="lead"),
            cell("Queue", queue),
            cell("Task", row.job.name),
            cell("Worker", h.code(row.job.processed_by) if row.job.processed_by else "–"),
            cell("Running for", since(row.job.processed_on), kind="nw"),
            cell(
                "Lock",
                h.span("! lost (worker gone, or cut off)", class_="bad")
                if row.lock_seconds is None
                else f"expires in {duration(row.lock_seconds)}",
            ),
        )
        for row in active[:5]
    ]

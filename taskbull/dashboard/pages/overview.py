"""The overview page: problems first, then a table of all queues."""

from __future__ import annotations

from collections.abc import Sequence

from taskbull.core.trouble import Trouble
from taskbull.dashboard.components import ask_button, grid, plural
from taskbull.dashboard.components import link as link_to
from taskbull.dashboard.html import (
    Element,
    Node,
    Rendered,
    h1,
    h2,
    li,
    p,
    section,
    span,
    th,
    ul,
    url,
)
from taskbull.dashboard.layout import Content
from taskbull.dashboard.queue_line import draw_line, line_of
from taskbull.dashboard.request_context import RequestContext
from taskbull.dashboard.sampler import BoardSample
from taskbull.dashboard.state import DashboardState, Parts

_COLUMNS: Sequence[Node] = (
    "Queue",
    th("Waiting", scope="col", class_="n"),
    "Oldest",
    th("Active", scope="col", class_="n"),
    th("Delayed", scope="col", class_="n"),
    th("Failed", scope="col", class_="n"),
    th("In/s", scope="col", class_="n"),
    th("Out/s", scope="col", class_="n"),
    "Last hour",
    "Workers",
    "Drained in",
)
_SERIOUS = 50
"""Minimum weight of a problem. Lighter ones are shown as notes."""

_MOST_TROUBLES = 20


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the overview page."""
    sample = await dashboard.sampler.latest()
    live = url("live", page="")
    if not sample.queues and sample.problem is not None:
        return Content("Overview", _away(sample), status=503, live=live)
    body = [
        h1("Queues", class_="unseen"),
        _troubles(ctx, sample),
        grid("queues", _COLUMNS, list(_rows(dashboard, sample).values()), _empty(ctx, sample)),
        _finding(sample),
    ]
    return Content("Overview", body, live=live, read_at=sample.stale_since)


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    sample = await dashboard.sampler.latest()
    return Parts(
        {"troubles": _troubles(ctx, sample), "finding": _finding(sample)},
        {"queues": _rows(dashboard, sample)} if sample.queues else {},
        sample.problem,
    )


def _away(sample: BoardSample) -> Node:
    title, remedy = "Redis is unavailable", "Reload this page when Redis is back."
    if sample.is_denied:
        title = "Redis denies access"
        remedy = "taskbull doctor, with the same Redis user, names the permission that is missing."
    return section(h1(title), p(sample.problem), p(remedy, class_="quiet"), class_="problem")


def _empty(ctx: RequestContext, sample: BoardSample) -> Node:
    where = f"{ctx.server.address}, prefix {ctx.server.prefix!r}"
    if sample.searched < 1:
        return f"Searching for queues at {where}, {sample.searched:.0%} …"
    return f"No queues yet at {where}. Add a job to see its queue here."


def _finding(sample: BoardSample) -> Element:
    is_over = sample.searched >= 1
    words = "" if is_over else f"Still searching for queues, {sample.searched:.0%} …"
    return p(words, id="finding", class_="quiet", hidden=is_over)


def _troubles(ctx: RequestContext, sample: BoardSample) -> Element:
    troubles = sample.troubles
    shown: Node = p(span("✓", class_="sign"), "All queues are healthy.", class_="fine")
    if not sample.queues:
        shown = None
    if troubles:
        shown = ul([_trouble(ctx, each) for each in troubles[:_MOST_TROUBLES]], class_="troubles")
    more = len(troubles) - _MOST_TROUBLES
    return section(
        h2("Problems", class_="unseen"),
        shown,
        p(f"and {plural(more, 'more problem')}", class_="quiet") if more > 0 else None,
        id="troubles",
    )


def _trouble(ctx: RequestContext, trouble: Trouble) -> Element:
    serious = trouble.weight >= _SERIOUS
    return li(
        span("!" if serious else "·", class_="sign", aria_hidden="true"),
        link_to(trouble.queue, "queue", q=trouble.queue),
        span(trouble.text, class_="what"),
        _remedy(ctx, trouble),
        class_=None if serious else "notes",
    )


def _remedy(ctx: RequestContext, trouble: Trouble) -> Node:
    queue = trouble.queue
    match trouble.remedy:
        case "errors":
            return link_to("errors ›", "errors", q=queue)
        case "resume":
            return ask_button(ctx, "resume", "Resume", {"q": queue}, url(""), "light")
        case "workers":
            return link_to("workers ›", "workers")
        case "schedules":
            return link_to("schedules ›", "schedules", q=queue)
        case "why" | "queue":
            return link_to("why ›", "queue", q=queue)


def _rows(dashboard: DashboardState, sample: BoardSample) -> dict[str, Rendered]:
    return dashboard.queue_rows.of(
        {f"queue-{name}": state for name, state in sample.queues.items()},
        line_of,
        draw_line,
    )

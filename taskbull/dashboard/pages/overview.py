"""The overview page: problems first, then a table of all queues."""

from __future__ import annotations

from collections.abc import Sequence

from taskbull.core.diagnosis import Trouble
from taskbull.core.queue_health import RedisNode
from taskbull.dashboard import html as h
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.layout import Content, ask_button, grid, plural
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.pages.redis import read_nodes, redis_line, redis_troubles
from taskbull.dashboard.queue_line import SERIOUS, Sample, draw_line
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import TaskbullError

_COLUMNS: Sequence[h.Node] = (
    "Queue",
    h.th("Waiting", scope="col", class_="n"),
    "Oldest",
    h.th("Active", scope="col", class_="n"),
    h.th("Delayed", scope="col", class_="n"),
    h.th("Failed", scope="col", class_="n"),
    h.th("In/s", scope="col", class_="n", title="Jobs added per second, over the last minute"),
    h.th("Out/s", scope="col", class_="n", title="Jobs finished per second, over the last minute"),
    "Last hour",
    "Workers",
    "Drained in",
)
_MOST_TROUBLES = 20


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the overview page."""
    sample = await dashboard.sampler.latest()
    live = h.url("live", page="")
    if not sample.queues and sample.problem is not None:
        return Content("Overview", _unavailable(sample), status=503, live=live)
    nodes = await _nodes(dashboard, ctx)
    body = [
        h.h1("Queues", class_="unseen"),
        _troubles(ctx, sample, nodes),
        grid("queues", _COLUMNS, list(_rows(dashboard, sample).values()), _empty(ctx, sample)),
        _finding(sample),
        redis_line(nodes),
    ]
    return Content("Overview", body, live=live, read_at=sample.stale_since)


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    sample = await dashboard.sampler.latest()
    nodes = await _nodes(dashboard, ctx)
    return Parts(
        {
            "troubles": _troubles(ctx, sample, nodes),
            "finding": _finding(sample),
            "redis-line": redis_line(nodes),
        },
        {"queues": _rows(dashboard, sample)} if sample.queues else {},
        sample.problem,
    )


async def _nodes(dashboard: DashboardState, ctx: RequestContext) -> list[RedisNode]:
    try:
        return await read_nodes(dashboard, ctx)
    except TaskbullError:
        return []  # The sample reports that Redis is unavailable.


def _unavailable(sample: Sample) -> h.Node:
    title, remedy = "Redis is unavailable", "Reload this page when Redis is back."
    if sample.is_denied:
        title = "Redis denies access"
        remedy = "taskbull doctor, with the same Redis user, names the permission that is missing."
    return h.section(
        h.h1(title), h.p(sample.problem), h.p(remedy, class_="quiet"), class_="problem"
    )


def _empty(ctx: RequestContext, sample: Sample) -> h.Node:
    where = f"{ctx.server.address}, prefix {ctx.server.prefix!r}"
    if sample.searched < 1:
        return f"Searching for queues at {where}, {sample.searched:.0%} …"
    return f"No queues yet at {where}. Add a job to see its queue here."


def _finding(sample: Sample) -> h.Element:
    is_over = sample.searched >= 1
    words = "" if is_over else f"Still searching for queues, {sample.searched:.0%} …"
    return h.p(words, id="finding", class_="quiet", hidden=is_over)


def _troubles(ctx: RequestContext, sample: Sample, nodes: list[RedisNode]) -> h.Element:
    of_redis = redis_troubles(nodes)
    # The list of Redis's own problems says that it refuses writes.
    troubles = [each for each in sample.troubles if not of_redis or each.code != "refused"]
    shown: h.Node = h.p(h.span("✓", class_="sign"), "All queues are healthy.", class_="fine")
    if not sample.queues:
        shown = None
    if troubles or of_redis:
        of_queues = [_trouble(ctx, each) for each in troubles[:_MOST_TROUBLES]]
        shown = h.ul(of_redis, of_queues, class_="troubles")
    more = len(troubles) - _MOST_TROUBLES
    return h.section(
        h.h2("Problems", class_="unseen"),
        shown,
        h.p(f"and {plural(more, 'more problem')}", class_="quiet") if more > 0 else None,
        id="troubles",
    )


def _trouble(ctx: RequestContext, trouble: Trouble) -> h.Element:
    serious = trouble.weight >= SERIOUS
    return h.li(
        h.span("!" if serious else "·", class_="sign", aria_hidden="true"),
        link_to(trouble.queue, "queue", q=trouble.queue),
        h.span(trouble.text, class_="what"),
        _remedy(ctx, trouble),
        class_=None if serious else "notes",
    )


def _remedy(ctx: RequestContext, trouble: Trouble) -> h.Node:
    queue = trouble.queue
    match trouble.remedy:
        case "errors":
            return link_to("errors ›", "errors", q=queue)
        case "resume":
            return ask_button(ctx, "resume", "Resume", {"q": queue}, h.url(""), "light")
        case "workers":
            return link_to("workers ›", "workers")
        case "schedules":
            return link_to("schedules ›", "schedules", q=queue)
        case "why" | "queue":
            return link_to("why ›", "queue", q=queue)


def _rows(dashboard: DashboardState, sample: Sample) -> dict[str, h.Rendered]:
    return dashboard.queue_rows.of(
        {f"queue-{name}": state for name, state in sample.queues.items()},
        draw_line,
    )

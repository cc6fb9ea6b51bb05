"""The groups page: the largest groups of a queue, with their limits and actions."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from taskbull.core.diagnosis import describe_hold, describe_limiter
from taskbull.core.groups import GroupInfo
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.html import Element, Node, div, h1, p, span, th, tr, url
from taskbull.dashboard.layout import Content, ask_button, cell, grid, live_rows, number
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.state import DashboardState, Parts

SHOWN: Final = 50
"""Number of groups that the page shows."""


_COLUMNS: Final[tuple[Node, ...]] = (
    "Group",
    *(
        th(name, scope="col", class_="n")
        for name in ("Waiting", "Running", "Held", "Limit", "Rate", "Weight")
    ),
    "State",
    th("Actions", scope="col"),
)

_EMPTY: Final = "No job of this queue has a group."


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the groups page of a queue."""
    queue = ctx.query.need("q")
    found = await _read(dashboard, ctx, queue)
    body = [
        div(h1("Groups in ", link_to(queue, "queue", q=queue)), class_="head"),
        grid(
            "groups",
            _COLUMNS,
            [_row(ctx, queue, group) for group in found],
            _EMPTY,
        ),
        p(f"Only the {SHOWN} largest groups are shown.", class_="quiet")
        if len(found) == SHOWN
        else None,
    ]
    live = url("live", page="groups", q=queue)
    return Content(f"Groups in {queue}", body, "-", queue, live=live)


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the rows of the page."""
    queue = ctx.query.need("q")
    found = await _read(dashboard, ctx, queue)
    rows = {_id_of(group): _row(ctx, queue, group) for group in found}
    return Parts({}, live_rows("groups", _COLUMNS, rows, _EMPTY))


async def _read(dashboard: DashboardState, ctx: RequestContext, queue: str) -> list[GroupInfo]:
    return await dashboard.views.read(("groups", queue), lambda: ctx.server.groups(queue, SHOWN))


def _id_of(group: GroupInfo) -> str:
    # An id may have spaces, which an HTML id may not.
    return f"group-{blake2b(group.id.encode(), digest_size=8).hexdigest()}"


def _row(ctx: RequestContext, queue: str, group: GroupInfo) -> Element:
    fields, back = {"q": queue, "id": group.id}, url("groups", q=queue)
    resume = ask_button(ctx, "resume-group", "Resume", fields, back, "light")
    pause = ask_button(ctx, "pause-group", "Pause", fields, back, "light")
    return tr(
        cell("Group", span(group.id, class_="cut", title=group.id), kind="lead"),
        cell("Waiting", number(group.waiting), kind="n"),
        cell("Running", number(group.active), kind="n"),
        cell("Held", number(group.held), kind="n"),
        cell("Limit", number(group.concurrency), kind="n"),
        cell("Rate", describe_limiter(group.limiter), kind="n"),
        cell("Weight", number(group.weight), kind="n"),
        cell("State", _state(group), kind="nw"),
        cell(
            "",
            div(
                resume if group.paused else pause,
                ask_button(ctx, "group-limits", "Limits…", fields, back),
                class_="actions",
            ),
            kind="bare",
        ),
        id=_id_of(group),
    )


def _state(group: GroupInfo) -> Node:
    words = describe_hold(group, datetime.now(UTC))
    return span(words, class_="warn") if words else "–"

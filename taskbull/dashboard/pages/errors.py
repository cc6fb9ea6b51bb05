"""The errors page of a queue: failed jobs grouped by error, with actions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from taskbull.core.states import JobState
from taskbull.dashboard.components import (
    ago,
    ask_button,
    cell,
    grid,
    number,
    percent,
    plural,
    sparkline,
)
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
    small,
    span,
    strong,
    th,
    tr,
    url,
)
from taskbull.dashboard.layout import Content
from taskbull.dashboard.request_context import RequestContext
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.monitor.failures import HiddenError, HiddenErrors
from taskbull.queue.failures import FailureGroup, Failures

_SAMPLED = 1000
_REFRESH = 5.0
_SLOTS = 20
_HOUR = 3600.0
_HIDDEN_SHOWN = 20
_HIDDEN_REFRESH = 30.0


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the errors page of a queue."""
    queue = ctx.query.need("q")
    failures = await _failures(dashboard, ctx, queue)
    body = [
        _head(ctx, queue, failures.total),
        _coverage(failures),
        grid("errors", _COLUMNS, list(_rows(ctx, queue, failures).values()), "No failed jobs."),
        _hidden(queue, await _retried(dashboard, ctx, queue)),
    ]
    live = url("live", page="errors", q=queue)
    return Content(f"Errors in {queue}", body, "-", queue, str(JobState.FAILED), live)


def _head(ctx: RequestContext, queue: str, total: int) -> Element:
    back = url("errors", q=queue)
    return div(
        h1("Errors in ", link_to(queue, "queue", q=queue, state="failed")),
        div(ask_button(ctx, "retry-all", "Retry all…", {"q": queue}, back), class_="actions")
        if total
        else None,
        class_="head",
    )


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    queue = ctx.query.need("q")
    failures = await _failures(dashboard, ctx, queue)
    return Parts({"coverage": _coverage(failures)}, {"errors": _rows(ctx, queue, failures)})


async def _failures(dashboard: DashboardState, ctx: RequestContext, queue: str) -> Failures:
    async def read() -> Failures:
        before = dashboard.failures.get(queue)
        found = await ctx.server.failures(queue, before=before, sample=_SAMPLED)
        dashboard.failures[queue] = found
        while len(dashboard.failures) > 20:
            dashboard.failures.pop(next(iter(dashboard.failures)))
        return found

    return await dashboard.views.read(("failures", queue), read, _REFRESH)


def _coverage(failures: Failures) -> Element:
    older = failures.total - failures.looked_at
    words = plural(failures.total, "failed job")
    if older > 0:
        words += f": the newest {number(failures.looked_at)} analyzed, and a sample of "
        words += f"{number(failures.sampled)} of the {number(older)} older ones"
    elif failures.total:
        words += ", all analyzed"
    return p(words, id="coverage", class_="quiet")


_COLUMNS: Sequence[Node] = (
    th("Count", scope="col", class_="n"),
    th("Share", scope="col", class_="n"),
    "Error",
    "Task",
    "First",
    "Last",
    "Last hour",
    th("Actions", scope="col"),
)


def _rows(ctx: RequestContext, queue: str, failures: Failures) -> dict[str, Element]:
    groups = failures.groups
    return {
        f"error-{group.fingerprint}": _row(ctx, queue, group, failures.total) for group in groups
    }


def _row(ctx: RequestContext, queue: str, group: FailureGroup, total: int) -> Element:
    about = group.about or group.count
    count = number(about) if not group.margin else f"about {number(about)}"
    return tr(
        cell(
            "Count",
            strong(count),
            small(f" ± {number(group.margin)}") if group.margin else None,
            kind="n",
        ),
        cell("Share", percent(about / total) if total else "–", kind="n"),
        cell(
            "Error",
            div(
                span(group.error, class_="bad cut"),
                small(
                    code(group.frame) if group.frame else None,
                    " example: ",
                    link_to(group.newest, "job", q=queue, id=group.newest),
                ),
            ),
            kind="w",
        ),
        cell("Task", group.task),
        cell("First", ago(group.first), kind="nw"),
        cell("Last", ago(group.last), kind="nw"),
        cell("Last hour", _trend(group.times)),
        cell("", _actions(ctx, queue, group), kind="bare"),
        id=f"error-{group.fingerprint}",
    )


def _actions(ctx: RequestContext, queue: str, group: FailureGroup) -> Element:
    if group.is_rest:
        jobs = link_to("the jobs", "queue", q=queue, state="failed")
        return small("Several rare errors. Open ", jobs, ', or use "Retry all".')
    back = url("errors", q=queue)
    fields = {"q": queue, "group": group.fingerprint}
    return div(
        ask_button(ctx, "retry-group", "Retry…", fields, back),
        ask_button(ctx, "remove-group", "Remove…", fields, back, "danger"),
        class_="actions",
    )


def _trend(times: Sequence[datetime]) -> Element:
    now = time.time()
    slots = [0] * _SLOTS
    for instant in times:
        age = now - instant.timestamp()
        if 0 <= age < _HOUR:
            slots[_SLOTS - 1 - int(age / _HOUR * _SLOTS)] += 1
    return sparkline(slots, f"{plural(sum(slots), 'failure')} in the last hour", "failed")


async def _retried(dashboard: DashboardState, ctx: RequestContext, queue: str) -> HiddenErrors:
    return await dashboard.views.read(
        ("retried", queue), lambda: ctx.server.retried(queue), _HIDDEN_REFRESH
    )


def _hidden(queue: str, found: HiddenErrors) -> Node:
    """Return the errors of jobs that are being retried, which are not among failed jobs."""
    if not found.errors:
        return None
    columns: list[Node] = [
        th("Jobs", scope="col", class_="n"),
        th("Attempts", scope="col", class_="n"),
        "Error",
        "Task",
    ]
    more = len(found.errors) - _HIDDEN_SHOWN
    return section(
        h2("Errors being retried"),
        p(
            "Jobs that failed but will be retried, from a sample of "
            f"{plural(found.looked_at, 'waiting, running or delayed job')}. "
            '"Attempts" counts failures in the last two hours, as reported by taskbull workers.',
            class_="quiet",
        ),
        grid("hidden", columns, [_hidden_row(queue, each) for each in found.errors[:_HIDDEN_SHOWN]],
             ""),
        p(f"and {plural(more, 'more error')}", class_="quiet") if more > 0 else None,
    )  # fmt: skip


def _hidden_row(queue: str, each: HiddenError) -> Element:
    return tr(
        cell("Jobs", number(each.jobs), kind="n"),
        cell("Attempts", number(each.counted) if each.counted else "–", kind="n"),
        cell(
            "Error",
            div(
                span(each.error, class_="warn cut"),
                small("example: ", link_to(each.newest, "job", q=queue, id=each.newest))
                if each.newest
                else None,
            ),
            kind="w",
        ),
        cell("Task", each.task),
    )

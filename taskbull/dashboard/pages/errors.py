"""The errors page of a queue: failed jobs grouped by error, with actions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from taskbull.core.keys import JobState
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.queue_line import queue_list
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.monitor.browse import HiddenError, HiddenErrors
from taskbull.queue.failures import FailureGroup, Failures

_SAMPLED = 1000
_REFRESH = 5.0
_SLOTS = 20
_HOUR = 3600.0
_HIDDEN_SHOWN = 20
_HIDDEN_REFRESH = 30.0
_EMPTY = "No failed jobs."


async def show(dashboard: DashboardState, ctx: RequestContext) -> ui.Content:
    """Return the errors page of a queue."""
    queue = ctx.query.need("q")
    failures = await _failures(dashboard, ctx, queue)
    body = [
        _head(ctx, queue, failures.total),
        _coverage(failures),
        ui.grid("errors", _COLUMNS, list(_rows(ctx, queue, failures).values()), _EMPTY),
        _hidden(queue, await _retried(dashboard, ctx, queue)),
    ]
    live = h.url("live", page="errors", q=queue)
    side = queue_list(await dashboard.sampler.latest(), queue)
    return ui.Content(f"Errors in {queue}", body, "-", queue, str(JobState.FAILED), live, side=side)


def _head(ctx: RequestContext, queue: str, total: int) -> h.Element:
    back = h.url("errors", q=queue)
    return h.div(
        h.h1("Errors in ", link_to(queue, "queue", q=queue, state="failed")),
        h.div(ui.ask_button(ctx, "retry-all", "Retry all…", {"q": queue}, back), class_="actions")
        if total
        else None,
        class_="head",
    )


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change."""
    queue = ctx.query.need("q")
    failures = await _failures(dashboard, ctx, queue)
    rows = ui.live_rows("errors", _COLUMNS, _rows(ctx, queue, failures), _EMPTY)
    return Parts({"coverage": _coverage(failures)}, rows)


async def _failures(dashboard: DashboardState, ctx: RequestContext, queue: str) -> Failures:
    async def read() -> Failures:
        before = dashboard.failures.get(queue)
        found = await ctx.server.failures(queue, before=before, sample=_SAMPLED)
        dashboard.failures[queue] = found
        while len(dashboard.failures) > 20:
            dashboard.failures.pop(next(iter(dashboard.failures)))
        return found

    return await dashboard.views.read(("failures", queue), read, _REFRESH)


def _coverage(failures: Failures) -> h.Element:
    older = failures.total - failures.examined
    words = ui.plural(failures.total, "failed job")
    if older > 0:
        words += f": the newest {ui.number(failures.examined)} analyzed, and a sample of "
        words += f"{ui.number(failures.sampled)} of the {ui.number(older)} older ones"
    elif failures.total:
        words += ", all analyzed"
    return h.p(words, id="coverage", class_="quiet")


_COLUMNS: Sequence[h.Node] = (
    h.th("Count", scope="col", class_="n"),
    h.th("Share", scope="col", class_="n"),
    "Error",
    "Task",
    "First",
    "Last",
    "Last hour",
    h.th("Actions", scope="col"),
)


def _rows(ctx: RequestContext, queue: str, failures: Failures) -> dict[str, h.Element]:
    groups = failures.groups
    return {
        f"error-{group.fingerprint}": _row(ctx, queue, group, failures.total) for group in groups
    }


def _row(ctx: RequestContext, queue: str, group: FailureGroup, total: int) -> h.Element:
    about = group.about or group.count
    count = ui.number(about) if not group.margin else f"about {ui.number(about)}"
    return h.tr(
        ui.cell(
            "Count",
            h.strong(count),
            h.small(f" ± {ui.number(group.margin)}") if group.margin else None,
            kind="n",
        ),
        ui.cell("Share", ui.percent(about / total) if total else "–", kind="n"),
        ui.cell(
            "Error",
            h.div(
                h.span(group.error, class_="bad cut"),
                h.small(
                    h.code(group.frame) if group.frame else None,
                    " example: ",
                    link_to(group.newest, "job", q=queue, id=group.newest),
                ),
            ),
            kind="w",
        ),
        ui.cell("Task", group.task),
        ui.cell("First", ui.ago(group.first), kind="nw"),
        ui.cell("Last", ui.ago(group.last), kind="nw"),
        ui.cell("Last hour", _trend(group.times)),
        ui.cell("", _actions(ctx, queue, group), kind="bare"),
        id=f"error-{group.fingerprint}",
    )


def _actions(ctx: RequestContext, queue: str, group: FailureGroup) -> h.Element:
    if group.is_rest:
        jobs = link_to("the jobs", "queue", q=queue, state="failed")
        return h.small("Several rare errors. Open ", jobs, ', or use "Retry all".')
    back = h.url("errors", q=queue)
    fields = {"q": queue, "group": group.fingerprint}
    return h.div(
        ui.ask_button(ctx, "retry-group", "Retry…", fields, back),
        ui.ask_button(ctx, "remove-group", "Remove…", fields, back, "danger"),
        class_="actions",
    )


def _trend(times: Sequence[datetime]) -> h.Element:
    now = time.time()
    slots = [0] * _SLOTS
    for instant in times:
        age = now - instant.timestamp()
        if 0 <= age < _HOUR:
            slots[_SLOTS - 1 - int(age / _HOUR * _SLOTS)] += 1
    return ui.sparkline(slots, f"{ui.plural(sum(slots), 'failure')} in the last hour", "failed")


async def _retried(dashboard: DashboardState, ctx: RequestContext, queue: str) -> HiddenErrors:
    return await dashboard.views.read(
        ("retried", queue), lambda: ctx.server.retried(queue), _HIDDEN_REFRESH
    )


def _hidden(queue: str, found: HiddenErrors) -> h.Node:
    """Return the errors of jobs that are being retried, which are not among failed jobs."""
    if not found.errors:
        return None
    columns: list[h.Node] = [
        h.th("Jobs", scope="col", class_="n"),
        h.th("Attempts", scope="col", class_="n"),
        "Error",
        "Task",
    ]
    more = len(found.errors) - _HIDDEN_SHOWN
    return h.section(
        h.h2("Errors being retried"),
        h.p(
            "Jobs that failed but will be retried, from a sample of "
            f"{ui.plural(found.examined, 'waiting, running or delayed job')}. "
            '"Attempts" counts failures in the last two hours, as reported by taskbull workers.',
            class_="quiet",
        ),
        ui.grid(
            "hidden",
            columns,
            [_hidden_row(queue, each) for each in found.errors[:_HIDDEN_SHOWN]],
            "",
        ),
        h.p(f"and {ui.plural(more, 'more error')}", class_="quiet") if more > 0 else None,
    )


def _hidden_row(queue: str, each: HiddenError) -> h.Element:
    return h.tr(
        ui.cell("Jobs", ui.number(each.jobs), kind="n"),
        ui.cell("Attempts", ui.number(each.counted) if each.counted else "–", kind="n"),
        ui.cell(
            "Error",
            h.div(
                h.span(each.error, class_="warn cut"),
                h.small("example: ", link_to(each.newest, "job", q=queue, id=each.newest))
                if each.newest
                else None,
            ),
            kind="w",
        ),
        ui.cell("Task", each.task),
    )

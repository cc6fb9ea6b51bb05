"""One queue: its states, the jobs of one of them, what can be done with it."""

from __future__ import annotations

from taskbull.core.states import JobState
from taskbull.core.why_queue import explain_queue
from taskbull.dashboard.board import Board
from taskbull.dashboard.frame import Content
from taskbull.dashboard.html import (
    Element,
    Node,
    a,
    b,
    button,
    div,
    form,
    h1,
    input_,
    label,
    li,
    nav,
    p,
    section,
    span,
    ul,
    url,
)
from taskbull.dashboard.live import Parts
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.pages.job_list import job_line, job_list
from taskbull.dashboard.pages.sight import TABS, Sight, place_fields, read_sight, read_typed
from taskbull.dashboard.parts import ask_button
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.sampler import QueueState
from taskbull.dashboard.task_figures import QueueFigures, read_figures
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import duration, number, percent, plural, rate
from taskbull.queue.job_row import JobRows

_TASKS_SHOWN = 6
_MANY = 0.05
"""The share of a task's jobs that may fail."""


async def show(board: Board, visit: Visit) -> Content:
    """Return the page of a queue."""
    sight = read_sight(visit.query)
    sample = await board.sampler.latest([sight.queue])
    state = sample.queues.get(sight.queue)
    if state is None:
        raise Refused(404, f"There is no queue {sight.queue!r} here.")
    page = await _rows(board, visit, sight)
    back = sight.address
    body = [
        _head(visit, state, sight),
        _why(state),
        _tasks(await read_figures(board, visit, sight.queue)),
        _tabs(state, sight),
        _filter(sight),
        job_list(visit, sight, page, back),
    ]
    live = url("live", page="queue", **_live_fields(sight))
    return Content(
        sight.queue, body, "-", sight.queue, str(sight.state), live, read_at=sample.stale_since
    )


async def parts(board: Board, visit: Visit) -> Parts:
    """Return what changes on it: the counts, and the rows while they are followed."""
    sight = read_sight(visit.query)
    state = (await board.sampler.latest([sight.queue])).queues.get(sight.queue)
    if state is None:
        return Parts()
    elements = {
        "queue-facts": _facts(state),
        "queue-why": _why(state),
        "queue-tabs": _tabs(state, sight),
    }
    if not (sight.follows and sight.is_first and not sight.typed):
        return Parts(elements)
    page = await _rows(board, visit, sight)
    rows = {f"job-{row.job.id}": job_line(visit, sight, row) for row in page.rows}
    return Parts(elements, {"jobs": rows} if rows else {})


async def _rows(board: Board, visit: Visit, sight: Sight) -> JobRows:
    terms = read_typed(sight.typed)
    if terms is not None and not terms.empty:
        raise Refused(400, "Text is looked for by the search box: it does not stand in addresses.")
    view = ("rows", sight.queue, sight.state, sight.after, sight.typed)
    return await board.views.read(
        view,
        lambda: visit.server.peek(sight.queue, sight.state, after=sight.after, terms=terms),
    )


def _head(visit: Visit, state: QueueState, sight: Sight) -> Element:
    found = state.found
    name, back = state.name, sight.address
    fields = {"q": name}
    failed = found.counts[JobState.FAILED]
    resume = ask_button(visit, "resume", "Resume", fields, back, "light")
    pause = ask_button(visit, "pause", "Pause…", fields, back)
    return div(
        h1(name, span(" paused", class_="warn") if found.paused else None),
        _facts(state),
        div(
            link_to("Errors", "errors", q=name) if failed else None,
            ask_button(visit, "retry-all", "Retry all…", fields, back)
            if failed and sight.state is JobState.FAILED
            else None,
            resume if found.paused else pause,
            ask_button(visit, "limits", "Limits…", fields, back),
            ask_button(visit, "clean", "Clean…", fields, back),
            ask_button(visit, "drain", "Drain…", fields, back, "danger"),
            ask_button(visit, "obliterate", "Obliterate…", fields, back, "danger"),
            class_="actions",
        ),
        class_="head",
    )


def _facts(state: QueueState) -> Element:
    found = state.found
    limits = [
        f"{found.concurrency:,} at once" if found.concurrency else "",
        f"{found.rate_max:,} per {duration(found.rate_window)}" if found.rate_max else "",
    ]
    limited = ", ".join(limit for limit in limits if limit)
    words = [
        found.version or "",
        f"{rate(state.facts.arrivals)} in, {rate(state.facts.out)} out per s",
        f"limited to {limited}" if limited else "",
    ]
    return span(" · ".join(word for word in words if word), id="queue-facts", class_="facts")


def _why(state: QueueState) -> Element:
    """Say what holds the queue, or that nothing does; no read is needed for it."""
    first, *others = [reason.text for reason in explain_queue(state.facts)]
    return section(
        p(first), [p(other, class_="also") for other in others], id="queue-why", class_="card why"
    )


def _tasks(figures: QueueFigures) -> Node:
    if not figures.tasks:
        return None
    shown = [
        li(
            b(task.name),
            f" {percent(task.share)} · waits {duration(task.waited)} · runs {duration(task.took)}",
            f", 95 % below {duration(task.took_long)}",
            span(
                f" · {percent(task.failed)} fail",
                class_="bad" if task.failed > _MANY else None,
            ),
        )
        for task in figures.tasks[:_TASKS_SHOWN]
    ]
    words = f"Of the newest {plural(figures.looked_at, 'job')} that have ended, medians"
    return ul(shown, class_="shares", title=words, aria_label=words)


def _tabs(state: QueueState, sight: Sight) -> Element:
    counts = state.found.counts
    shown: list[Element] = []
    for each, name in TABS.items():
        count = counts[each] + (counts[JobState.PAUSED] if each is JobState.WAITING else 0)
        here = each is sight.state
        shown.append(
            a(
                name,
                span(number(count), class_="count" if count else "count zero"),
                href=url("queue", q=sight.queue, state=each),
                aria_current="page" if here else None,
            )
        )
    return nav(shown, id="queue-tabs", class_="tabs", aria_label="States")


def _filter(sight: Sight) -> Node:
    if sight.state not in {JobState.FAILED, JobState.COMPLETED, JobState.DELAYED}:
        return None
    return form(
        input_(type="hidden", name="q", value=sight.queue),
        input_(type="hidden", name="state", value=str(sight.state)),
        label("Times", for_="find", class_="unseen"),
        input_(
            id="find",
            type="text",
            name="find",
            value=sight.typed,
            placeholder="after:03:10 before:03:20, or after:-15min",
            autocomplete="off",
        ),
        button("Filter", type="submit"),
        link_to("all", "queue", q=sight.queue, state=sight.state) if sight.typed else None,
        link_to("errors grouped", "errors", q=sight.queue)
        if sight.state is JobState.FAILED
        else None,
        method="get",
        action="queue",
        class_="filter",
    )


def _live_fields(sight: Sight) -> dict[str, str | int | None]:
    return {
        "q": sight.queue,
        "state": sight.state,
        "find": sight.typed or None,
        **place_fields(sight.after),
    }

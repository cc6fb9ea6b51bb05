"""The queue page: its tabs, job lists and figures per task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.diagnosis import explain_queue
from taskbull.core.search import Terms, read_terms
from taskbull.core.states import JobState
from taskbull.dashboard.components import (
    ago,
    ask_button,
    cell,
    duration,
    grid,
    number,
    percent,
    plural,
    rate,
    since,
)
from taskbull.dashboard.components import link as link_to
from taskbull.dashboard.html import (
    Element,
    Node,
    a,
    b,
    button,
    code,
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
    strong,
    th,
    tr,
    ul,
    url,
)
from taskbull.dashboard.layout import Content
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.request_context import RequestContext
from taskbull.dashboard.sampler import QueueState
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.monitor.browse import START, After, JobRow, JobRows

# The selected view: one state of a queue, from a position.


TABS = {
    JobState.WAITING: "Waiting",
    JobState.ACTIVE: "Active",
    JobState.DELAYED: "Delayed",
    JobState.PRIORITIZED: "Prioritized",
    JobState.WAITING_CHILDREN: "Children",
    JobState.FAILED: "Failed",
    JobState.COMPLETED: "Done",
}


class ListQuery(Struct, frozen=True):
    """The selected view of a queue: a state, a position and a filter."""

    queue: str
    state: JobState
    after: After
    typed: str
    follows: bool

    @property
    def address(self) -> str:
        """The address of this page."""
        place = place_fields(self.after)
        return url("queue", q=self.queue, state=self.state, find=self.typed or None, **place)

    def at(self, after: After) -> ListQuery:
        """Return a copy that starts at another position."""
        return replace(self, after=after)

    @property
    def is_first(self) -> bool:
        """True if this is the first page of the list."""
        return self.after == After()


def read_list_query(query: Form) -> ListQuery:
    """Read the selected view from a query string."""
    state = query.get("state", "waiting")
    if state not in TABS:
        raise Refused(400, f"Unknown state {state!r}.")
    after = After(query.number("n"), query.get("score"), query.get("last"))
    follows = query.get("follow") != "no"
    return ListQuery(query.need("q"), JobState(state), after, query.get("find"), follows)


def read_typed(typed: str) -> Terms | None:
    """Parse a filter, or return `None` if it is empty."""
    return read_terms(typed, datetime.now(UTC).astimezone()) if typed else None


def place_fields(after: After) -> dict[str, str | int | None]:
    """Return the query parameters of a position."""
    return {"n": after.place or None, "score": after.score or None, "last": after.id or None}


# The job list.


_WHEN = {
    JobState.WAITING: "Added",
    JobState.PRIORITIZED: "Added",
    JobState.WAITING_CHILDREN: "Added",
    JobState.ACTIVE: "Started",
    JobState.DELAYED: "Due",
}

_BULK = {
    JobState.FAILED: ("retry", "remove"),
    JobState.COMPLETED: ("retry", "remove"),
    JobState.DELAYED: ("promote", "cancel", "remove"),
    JobState.ACTIVE: ("cancel",),
}
_LABELS = {"retry": "Retry", "remove": "Remove…", "promote": "Run now", "cancel": "Cancel…"}


def job_list(ctx: RequestContext, list_query: ListQuery, page: JobRows, back: str) -> Element:
    """Return a list of jobs with checkboxes and actions."""
    actions = [name for name in _BULK.get(list_query.state, ("remove",)) if ctx.may(name)]
    tick_all = input_(type="checkbox", data_all=True, hidden=True, aria_label="Select all shown")
    when = _WHEN.get(list_query.state, "Finished")
    columns: list[Node] = [
        th(tick_all, scope="col") if actions else None,
        "Id",
        "Task",
        th("Attempts", scope="col", class_="n"),
        when,
        th("Took", scope="col", class_="n"),
        "About",
    ]
    rows = [job_line(ctx, list_query, row) for row in page.rows]
    empty = f"No {list_query.state} jobs." if list_query.is_first else "No more jobs."
    return form(
        [
            input_(type="hidden", name=name, value=value)
            for name, value in (
                ("q", list_query.queue),
                ("state", str(list_query.state)),
                ("back", back),
            )
        ],
        grid("jobs", [column for column in columns if column is not None], rows, empty),
        div(
            span(
                span("", data_ticked=True),
                f"{len(page.rows):,} shown, {number(page.total)} in total",
            ),
            [
                button(
                    _LABELS[name],
                    type="submit",
                    name="action",
                    value=name,
                    class_="danger" if name in {"remove", "cancel"} else None,
                )
                for name in actions
            ]
            if page.rows
            else None,
            _pager(list_query, page),
            class_="bulk",
        ),
        method="post",
        action="confirm",
        class_="select ask",
    )


def _pager(list_query: ListQuery, page: JobRows) -> Element:
    order = "older" if list_query.state in {JobState.FAILED, JobState.COMPLETED} else "later"
    return span(
        None if list_query.is_first else a("‹ first", href=list_query.at(After()).address),
        None if page.after is None else a(f"{order} ›", href=list_query.at(page.after).address),
        class_="pager",
    )


def job_line(ctx: RequestContext, list_query: ListQuery, row: JobRow) -> Element:
    """Return the row of a job."""
    job = row.job
    tick = input_(type="checkbox", name="id", value=job.id, aria_label=f"Select job {job.id}")
    may_act = any(ctx.may(name) for name in _BULK.get(list_query.state, ("remove",)))
    return tr(
        cell("", tick, kind="tickbox") if may_act else None,
        cell("Id", link_to(job.id, "job", q=row.queue, id=job.id), kind="nw lead"),
        cell("Task", strong(job.name) if job.name else span("missing", class_="quiet")),
        cell("Attempts", _attempts(row), kind="n"),
        cell(_WHEN.get(list_query.state, "Finished"), _when(row), kind="nw"),
        cell("Took", duration(_took(row)), kind="n"),
        cell("About", about(ctx, row), kind="w"),
        id=f"job-{job.id}",
    )


def _attempts(row: JobRow) -> str:
    made = max(row.job.attempts_made, row.job.attempts_started)
    return f"{made}/{row.attempts}" if made else "–"


def _when(row: JobRow) -> Node:
    match row.state:
        case JobState.ACTIVE:
            return since(row.job.processed_on)
        case JobState.DELAYED:
            return ago(row.due)
        case JobState.FAILED | JobState.COMPLETED:
            return ago(row.job.finished_on)
        case _:
            return ago(row.job.timestamp)


def _took(row: JobRow) -> float | None:
    job = row.job
    if job.processed_ms is None or job.finished_ms is None:
        return None
    return (job.finished_ms - job.processed_ms) / 1000


def about(ctx: RequestContext, row: JobRow) -> Node:
    """Return the most useful detail of a job: its error, worker, result or data."""
    if row.gone:
        return span("job data missing", class_="quiet")
    if row.state is JobState.FAILED or (
        row.job.failed_reason and row.state is not JobState.COMPLETED
    ):
        first = (row.job.failed_reason or "").strip().partition("\n")[0]
        return span(first, class_="cut bad" if row.state is JobState.FAILED else "cut warn")
    if row.state is JobState.ACTIVE and row.job.processed_by:
        return span("on ", code(row.job.processed_by), class_="cut")
    shown = row.result if row.state is JobState.COMPLETED else row.data
    text = " ".join(ctx.settings.redactor.show(shown).split())
    return code(text, class_="cut quiet")


# Figures per task, from the most recently finished jobs.


_PAGES: Final = 5
"""Number of calls each for completed and failed jobs, with 50 jobs per call."""

_FRESH: Final = 30.0


class TaskFigures(Struct, frozen=True):
    """Figures of one task. Durations are in seconds, or `None` if unknown."""

    name: str
    share: float
    """Share of this task among the jobs examined."""
    failed: float
    """Share of the task's jobs that failed."""
    waited: float | None
    took: float | None
    took_long: float | None
    """95th percentile of the run time."""


class QueueFigures(Struct, frozen=True):
    """Figures of a queue's tasks, the most frequent task first."""

    looked_at: int
    tasks: list[TaskFigures]


def figures_of(rows: Sequence[JobRow]) -> QueueFigures:
    """Compute the figures of each task from finished jobs."""
    by_name: dict[str, list[JobRow]] = {}
    for row in rows:
        if not row.gone:
            by_name.setdefault(row.job.name, []).append(row)
    looked_at = sum(map(len, by_name.values()))
    tasks = [_figures(name, some, looked_at) for name, some in by_name.items()]
    return QueueFigures(looked_at, sorted(tasks, key=lambda task: -task.share))


def _figures(name: str, rows: Sequence[JobRow], of: int) -> TaskFigures:
    waited = [
        (job.processed_ms - job.created_ms - job.delay_ms) / 1000
        for job in (row.job for row in rows)
        if job.processed_ms is not None and job.created_ms is not None and job.attempts_made <= 1
    ]
    took = [
        (job.finished_ms - job.processed_ms) / 1000
        for job in (row.job for row in rows)
        if job.finished_ms is not None and job.processed_ms is not None
    ]
    failed = sum(row.state is JobState.FAILED for row in rows)
    return TaskFigures(
        name,
        len(rows) / of,
        failed / len(rows),
        _below(waited, 0.5),
        _below(took, 0.5),
        _below(took, 0.95),
    )


def _below(values: list[float], share: float) -> float | None:
    """Return a quantile of the values, or `None` without values."""
    if not values:
        return None
    return max(0.0, sorted(values)[min(int(len(values) * share), len(values) - 1)])


async def read_figures(dashboard: DashboardState, ctx: RequestContext, queue: str) -> QueueFigures:
    """Read the figures of a queue, with up to ten calls. They are cached for 30 seconds."""

    async def read() -> QueueFigures:
        rows: list[JobRow] = []
        for state in (JobState.COMPLETED, JobState.FAILED):
            after = START
            for _ in range(_PAGES):
                await ctx.throttle()
                page = await ctx.server.jobs(queue, state, after=after)
                rows += page.rows
                if page.after is None:
                    break
                after = page.after
        return figures_of(_newest(rows))

    return await dashboard.views.read(("figures", queue), read, _FRESH)


def _newest(rows: Sequence[JobRow]) -> list[JobRow]:
    """Drop jobs older than the period that both states cover.

    Otherwise the shares would be wrong, because one state reaches back further than the other.
    """
    full = _PAGES * 50
    since = 0
    for state in (JobState.COMPLETED, JobState.FAILED):
        ended = [row.job.finished_ms or 0 for row in rows if row.state is state]
        if len(ended) == full:
            since = max(since, min(ended))
    return [row for row in rows if (row.job.finished_ms or 0) >= since]


# The page.


_TASKS_SHOWN = 6
_MANY = 0.05
"""Share of failed jobs above which it is highlighted."""


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the queue page."""
    list_query = read_list_query(ctx.query)
    sample = await dashboard.sampler.latest([list_query.queue])
    state = sample.queues.get(list_query.queue)
    if state is None and sample.problem is not None:
        raise Refused(503, f"The queues could not be read: {sample.problem}")
    if state is None:
        raise Refused(404, f"Queue {list_query.queue!r} not found.")
    page = await _rows(dashboard, ctx, list_query)
    back = list_query.address
    body = [
        _head(ctx, state, list_query),
        _why(state),
        _tasks(await read_figures(dashboard, ctx, list_query.queue)),
        _tabs(state, list_query),
        _filter(list_query),
        job_list(ctx, list_query, page, back),
    ]
    live = url("live", page="queue", **_live_fields(list_query))
    return Content(
        list_query.queue,
        body,
        "-",
        list_query.queue,
        str(list_query.state),
        live,
        read_at=sample.stale_since,
    )


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change.

    These are the counts, and the rows if the first page is shown without a filter and followed.
    """
    list_query = read_list_query(ctx.query)
    state = (await dashboard.sampler.latest([list_query.queue])).queues.get(list_query.queue)
    if state is None:
        return Parts()
    elements = {
        "queue-facts": _facts(state),
        "queue-why": _why(state),
        "queue-tabs": _tabs(state, list_query),
    }
    if not (list_query.follows and list_query.is_first and not list_query.typed):
        return Parts(elements)
    page = await _rows(dashboard, ctx, list_query)
    rows = {f"job-{row.job.id}": job_line(ctx, list_query, row) for row in page.rows}
    return Parts(elements, {"jobs": rows} if rows else {})


async def _rows(dashboard: DashboardState, ctx: RequestContext, list_query: ListQuery) -> JobRows:
    terms = read_typed(list_query.typed)
    if terms is not None and not terms.empty:
        raise Refused(400, "This filter accepts only times. Use the search box to find text.")
    view = ("rows", list_query.queue, list_query.state, list_query.after, list_query.typed)
    return await dashboard.views.read(
        view,
        lambda: ctx.server.jobs(
            list_query.queue, list_query.state, after=list_query.after, terms=terms
        ),
    )


def _head(ctx: RequestContext, state: QueueState, list_query: ListQuery) -> Element:
    found = state.found
    name, back = state.name, list_query.address
    fields = {"q": name}
    failed = found.counts[JobState.FAILED]
    resume = ask_button(ctx, "resume", "Resume", fields, back, "light")
    pause = ask_button(ctx, "pause", "Pause…", fields, back)
    return div(
        h1(name, span(" paused", class_="warn") if found.paused else None),
        _facts(state),
        div(
            link_to("Errors", "errors", q=name) if failed else None,
            ask_button(ctx, "retry-all", "Retry all…", fields, back)
            if failed and list_query.state is JobState.FAILED
            else None,
            resume if found.paused else pause,
            ask_button(ctx, "limits", "Limits…", fields, back),
            ask_button(ctx, "clean", "Clean…", fields, back),
            ask_button(ctx, "drain", "Drain…", fields, back, "danger"),
            ask_button(ctx, "obliterate", "Obliterate…", fields, back, "danger"),
            class_="actions",
        ),
        class_="head",
    )


def _facts(state: QueueState) -> Element:
    found = state.found
    limits = [
        f"{found.concurrency:,} concurrent" if found.concurrency else "",
        f"{found.rate_max:,} per {duration(found.rate_window)}" if found.rate_max else "",
    ]
    limited = ", ".join(limit for limit in limits if limit)
    words = [
        found.version or "",
        f"{rate(state.facts.arrivals)} in, {rate(state.facts.out)} out per s",
        f"limits: {limited}" if limited else "",
    ]
    return span(" · ".join(word for word in words if word), id="queue-facts", class_="facts")


def _why(state: QueueState) -> Element:
    """Explain the state of the queue from sampled facts, without another read."""
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
    words = f"Medians of the last {plural(figures.looked_at, 'finished job')}"
    return ul(shown, class_="shares", title=words, aria_label=words)


def _tabs(state: QueueState, list_query: ListQuery) -> Element:
    counts = state.found.counts
    shown: list[Element] = []
    for each, name in TABS.items():
        count = counts[each] + (counts[JobState.PAUSED] if each is JobState.WAITING else 0)
        here = each is list_query.state
        shown.append(
            a(
                name,
                span(number(count), class_="count" if count else "count zero"),
                href=url("queue", q=list_query.queue, state=each),
                aria_current="page" if here else None,
            )
        )
    return nav(shown, id="queue-tabs", class_="tabs", aria_label="States")


def _filter(list_query: ListQuery) -> Node:
    if list_query.state not in {JobState.FAILED, JobState.COMPLETED, JobState.DELAYED}:
        return None
    return form(
        input_(type="hidden", name="q", value=list_query.queue),
        input_(type="hidden", name="state", value=str(list_query.state)),
        label("Filter by time", for_="find", class_="unseen"),
        input_(
            id="find",
            type="text",
            name="find",
            value=list_query.typed,
            placeholder="after:03:10 before:03:20, or after:-15min",
            autocomplete="off",
        ),
        button("Filter", type="submit"),
        link_to("all", "queue", q=list_query.queue, state=list_query.state)
        if list_query.typed
        else None,
        link_to("group by error", "errors", q=list_query.queue)
        if list_query.state is JobState.FAILED
        else None,
        method="get",
        action="queue",
        class_="filter",
    )


def _live_fields(list_query: ListQuery) -> dict[str, str | int | None]:
    return {
        "q": list_query.queue,
        "state": list_query.state,
        "find": list_query.typed or None,
        **place_fields(list_query.after),
    }

"""The queue page: its tabs, job lists and figures per task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.diagnosis import explain_queue
from taskbull.core.keys import JobState
from taskbull.core.outcome import is_cancelled
from taskbull.core.search import Terms, read_terms
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.charts import charts
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.layout import since
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.pages.workers import running_jobs
from taskbull.dashboard.queue_line import HEALTH_SIGNS, QueueState, queue_list
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import SerializationError, ServerRefused
from taskbull.monitor.browse import START, After, JobRow, JobRows
from taskbull.monitor.overview import Range

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
    over: Range = "hour"
    """Period of the charts."""

    @property
    def address(self) -> str:
        """The address of this page."""
        place = place_fields(self.after)
        over = None if self.over == "hour" else self.over
        found = {"find": self.typed or None, "range": over, **place}
        return h.url("queue", q=self.queue, state=self.state, **found)

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
    over: Range = "day" if query.get("range") == "day" else "hour"
    return ListQuery(query.need("q"), JobState(state), after, query.get("find"), follows, over)


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


def _actions(ctx: RequestContext, list_query: ListQuery) -> list[str]:
    return [name for name in _BULK.get(list_query.state, ("remove",)) if ctx.may(name)]


def _columns(ctx: RequestContext, list_query: ListQuery) -> list[h.Node]:
    tick_all = h.input_(type="checkbox", data_all=True, hidden=True, aria_label="Select all shown")
    return [
        *([h.th(tick_all, scope="col")] if _actions(ctx, list_query) else []),
        "Id",
        "Task",
        h.th("Attempts", scope="col", class_="n"),
        _WHEN.get(list_query.state, "Finished"),
        h.th("Took", scope="col", class_="n"),
        "About",
    ]


def _empty(list_query: ListQuery) -> str:
    return f"No {list_query.state} jobs." if list_query.is_first else "No more jobs."


def job_list(ctx: RequestContext, list_query: ListQuery, page: JobRows, back: str) -> h.Element:
    """Return a list of jobs with checkboxes and actions."""
    actions = _actions(ctx, list_query)
    rows = [job_line(ctx, list_query, row) for row in page.rows]
    return h.form(
        [
            h.input_(type="hidden", name=name, value=value)
            for name, value in (
                ("q", list_query.queue),
                ("state", str(list_query.state)),
                ("back", back),
            )
        ],
        ui.grid("jobs", _columns(ctx, list_query), rows, _empty(list_query)),
        h.div(
            h.span(
                h.span("", data_ticked=True),
                f"{len(page.rows):,} shown, {ui.number(page.total)} in total",
            ),
            [
                h.button(
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


def _pager(list_query: ListQuery, page: JobRows) -> h.Element:
    order = "older" if list_query.state in {JobState.FAILED, JobState.COMPLETED} else "later"
    return h.span(
        None if list_query.is_first else h.a("‹ first", href=list_query.at(After()).address),
        None if page.after is None else h.a(f"{order} ›", href=list_query.at(page.after).address),
        class_="pager",
    )


def job_line(ctx: RequestContext, list_query: ListQuery, row: JobRow) -> h.Element:
    """Return the row of a job."""
    job = row.job
    tick = h.input_(type="checkbox", name="id", value=job.id, aria_label=f"Select job {job.id}")
    may_act = any(ctx.may(name) for name in _BULK.get(list_query.state, ("remove",)))
    return h.tr(
        ui.cell("", tick, kind="tickbox") if may_act else None,
        ui.cell("Id", link_to(job.id, "job", q=row.queue, id=job.id), kind="nw lead"),
        ui.cell("Task", h.strong(job.name) if job.name else h.span("missing", class_="quiet")),
        ui.cell("Attempts", _attempts(row), kind="n"),
        ui.cell(_WHEN.get(list_query.state, "Finished"), _when(row), kind="nw"),
        ui.cell("Took", ui.duration(_took(row)), kind="n"),
        ui.cell("About", about(ctx, row), kind="w"),
        id=f"job-{job.id}",
    )


def _attempts(row: JobRow) -> str:
    made = max(row.job.attempts_made, row.job.attempts_started)
    return f"{made}/{row.attempts}" if made else "–"


def _when(row: JobRow) -> h.Node:
    match row.state:
        case JobState.ACTIVE:
            return since(row.job.processed_on)
        case JobState.DELAYED:
            return ui.ago(row.due)
        case JobState.FAILED | JobState.COMPLETED:
            return ui.ago(row.job.finished_on)
        case _:
            return ui.ago(row.job.timestamp)


def _took(row: JobRow) -> float | None:
    job = row.job
    if job.processed_ms is None or job.finished_ms is None:
        return None
    return (job.finished_ms - job.processed_ms) / 1000


def about(ctx: RequestContext, row: JobRow) -> h.Node:
    """Return the most useful detail of a job: its error, worker, result or data."""
    if row.gone:
        return h.span("job data missing", class_="quiet")
    if row.state is JobState.FAILED or (
        row.job.failed_reason and row.state is not JobState.COMPLETED
    ):
        first = (row.job.failed_reason or "").strip().partition("\n")[0]
        return h.span(first, class_="cut bad" if row.state is JobState.FAILED else "cut warn")
    if row.state is JobState.ACTIVE and row.job.processed_by:
        stop = h.strong("asked to stop, ") if is_cancelled(row.job.deferred_failure) else None
        return h.span(stop, "on ", h.code(row.job.processed_by), class_="cut")
    shown = row.result if row.state is JobState.COMPLETED else row.data
    text = " ".join(ctx.settings.redactor.show(shown).split())
    return h.code(text, class_="cut quiet")


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
    """Share of the task's jobs that failed and were not cancelled."""
    waited: float | None
    took: float | None
    took_long: float | None
    """95th percentile of the run time."""


class QueueFigures(Struct, frozen=True):
    """Figures of a queue's tasks, the most frequent task first."""

    examined: int
    tasks: list[TaskFigures]


def figures_of(rows: Sequence[JobRow]) -> QueueFigures:
    """Compute the figures of each task from finished jobs."""
    by_name: dict[str, list[JobRow]] = {}
    for row in rows:
        if not row.gone:
            by_name.setdefault(row.job.name, []).append(row)
    examined = sum(map(len, by_name.values()))
    tasks = [_figures(name, some, examined) for name, some in by_name.items()]
    return QueueFigures(examined, sorted(tasks, key=lambda task: -task.share))


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
    failed = sum(
        row.state is JobState.FAILED and not is_cancelled(row.job.failed_reason) for row in rows
    )
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
_ALSO_SHOWN = {"failing", "failed", "late", "mixed", "split", "clock", "own_clock"}
"""Problems that do not keep jobs from running, so that the explanation does not have them."""

_MANY = 0.05
"""Share of failed jobs above which it is highlighted."""


async def show(dashboard: DashboardState, ctx: RequestContext) -> ui.Content:
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
        await running_jobs(dashboard, ctx, state),
        await _activity(dashboard, ctx, list_query),
        _tasks(await read_figures(dashboard, ctx, list_query.queue)),
        _tabs(state, list_query),
        _filter(list_query),
        job_list(ctx, list_query, page, back),
    ]
    live = h.url("live", page="queue", **_live_fields(list_query))
    return ui.Content(
        list_query.queue,
        body,
        "-",
        list_query.queue,
        str(list_query.state),
        live,
        read_at=sample.stale_since,
        side=queue_list(sample, list_query.queue),
    )


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change.

    These are the counts, and the rows if the first page is shown without a filter and followed.
    """
    list_query = read_list_query(ctx.query)
    sample = await dashboard.sampler.latest([list_query.queue])
    state = sample.queues.get(list_query.queue)
    if state is None:
        return Parts()
    elements = {
        "queue-facts": _facts(state),
        "queue-why": _why(state),
        "busy": await running_jobs(dashboard, ctx, state),
        "activity": await _activity(dashboard, ctx, list_query),
        "queue-list": queue_list(sample, list_query.queue),
        "queue-tabs": _tabs(state, list_query),
    }
    if not (list_query.follows and list_query.is_first and not list_query.typed):
        return Parts(elements)
    page = await _rows(dashboard, ctx, list_query)
    rows = {f"job-{row.job.id}": job_line(ctx, list_query, row) for row in page.rows}
    columns = _columns(ctx, list_query)
    return Parts(elements, ui.live_rows("jobs", columns, rows, _empty(list_query)))


async def _activity(
    dashboard: DashboardState, ctx: RequestContext, list_query: ListQuery
) -> h.Element:
    queue, over = list_query.queue, list_query.over
    try:
        found = await dashboard.views.read(
            ("activity", queue, over), lambda: ctx.server.activity(queue, over), _FRESH
        )
    except (ServerRefused, SerializationError) as error:
        return h.section(h.p(f"The activity cannot be read: {error}"), id="activity", class_="card")
    backlog = dashboard.backlog.of(queue, over, [period.start for period in found.periods])
    return charts(queue, over, found, backlog)


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


def _head(ctx: RequestContext, state: QueueState, list_query: ListQuery) -> h.Element:
    found = state.found
    name, back = state.name, list_query.address
    fields = {"q": name}
    failed = found.counts[JobState.FAILED]
    resume = ui.ask_button(ctx, "resume", "Resume", fields, back, "light")
    pause = ui.ask_button(ctx, "pause", "Pause…", fields, back)
    return h.div(
        h.h1(name, h.span(" paused", class_="warn") if found.paused else None),
        _facts(state),
        h.div(
            link_to("Errors", "errors", q=name) if failed else None,
            link_to("Groups", "groups", q=name) if found.counts[JobState.PRIORITIZED] else None,
            ui.ask_button(ctx, "retry-all", "Retry all…", fields, back)
            if failed and list_query.state is JobState.FAILED
            else None,
            resume if found.paused else pause,
            ui.ask_button(ctx, "limits", "Limits…", fields, back),
            ui.ask_button(ctx, "clean", "Clean…", fields, back),
            ui.ask_button(ctx, "drain", "Drain…", fields, back, "danger"),
            ui.ask_button(ctx, "obliterate", "Obliterate…", fields, back, "danger"),
            class_="actions",
        ),
        class_="head",
    )


def _facts(state: QueueState) -> h.Element:
    found = state.found
    limits = [
        f"{found.concurrency:,} concurrent" if found.concurrency else "",
        f"{found.rate_max:,} per {ui.duration(found.rate_window)}" if found.rate_max else "",
    ]
    limited = ", ".join(limit for limit in limits if limit)
    words = [
        found.version or "",
        f"{ui.rate(state.facts.arrivals)} in, {ui.rate(state.facts.out)} out per s (last minute)",
        f"limits: {limited}" if limited else "",
    ]
    return h.span(" · ".join(word for word in words if word), id="queue-facts", class_="facts")


def _why(state: QueueState) -> h.Element:
    """Explain the state of the queue from sampled facts, without another read."""
    said = [reason.text for reason in explain_queue(state.facts)]
    more = [trouble for trouble in state.troubles if trouble.code in _ALSO_SHOWN]
    texts = [f"{trouble.text[:1].upper()}{trouble.text[1:]}." for trouble in more]
    is_worst = bool(more) and more[0] is state.troubles[0]
    first, *others = [*texts, *said] if is_worst else [*said, *texts]
    sign, word = HEALTH_SIGNS[state.health]
    return h.section(
        h.p(h.span(sign, " ", word, class_=f"sign {state.health}"), " ", ui.prose(first)),
        [h.p(ui.prose(other), class_="also") for other in others],
        id="queue-why",
        class_=f"card why is-{state.health}",
    )


def _tasks(figures: QueueFigures) -> h.Node:
    if not figures.tasks:
        return None
    shown = [
        h.li(
            h.b(task.name),
            f" {ui.percent(task.share)} · waits {ui.duration(task.waited)}",
            f" · runs {ui.duration(task.took)}",
            f", 95 % below {ui.duration(task.took_long)}",
            h.span(
                f" · {ui.percent(task.failed)} fail",
                class_="bad" if task.failed > _MANY else None,
            ),
        )
        for task in figures.tasks[:_TASKS_SHOWN]
    ]
    words = f"Medians and shares of the last {ui.plural(figures.examined, 'finished job')}:"
    return h.div(h.p(words, class_="quiet"), h.ul(shown, class_="shares"), class_="tasks")


def _tabs(state: QueueState, list_query: ListQuery) -> h.Element:
    counts = state.found.counts
    shown: list[h.Element] = []
    for each, name in TABS.items():
        count = counts[each] + (counts[JobState.PAUSED] if each is JobState.WAITING else 0)
        here = each is list_query.state
        shown.append(
            h.a(
                name,
                h.span(ui.number(count), class_="count" if count else "count zero"),
                href=h.url("queue", q=list_query.queue, state=each),
                aria_current="page" if here else None,
            )
        )
    return h.nav(shown, id="queue-tabs", class_="tabs", aria_label="States")


def _filter(list_query: ListQuery) -> h.Node:
    if list_query.state not in {JobState.FAILED, JobState.COMPLETED, JobState.DELAYED}:
        return None
    return h.form(
        h.input_(type="hidden", name="q", value=list_query.queue),
        h.input_(type="hidden", name="state", value=str(list_query.state)),
        h.label("Filter by time", for_="find", class_="unseen"),
        h.input_(
            id="find",
            type="text",
            name="find",
            value=list_query.typed,
            placeholder="after:03:10 before:03:20, or after:-15min",
            autocomplete="off",
        ),
        h.button("Filter", type="submit"),
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
        "range": list_query.over,
        **place_fields(list_query.after),
    }

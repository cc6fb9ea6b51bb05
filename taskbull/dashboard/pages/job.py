"""The job page: attempts, timeline, facts, flow and everything stored about a job."""

from __future__ import annotations

from typing import Final

from taskbull.core.diagnosis import Explanation
from taskbull.core.fingerprint import alike
from taskbull.core.job import Job
from taskbull.core.states import JobState
from taskbull.core.worker_record import AttemptEnd, AttemptTimes, JobHistory, attempts_of
from taskbull.dashboard.components import (
    ago,
    ask_button,
    badge,
    cell,
    clock,
    duration,
    grid,
    plural,
)
from taskbull.dashboard.components import link as link_to
from taskbull.dashboard.html import (
    Element,
    Node,
    code,
    dd,
    div,
    dl,
    dt,
    h1,
    h2,
    li,
    ol,
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
from taskbull.dashboard.pages.job_fields import (
    error_card,
    json_card,
    log_card,
    options_card,
    read_pieces,
    result_card,
)
from taskbull.dashboard.request_context import RequestContext
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import JobNotFound
from taskbull.monitor.browse import JobDetails, JobRow
from taskbull.queue.job_tree import JobTree

# The table of attempts: start, duration and outcome of each.


_SHOWN: Final = 20
_FRESH: Final = 60.0
_NONE: Final = JobHistory([], 0, whole=True)
_COLUMNS: tuple[Node, ...] = (
    th("#", scope="col", class_="n"),
    "Started",
    th("Took", scope="col", class_="n"),
    "Outcome",
    "Error",
)
_ENDS = {
    "running": ("▶ running", None),
    "completed": ("✓ done", None),
    "failed": ("✗ failed", "bad"),
    "stalled": ("? stalled (worker lost)", "warn"),
    "again": ("↺ retried", "warn"),
}


async def attempts(dashboard: DashboardState, ctx: RequestContext, row: JobRow) -> Element:
    """Return the table of a job's attempts with their known times.

    It is hidden if the job has had fewer than two attempts.
    """
    job = row.job
    started = job.attempts_started or job.attempts_made
    if started < 2:
        return section(id="attempts", hidden=True)
    # The history changes only when an attempt starts or finishes.
    view = ("history", row.queue, job.id, started, job.attempts_made, row.state)
    history: JobHistory = await dashboard.views.read(
        view, lambda: ctx.server.history(row.queue, job.id), _FRESH
    )
    known = {each.number: each for each in attempts_of(history.events, started)}
    known.setdefault(started, _last(row, started))
    errors = _errors(job, list(known.values()), started)
    first = max(1, started - _SHOWN + 1)
    return section(
        h2("Attempts"),
        grid(
            "attempt-list",
            _COLUMNS,
            [_line(each, known.get(each), errors) for each in range(started, first - 1, -1)],
            "",
        ),
        p(_source(history, started - len(known)), class_="quiet"),
        id="attempts",
        class_="card",
    )


def _line(place: int, times: AttemptTimes | None, errors: dict[int, str]) -> Element:
    error = span(errors.get(place, ""), class_="cut")
    if times is None:
        return tr(
            cell("#", str(place), kind="n"),
            cell("Started", "–"),
            cell("Took", "–", kind="n"),
            cell("Outcome", span("no record", class_="quiet")),
            cell("Error", error, kind="w"),
        )
    words, look = _ENDS[times.end]
    took = None
    if times.began is not None and times.ended is not None:
        took = (times.ended - times.began).total_seconds()
    return tr(
        cell("#", str(place), kind="n"),
        cell("Started", clock(times.began), kind="nw"),
        cell("Took", duration(took), kind="n"),
        cell("Outcome", span(words, class_=look), kind="nw"),
        cell("Error", error, kind="w"),
    )


_STATE_ENDS: Final[dict[JobState, AttemptEnd]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.ACTIVE: "running",
}


def _last(row: JobRow, started: int) -> AttemptTimes:
    """Return the last attempt from the job's own fields."""
    job, end = row.job, _STATE_ENDS.get(row.state, "again")
    return AttemptTimes(started, job.processed_on, job.finished_on, end)


def _errors(job: Job, known: list[AttemptTimes], started: int) -> dict[int, str]:
    """Return the error of each failed attempt, by number.

    A job has one stack trace per failed attempt, oldest first. The result is empty if they cannot
    be matched.
    """
    stacks = job.stacktrace
    if len(stacks) == started or (len(stacks) == started - 1 and known[-1].end != "failed"):
        failed = list(range(1, len(stacks) + 1))
    else:
        failed = [each.number for each in known if each.end in {"again", "failed"}]
        if len(failed) != len(stacks):
            return {}
    reasons = [alike("", "", stack[:300], stack[-600:]).kind for stack in stacks]
    return dict(zip(failed, reasons, strict=True))


def _source(history: JobHistory, missing: int) -> str:
    events = plural(history.looked_at, "event")
    text = f"Times come from the queue's last {events}; the last attempt's from the job itself."
    return f"{text} These events do not cover all attempts." if missing > 0 else text


# The timeline, the facts and the flow.


_NODES = 200
_LEVELS = 10
_STEPS = 8
"""Maximum number of failed attempts on the timeline: the first ones and the last."""


def timeline(row: JobRow) -> Element:
    """Return the timeline of a job. It shows only stored times and guesses none."""
    job = row.job
    steps: list[Node] = [["added ", clock(job.timestamp)]]
    failed = _failures(row)
    steps += [span(f"#{number} ✗", class_="bad") for number in failed[: _STEPS - 1]]
    if len(failed) > _STEPS:
        steps.append("…")
    if len(failed) >= _STEPS:
        steps.append(span(f"#{failed[-1]} ✗", class_="bad"))
    if row.due is not None:
        steps.append(["due ", clock(row.due)])
    if job.processed_on is not None and job.finished_on is None and row.state is JobState.ACTIVE:
        steps.append([f"#{job.attempts_started or 1} started ", clock(job.processed_on)])
    if job.finished_on is not None:
        took = ""
        if job.processed_ms is not None and job.finished_ms is not None:
            took = f" after {duration((job.finished_ms - job.processed_ms) / 1000)}"
        word = "✓ done " if row.state is JobState.COMPLETED else "✗ failed "
        steps.append([word, clock(job.finished_on), took])
    return ol(
        [li(step) for step in steps], id="timeline", class_="line card", aria_label="Attempts"
    )


def _failures(row: JobRow) -> list[int]:
    """Return the numbers of the failed attempts."""
    made = row.job.attempts_made
    ended_well = row.state is JobState.COMPLETED
    return list(range(1, made + (0 if ended_well else 1)))


def facts(place: JobDetails) -> Element:
    """Return the facts of a job: attempts, times, worker, lock and relations."""
    row, job = place.row, place.row.job
    made = max(job.attempts_made, job.attempts_started)
    pairs: list[tuple[str, Node]] = [
        ("Attempts", f"{made} of {row.attempts}"),
        ("Stalled", plural(job.stalled_count, "time") if job.stalled_count else None),
        ("Priority", str(job.priority) if job.priority else None),
        ("Added", ago(job.timestamp) if job.timestamp else None),
        ("Started", ago(job.processed_on) if job.processed_on else None),
        ("Due", ago(row.due) if row.due else None),
        ("Expires", ago(job.expires) if job.expires else None),
        ("Worker", code(job.processed_by) if job.processed_by else None),
        ("Lock", duration(row.lock_seconds) if row.lock_seconds is not None else None),
        ("Dedup key", code(job.dedup_key) if job.dedup_key else None),
        (
            "Schedule",
            link_to(job.scheduler_id, "schedules", q=row.queue) if job.scheduler_id else None,
        ),
        ("Parent", code(job.parent_key) if job.parent_key else None),
    ]
    shown = [(dt(name), dd(value)) for name, value in pairs if value is not None]
    return section(h2("Details"), dl(shown, class_="facts-list"), id="facts", class_="card")


async def flow(ctx: RequestContext, place: JobDetails) -> Node:
    """Return the tree of a job's children, if it has any."""
    children = place.children
    if not (children.processed or children.unprocessed or children.ignored or children.failed):
        return None
    row = place.row
    tree = await ctx.server.flow(row.queue, row.job.id, depth=_LEVELS, limit=_NODES)
    if tree is None:
        return None
    return section(h2("Flow"), ul(_node(tree), class_="tree"), class_="card")


def _node(tree: JobTree) -> Element:
    name: Node = link_to(f"{tree.job.name or tree.queue}#{tree.job.id}", "job", q=tree.queue,
                         id=tree.job.id)  # fmt: skip
    if tree.removed:
        name = span(f"{tree.queue}#{tree.job.id} (removed)", class_="quiet")
    return li(
        name,
        " ",
        badge(tree.state),
        ul([_node(child) for child in tree.children]) if tree.children else None,
        p(f"and {tree.more:,} more", class_="quiet") if tree.more else None,
    )


# The page.


_LOG_LINES: Final = 200
_ENDED = {JobState.COMPLETED, JobState.FAILED}

_ACTIONS = {
    JobState.FAILED: ("retry",),
    JobState.COMPLETED: ("retry",),
    JobState.DELAYED: ("promote", "delay", "priority", "cancel"),
    JobState.PRIORITIZED: ("priority", "cancel"),
    JobState.WAITING: ("priority", "cancel"),
    JobState.PAUSED: ("priority", "cancel"),
    JobState.WAITING_CHILDREN: ("cancel",),
    JobState.ACTIVE: ("cancel",),
}
_LABELS = {
    "retry": "Retry",
    "promote": "Run now",
    "delay": "Delay…",
    "priority": "Priority…",
    "cancel": "Cancel…",
}


async def show(dashboard: DashboardState, ctx: RequestContext) -> Content:
    """Return the job page. If the job does not exist, the page explains why."""
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    explained = await _explained(dashboard, ctx, queue, job_id)
    try:
        place = await _locate(dashboard, ctx, queue, job_id)
    except JobNotFound:
        gone = [h1(queue, " / ", job_id), _why(explained)]
        return Content(f"{job_id} in {queue}", gone, "-", queue, status=404)
    log = await ctx.server.newest_log(queue, job_id, _LOG_LINES)
    chunks = await read_pieces(dashboard, ctx, place.row)
    body = [
        _head(ctx, place),
        _why(explained),
        timeline(place.row),
        await attempts(dashboard, ctx, place.row),
        div(
            div(
                json_card(ctx, place, "data", "Data", place.row.data, chunks.data),
                result_card(ctx, place, chunks),
                error_card(place, chunks.stacktrace),
                log_card(place, log),
            ),
            div(facts(place), await flow(ctx, place), options_card(ctx, place)),
            class_="columns",
        ),
    ]
    is_over = place.row.state in _ENDED
    live = None if is_over else url("live", page="job", q=queue, id=job_id)
    return Content(f"{job_id} in {queue}", body, "-", queue, live=live)


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change while the job is unfinished."""
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    explained = await _explained(dashboard, ctx, queue, job_id)
    try:
        place = await _locate(dashboard, ctx, queue, job_id)
    except JobNotFound:
        return Parts({"why": _why(explained)})
    return Parts(
        {
            "job-head": _head(ctx, place),
            "why": _why(explained),
            "timeline": timeline(place.row),
            "attempts": await attempts(dashboard, ctx, place.row),
            "facts": facts(place),
            "result": result_card(ctx, place, await read_pieces(dashboard, ctx, place.row)),
        }
    )


async def _locate(
    dashboard: DashboardState, ctx: RequestContext, queue: str, job_id: str
) -> JobDetails:
    return await dashboard.views.read(
        ("job", queue, job_id), lambda: ctx.server.inspect(queue, job_id)
    )


def _head(ctx: RequestContext, place: JobDetails) -> Element:
    row, job = place.row, place.row.job
    queue, state = row.queue, row.state
    back = url("job", q=queue, id=job.id)
    common = {"q": queue, "id": job.id, "state": str(state)}
    buttons = [
        ask_button(
            ctx,
            name,
            _LABELS[name],
            common,
            back,
            "light" if name in {"retry", "promote"} else "plain",
        )
        for name in _ACTIONS.get(state, ())
    ]
    removal = url("queue", q=queue, state="waiting" if state is JobState.PAUSED else state)
    return div(
        h1(link_to(queue, "queue", q=queue), " / ", code(job.id)),
        strong(job.name),
        badge(state),
        span(ago(job.finished_on), class_="quiet") if state in _ENDED else None,
        span(class_="facts"),
        div(
            buttons,
            ask_button(ctx, "readd", "Edit and re-add…", common, back),
            ask_button(ctx, "remove", "Remove…", common, removal, "danger")
            if state is not JobState.ACTIVE
            else None,
            class_="actions",
        ),
        id="job-head",
        class_="head",
    )


async def _explained(
    dashboard: DashboardState, ctx: RequestContext, queue: str, job_id: str
) -> Explanation:
    return await dashboard.views.read(("why", queue, job_id), lambda: ctx.server.why(queue, job_id))


def _why(explained: Explanation) -> Element:
    first, *others = [reason.text for reason in explained.reasons]
    return section(
        p(strong("Why: "), first),
        [p("Also: ", other, class_="also") for other in others],
        id="why",
        class_="card why",
        aria_label="Why",
    )

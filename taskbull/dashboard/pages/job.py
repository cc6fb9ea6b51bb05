"""The job page: attempts, timeline, facts, flow and everything stored about a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from taskbull.core.diagnosis import Explanation
from taskbull.core.fingerprint import make_fingerprint
from taskbull.core.job import Job
from taskbull.core.keys import JobState
from taskbull.core.steps import JobStep
from taskbull.core.wire.job import unescape
from taskbull.core.worker_record import AttemptEnd, AttemptTimes, JobHistory, attempts_of
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.messages import Refused, Response, run_in_thread
from taskbull.dashboard.pages.workers import running_jobs
from taskbull.dashboard.queue_line import QueueState, queue_list
from taskbull.dashboard.state import DashboardState, Parts
from taskbull.errors import ConnectionLost, JobNotFound, ServerRefused, TaskbullError
from taskbull.monitor.browse import FieldPreview, JobDetails, JobRow, Logs, StreamPreview
from taskbull.queue.job_tree import JobTree

# The cards of the job page: data, result, errors, log and options.
#
# Large fields are not read completely; the page shows their beginning or end.


LARGEST: Final = 32_000_000
"""Maximum size of a download, in bytes."""

LARGE: Final = 65_536
"""Size in bytes above which a page does not read a field completely."""

_HEAD: Final = 16_384
_FRESH: Final = 60.0
_NOTHING: Final = FieldPreview(0, "")

_FILES = {
    "data": "data.json",
    "result": "result.json",
    "progress": "progress.json",
    "options": "options.json",
    "stacktrace": "stacks.json",
    "reason": "error.txt",
    "log": "log.txt",
}
"""File names of the fields that can be downloaded."""


class LargeFields(Struct, frozen=True):
    """Excerpts of the fields that are too large for the job page."""

    data: FieldPreview = _NOTHING
    result: FieldPreview = _NOTHING
    stacktrace: FieldPreview = _NOTHING


async def read_large_fields(
    dashboard: DashboardState, ctx: RequestContext, row: JobRow
) -> LargeFields:
    """Read the beginning of large data and results, and the end of large stack traces.

    The newest stack trace is the last.
    """

    async def read(field: str) -> FieldPreview:
        length = row.sizes.get(field, 0)
        if length <= LARGE:
            return _NOTHING
        return await dashboard.views.read(
            ("piece", row.queue, row.job.id, field, length),
            lambda: ctx.server.preview_field(
                row.queue, row.job.id, field, most=_HEAD, end=field == "stacktrace"
            ),
            _FRESH,
        )

    return LargeFields(await read("data"), await read("result"), await read("stacktrace"))


def json_card(
    ctx: RequestContext, place: JobDetails, field: str, name: str, text: str, chunk: FieldPreview
) -> h.Element:
    """Return the card of a JSON field."""
    length = place.row.sizes.get(field, 0)
    shown = text or chunk.text
    return h.section(
        h.div(
            h.h2(name),
            h.span(ui.size(length), _download(place, field) if length else None, class_="quiet"),
            class_="cardhead",
        ),
        h.pre(ctx.settings.redactor.show(shown))
        if shown
        else h.p(_no_text(length), class_="quiet"),
        _cut(length, chunk, "first"),
        id=field,
        class_="card",
    )


def result_card(ctx: RequestContext, place: JobDetails, chunks: LargeFields) -> h.Element:
    """Return the card of the result, or of the progress if the job is not completed."""
    row = place.row
    if row.state is JobState.COMPLETED:
        return json_card(ctx, place, "result", "Result", row.result, chunks.result)
    progress = _progress(ctx, row.progress)
    is_over = row.state is JobState.FAILED and progress is None
    shown = progress or h.p("None.", class_="quiet")
    return h.section(h.h2("Progress"), shown, id="result", class_="card", hidden=is_over)


def error_card(place: JobDetails, chunk: FieldPreview) -> h.Node:
    """Return the card of a job's errors, newest first."""
    job = place.row.job
    stacks = job.stacktrace
    length = place.row.sizes.get("stacktrace", 0)
    if not stacks and not job.failed_reason and not length:
        return None
    shown = [
        h.details(
            h.summary(f"Traceback, failure {number}"), h.pre(stack), open=number == len(stacks)
        )
        for number, stack in reversed(list(enumerate(stacks, 1)))
    ]
    return h.section(
        h.div(
            h.h2("Error"),
            h.span(ui.size(length), _download(place, "stacktrace"), class_="quiet")
            if length
            else None,
            class_="cardhead",
        ),
        h.pre(job.failed_reason, class_="bad") if job.failed_reason else None,
        shown,
        h.pre(unescape(chunk.text)) if chunk.text else None,
        h.p(_no_text(length), class_="quiet") if length and not stacks and not chunk.text else None,
        _cut(length, chunk, "last"),
        id="error",
        class_="card",
    )


def log_card(place: JobDetails, log: Logs) -> h.Node:
    """Return the card of the last lines of a job's log."""
    if not log.lines:
        return None
    left_out = log.count - len(log.lines)
    missing = [
        f"The first {left_out:,} lines are not shown." if left_out > 0 else "",
        f"{ui.plural(log.cut, 'long line')} truncated." if log.cut else "",
    ]
    words = " ".join(word for word in missing if word)
    return h.section(
        h.div(
            h.h2(f"Log, {ui.plural(log.count, 'line')}"),
            h.span(_download(place, "log"), class_="quiet"),
            class_="cardhead",
        ),
        h.p(words, class_="quiet") if words else None,
        h.ol([h.li(line) for line in log.lines], class_="log code"),
        id="log",
        class_="card",
    )


def stream_card(ctx: RequestContext, stream: StreamPreview) -> h.Element:
    """Return the card of the last items that a job yielded, with secrets masked."""
    if not stream.count:
        return h.section(id="stream", hidden=True)
    shown = [
        each.shown if each.length else ctx.settings.redactor.show(each.shown)
        for each in stream.items
    ]
    left_out = stream.item_count - len(shown)
    return h.section(
        h.h2(f"Stream, {ui.plural(stream.item_count, 'item')}"),
        h.p(f"The first {left_out:,} items are not shown.", class_="quiet")
        if left_out > 0
        else None,
        h.ol([h.li(text) for text in shown], class_="log code"),
        id="stream",
        class_="card",
    )


def options_card(ctx: RequestContext, place: JobDetails) -> h.Node:
    """Return the card of a job's options as stored in Redis, with secrets masked."""
    if not place.row.raw_options:
        return None
    text = place.row.raw_options.decode("utf-8", "backslashreplace")
    shown = h.pre(ctx.settings.redactor.show(text))
    return h.section(h.details(h.summary("Options"), shown), class_="card")


async def download(ctx: RequestContext) -> Response:
    """Return a field of a job as a file.

    Secrets in JSON fields are masked; the failure reason and the log are not.
    """
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    field = ctx.query.get("field", "data")
    name = _FILES.get(field)
    if name is None:
        raise Refused(400, f"Unknown job field: {field!r}.")
    return Response.attachment(await _whole(ctx, queue, job_id, field), name)


async def _whole(ctx: RequestContext, queue: str, job_id: str, field: str) -> bytes:
    if field == "log":
        lines = await ctx.server.get_log(queue, job_id, most_bytes=LARGEST)
        if not lines:
            raise JobNotFound(queue, job_id)
        if sum(map(len, lines)) > LARGEST:
            raise _too_large("The log")
        return b"\n".join(lines) + b"\n"
    if (await ctx.server.preview_field(queue, job_id, field, most=1)).size > LARGEST:
        raise _too_large("This field")
    raw = await ctx.server.get_field(queue, job_id, field)
    if raw is None:
        raise JobNotFound(queue, job_id)
    return raw if field == "reason" else await run_in_thread(_masked, ctx.settings.redactor, raw)


def _masked(redactor: h.Redactor, raw: bytes) -> bytes:
    shown = redactor.mask(raw.decode("utf-8", "surrogateescape"))
    return shown.encode("utf-8", "surrogateescape")


def _too_large(what: str) -> Refused:
    return Refused(413, f"{what} is larger than {ui.size(LARGEST)}. Use `taskbull job` instead.")


def _download(place: JobDetails, field: str) -> h.Node:
    row = place.row
    return [" · ", link_to("download", "download", q=row.queue, id=row.job.id, field=field)]


def _cut(length: int, chunk: FieldPreview, which: str) -> h.Node:
    if not chunk.text:
        return None
    shown = len(chunk.text.encode("utf-8", "backslashreplace"))
    words = f"Showing the {which} {ui.size(shown)} of {ui.size(length)}. Download it to see all."
    return h.p(words, class_="quiet")


def _no_text(length: int) -> str:
    return f"{ui.size(length)}: too large to show here." if length else "None."


def _progress(ctx: RequestContext, text: str) -> h.Node:
    if not text or text == "0":
        return None
    try:
        value = float(text)
    except ValueError:
        return h.pre(ctx.settings.redactor.show(text))
    return ui.meter(value, f"{text} %") if 0 <= value <= 100 else h.pre(text)


# The table of attempts: start, duration and outcome of each.


_SHOWN: Final = 20
_NONE: Final = JobHistory([], 0, whole=True)
_COLUMNS: tuple[h.Node, ...] = (
    h.th("#", scope="col", class_="n"),
    "Started",
    h.th("Took", scope="col", class_="n"),
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


async def attempts(dashboard: DashboardState, ctx: RequestContext, row: JobRow) -> h.Element:
    """Return the table of a job's attempts with their known times.

    It is hidden if the job has had fewer than two attempts.
    """
    job = row.job
    started = job.attempts_started or job.attempts_made
    if started < 2:
        return h.section(id="attempts", hidden=True)
    # The history changes only when an attempt starts or finishes.
    view = ("history", row.queue, job.id, started, job.attempts_made, row.state)
    history: JobHistory = await dashboard.views.read(
        view, lambda: ctx.server.history(row.queue, job.id), _FRESH
    )
    known = {each.number: each for each in attempts_of(history.events, started)}
    known.setdefault(started, _last(row, started))
    errors = _errors(job, list(known.values()), started)
    first = max(1, started - _SHOWN + 1)
    return h.section(
        h.h2("Attempts"),
        ui.grid(
            "attempt-list",
            _COLUMNS,
            [_line(each, known.get(each), errors) for each in range(started, first - 1, -1)],
            "",
        ),
        h.p(_source(history, started - len(known)), class_="quiet"),
        id="attempts",
        class_="card",
    )


def _line(place: int, times: AttemptTimes | None, errors: dict[int, str]) -> h.Element:
    error = h.span(errors.get(place, ""), class_="cut")
    if times is None:
        return h.tr(
            ui.cell("#", str(place), kind="n"),
            ui.cell("Started", "–"),
            ui.cell("Took", "–", kind="n"),
            ui.cell("Outcome", h.span("no record", class_="quiet")),
            ui.cell("Error", error, kind="w"),
        )
    words, look = _ENDS[times.end]
    took = None
    if times.began is not None and times.ended is not None:
        took = (times.ended - times.began).total_seconds()
    return h.tr(
        ui.cell("#", str(place), kind="n"),
        ui.cell("Started", ui.clock(times.began), kind="nw"),
        ui.cell("Took", ui.duration(took), kind="n"),
        ui.cell("Outcome", h.span(words, class_=look), kind="nw"),
        ui.cell("Error", error, kind="w"),
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
    reasons = [make_fingerprint("", "", stack[:300], stack[-600:]).kind for stack in stacks]
    return dict(zip(failed, reasons, strict=True))


def _source(history: JobHistory, missing: int) -> str:
    events = ui.plural(history.examined, "event")
    text = f"Times come from the queue's last {events}; the last attempt's from the job itself."
    return f"{text} These events do not cover all attempts." if missing > 0 else text


# The timeline, the facts and the flow.


_NODES = 200
_LEVELS = 10
_STEPS = 8
"""Maximum number of failed attempts on the timeline: the first ones and the last."""


def timeline(row: JobRow) -> h.Element:
    """Return the timeline of a job. It shows only stored times and guesses none."""
    job = row.job
    steps: list[h.Node] = [["added ", ui.clock(job.timestamp)]]
    failed = _failures(row)
    steps += [h.span(f"#{number} ✗", class_="bad") for number in failed[: _STEPS - 1]]
    if len(failed) > _STEPS:
        steps.append("…")
    if len(failed) >= _STEPS:
        steps.append(h.span(f"#{failed[-1]} ✗", class_="bad"))
    if row.due is not None:
        steps.append(["due ", ui.clock(row.due)])
    if job.processed_on is not None and job.finished_on is None and row.state is JobState.ACTIVE:
        steps.append([f"#{job.attempts_started or 1} started ", ui.clock(job.processed_on)])
    if job.finished_on is not None:
        took = ""
        if job.processed_ms is not None and job.finished_ms is not None:
            took = f" after {ui.duration((job.finished_ms - job.processed_ms) / 1000)}"
        word = "✓ done " if row.state is JobState.COMPLETED else "✗ failed "
        steps.append([word, ui.clock(job.finished_on), took])
    return h.ol(
        [h.li(step) for step in steps], id="timeline", class_="line card", aria_label="Attempts"
    )


def _failures(row: JobRow) -> list[int]:
    """Return the numbers of the failed attempts."""
    made = row.job.attempts_made
    ended_well = row.state is JobState.COMPLETED
    return list(range(1, made + (0 if ended_well else 1)))


def facts(ctx: RequestContext, place: JobDetails) -> h.Element:
    """Return the facts of a job: attempts, times, worker, lock and relations."""
    row, job = place.row, place.row.job
    is_running = row.state is JobState.ACTIVE
    made = job.attempts_made + is_running
    starts = job.attempts_started if job.attempts_started > made else 0
    has_stack = is_running and not ctx.settings.read_only
    where = link_to("where it is now", "stack", q=row.queue, id=job.id) if has_stack else None
    pairs: list[tuple[str, h.Node]] = [
        ("Attempts", f"{made} of {row.attempts}"),
        ("Starts", ui.plural(starts, "time") if starts else None),
        ("Stack", where),
        ("Stalled", ui.plural(job.stalled_count, "time") if job.stalled_count else None),
        ("Priority", str(job.priority) if job.priority else None),
        ("Added", ui.ago(job.timestamp) if job.timestamp else None),
        ("Started", ui.ago(job.processed_on) if job.processed_on else None),
        ("Due", ui.ago(row.due) if row.due else None),
        ("Expires", ui.ago(job.expires) if job.expires else None),
        ("Worker", h.code(job.processed_by) if job.processed_by else None),
        ("Lock", ui.duration(row.lock_seconds) if row.lock_seconds is not None else None),
        ("Dedup key", h.code(job.dedup_key) if job.dedup_key else None),
        (
            "Schedule",
            link_to(job.scheduler_id, "schedules", q=row.queue) if job.scheduler_id else None,
        ),
        ("Parent", h.code(job.parent_key) if job.parent_key else None),
    ]
    shown = [(h.dt(name), h.dd(value)) for name, value in pairs if value is not None]
    return h.section(h.h2("Details"), h.dl(shown, class_="facts-list"), id="facts", class_="card")


async def flow(ctx: RequestContext, place: JobDetails) -> h.Node:
    """Return the tree of a job's children, if it has any."""
    children = place.children
    if not (children.processed or children.unprocessed or children.ignored or children.failed):
        return None
    row = place.row
    tree = await ctx.server.flow(row.queue, row.job.id, depth=_LEVELS, limit=_NODES)
    if tree is None:
        return None
    return h.section(h.h2("Flow"), h.ul(_node(tree), class_="tree"), class_="card")


def _node(tree: JobTree) -> h.Element:
    name: h.Node = link_to(
        f"{tree.job.name or tree.queue}#{tree.job.id}", "job", q=tree.queue, id=tree.job.id
    )
    if tree.removed:
        name = h.span(f"{tree.queue}#{tree.job.id} (removed)", class_="quiet")
    return h.li(
        name,
        " ",
        ui.badge(tree.state),
        h.ul([_node(child) for child in tree.children]) if tree.children else None,
        h.p(f"and {tree.more:,} more", class_="quiet") if tree.more else None,
    )


# Steps and waits.


_MOST_STEPS = 200

_STEP_COLUMNS: tuple[h.Node, ...] = (
    "Step",
    "Started",
    h.th("Took", scope="col", class_="n"),
    "Timeline",
    "Status",
    "",
)


async def steps(ctx: RequestContext, place: JobDetails) -> h.Element:
    """Return the table of a job's steps and waits. It is hidden if the job has none."""
    row = place.row
    found = await ctx.server.steps(row.queue, row.job.id)
    if not found.steps and not found.is_cut:
        return h.section(id="steps", hidden=True)
    shown = found.steps[-_MOST_STEPS:]
    is_cut = found.is_cut or len(shown) < len(found.steps)
    rows = [_step(ctx, place, one, bar) for one, bar in zip(shown, _bars(shown), strict=True)]
    return h.section(
        h.h2("Steps"),
        h.p("Some steps are not shown.", class_="quiet") if is_cut else None,
        ui.grid("step-list", _STEP_COLUMNS, rows, ""),
        id="steps",
        class_="card",
    )


def _bars(steps: Sequence[JobStep]) -> Iterator[h.Element | None]:
    """Yield a bar for each step, on one scale, or `None` if its start is unknown.

    The bar of a wait that has not ended goes to the end of the scale, which is then longer by a
    tenth. A bar up to the current time would update the page constantly.
    """
    starts = [step.started.timestamp() for step in steps if step.started is not None]
    first = min(starts, default=0.0)
    last = max([*starts, *(_end(step, first) for step in steps)], default=0.0)
    scale = max(last - first, 0.001)
    if any(step.is_waiting for step in steps):
        scale /= 0.9
    for step in steps:
        if step.started is None:
            yield None
            continue
        start = 100 * (step.started.timestamp() - first) / scale
        end = 100.0 if step.is_waiting else 100 * (_end(step, first) - first) / scale
        yield ui.time_bar(start, end, "waiting" if step.is_waiting else step.kind)


def _end(step: JobStep, default: float) -> float:
    if step.started is None or step.duration is None:
        return default
    return step.started.timestamp() + step.duration


def _step(
    ctx: RequestContext, place: JobDetails, step: JobStep, bar: h.Element | None
) -> h.Element:
    queue, job_id = place.row.queue, place.row.job.id
    status: list[h.Node] = [step.status]
    if step.is_waiting and step.until is not None:
        status = ["waiting until ", ui.clock(step.until)]
    button = None
    if step.is_waiting and place.row.state in _ENDED:
        status = ["not finished"]
    elif step.is_waiting and step.kind == "signal":
        fields = {"q": queue, "id": job_id, "signal": step.name}
        button = ui.ask_button(ctx, "signal", "Send…", fields, h.url("job", q=queue, id=job_id))
    return h.tr(
        ui.cell("Step", step.label, kind="step"),
        ui.cell("Started", ui.clock(step.started)),
        ui.cell("Took", ui.duration(step.duration), kind="n"),
        ui.cell("Timeline", bar),
        ui.cell("Status", status),
        ui.cell("", button),
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


async def show(dashboard: DashboardState, ctx: RequestContext) -> ui.Content:
    """Return the job page. If the job does not exist, the page explains why."""
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    explained = await _explained(dashboard, ctx, queue, job_id)
    sample = await dashboard.sampler.latest()
    side = queue_list(sample, queue)
    try:
        place = await _locate(dashboard, ctx, queue, job_id)
    except JobNotFound:
        gone = [h.h1(queue, " / ", job_id), _why(explained)]
        return ui.Content(f"{job_id} in {queue}", gone, "-", queue, status=404, side=side)
    log = await ctx.server.newest_log(queue, job_id, _LOG_LINES)
    chunks = await read_large_fields(dashboard, ctx, place.row)
    body = [
        _head(ctx, place),
        _why(explained, place.row.state),
        await _busy(dashboard, ctx, explained, sample.queues.get(queue)),
        timeline(place.row),
        await attempts(dashboard, ctx, place.row),
        await steps(ctx, place),
        h.div(
            h.div(
                json_card(ctx, place, "data", "Data", place.row.data, chunks.data),
                result_card(ctx, place, chunks),
                error_card(place, chunks.stacktrace),
                await _stream(ctx, queue, job_id),
                log_card(place, log),
            ),
            h.div(facts(ctx, place), await flow(ctx, place), options_card(ctx, place)),
            class_="columns",
        ),
    ]
    is_over = place.row.state in _ENDED
    live = None if is_over else h.url("live", page="job", q=queue, id=job_id)
    return ui.Content(f"{job_id} in {queue}", body, "-", queue, live=live, side=side)


async def show_stack(dashboard: DashboardState, ctx: RequestContext) -> ui.Content:
    """Return the page with the stack of a running job, as its worker reports it."""
    if ctx.settings.read_only:
        raise Refused(403, "This dashboard is read-only. Asking a worker for a stack is a write.")
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    back = link_to(job_id, "job", q=queue, id=job_id)
    head = h.div(h.h1("Stack of ", link_to(queue, "queue", q=queue), " / ", back), class_="head")
    side = queue_list(await dashboard.sampler.latest(), queue)
    try:
        await ctx.throttle()
        found = await ctx.server.stack(queue, job_id)
    except (JobNotFound, ServerRefused, ConnectionLost):
        raise
    except TaskbullError as error:
        body = [head, h.p(f"{error}.", class_="card")]
        return ui.Content(f"Stack of {job_id} in {queue}", body, "-", queue, status=409, side=side)
    text = f"It has been running for {ui.duration(found.seconds)} in worker "
    body = [
        head,
        h.section(
            h.p(text, h.code(found.worker), f", in its {found.place}. The innermost call is last."),
            h.pre(found.stack),
            h.p(link_to("Read it again", "stack", q=queue, id=job_id)),
            class_="card",
        ),
    ]
    return ui.Content(f"Stack of {job_id} in {queue}", body, "-", queue, side=side)


async def parts(dashboard: DashboardState, ctx: RequestContext) -> Parts:
    """Return the parts of the page that change while the job is unfinished."""
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    explained = await _explained(dashboard, ctx, queue, job_id)
    try:
        place = await _locate(dashboard, ctx, queue, job_id)
    except JobNotFound:
        return Parts({"why": _why(explained)})
    sample = await dashboard.sampler.latest()
    return Parts(
        {
            "job-head": _head(ctx, place),
            "why": _why(explained, place.row.state),
            "busy": await _busy(dashboard, ctx, explained, sample.queues.get(queue)),
            "timeline": timeline(place.row),
            "attempts": await attempts(dashboard, ctx, place.row),
            "steps": await steps(ctx, place),
            "facts": facts(ctx, place),
            "stream": await _stream(ctx, queue, job_id),
            "result": result_card(ctx, place, await read_large_fields(dashboard, ctx, place.row)),
        }
    )


async def _stream(ctx: RequestContext, queue: str, job_id: str) -> h.Element:
    return stream_card(ctx, await ctx.server.newest_items(queue, job_id))


async def _locate(
    dashboard: DashboardState, ctx: RequestContext, queue: str, job_id: str
) -> JobDetails:
    return await dashboard.views.read(
        ("job", queue, job_id), lambda: ctx.server.inspect(queue, job_id)
    )


def _head(ctx: RequestContext, place: JobDetails) -> h.Element:
    row, job = place.row, place.row.job
    queue, state = row.queue, row.state
    back = h.url("job", q=queue, id=job.id)
    common = {"q": queue, "id": job.id, "state": str(state)}
    buttons = [
        ui.ask_button(
            ctx,
            name,
            _LABELS[name],
            common,
            back,
            "light" if name in {"retry", "promote"} else "plain",
        )
        for name in _ACTIONS.get(state, ())
    ]
    removal = h.url("queue", q=queue, state="waiting" if state is JobState.PAUSED else state)
    return h.div(
        h.h1(link_to(queue, "queue", q=queue), " / ", h.code(job.id)),
        h.strong(job.name),
        ui.badge(state),
        h.span(ui.ago(job.finished_on), class_="quiet") if state in _ENDED else None,
        h.span(class_="facts"),
        h.div(
            buttons,
            ui.ask_button(ctx, "readd", "Edit and re-add…", common, back),
            ui.ask_button(ctx, "remove", "Remove…", common, removal, "danger")
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


async def _busy(
    dashboard: DashboardState,
    ctx: RequestContext,
    explained: Explanation,
    state: QueueState | None,
) -> h.Element:
    """Return the running jobs if the job waits for one of them to finish."""
    if state is None or all(reason.code != "busy" for reason in explained.reasons):
        return h.section(id="busy", hidden=True)
    return await running_jobs(dashboard, ctx, state)


_HOLDING: Final = {
    *("no_worker", "not_responding", "refused", "stalled", "task_unknown", "wait_lost"),
    "worker_gone",
}
"""Reasons that need someone to act."""

_LOOKS: Final = {
    JobState.FAILED: "is-bad",
    JobState.COMPLETED: "is-good",
    JobState.PAUSED: "is-off",
}


def _why(explained: Explanation, state: JobState = JobState.ACTIVE) -> h.Element:
    is_held = explained.reasons[0].code in _HOLDING
    look = "is-bad" if is_held else _LOOKS.get(state, "")
    first, *others = [reason.text for reason in explained.reasons]
    return h.section(
        h.p(h.strong("Why: "), ui.prose(first)),
        [h.p("Also: ", ui.prose(other), class_="also") for other in others],
        id="why",
        class_=f"card why {look}".rstrip(),
        aria_label="Why",
    )

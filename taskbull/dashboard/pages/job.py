"""One job: all that is stored about it, and why it is where it is."""

from __future__ import annotations

from typing import Final

from taskbull.core.states import JobState
from taskbull.core.why import Explanation
from taskbull.dashboard.board import Board
from taskbull.dashboard.frame import Content
from taskbull.dashboard.html import (
    Element,
    Node,
    code,
    details,
    div,
    h1,
    h2,
    li,
    ol,
    p,
    pre,
    section,
    span,
    strong,
    summary,
    url,
)
from taskbull.dashboard.live import Parts
from taskbull.dashboard.messages import Response
from taskbull.dashboard.pages.job_facts import facts, flow, timeline
from taskbull.dashboard.parts import ask_button, badge, meter
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago, plural, size
from taskbull.errors import JobNotFound
from taskbull.queue.job_row import JobPlace

_LOG_LINES: Final = 200
_LONGEST_OPTIONS: Final = 65_536
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


async def show(board: Board, visit: Visit) -> Content:
    """Return the page of a job; of one that is not there, what is known about that."""
    queue, job_id = visit.query.need("q"), visit.query.need("id")
    explained = await _explained(board, visit, queue, job_id)
    try:
        place = await _place(board, visit, queue, job_id)
    except JobNotFound:
        gone = [h1(queue, " / ", job_id), _why(explained)]
        return Content(f"{job_id} of {queue}", gone, "-", queue, status=404)
    logs = await visit.server.log_of(queue, job_id, _LOG_LINES)
    body = [
        _head(visit, place),
        _why(explained),
        timeline(place.row),
        div(
            div(
                _json(visit, place, "data", "Data", place.row.data),
                _result(visit, place),
                _stacks(place),
                _log(logs.lines, logs.count),
            ),
            div(facts(place), await flow(visit, place), await _options(visit, place)),
            class_="columns",
        ),
    ]
    is_over = place.row.state in _ENDED
    live = None if is_over else url("live", page="job", q=queue, id=job_id)
    return Content(f"{job_id} of {queue}", body, "-", queue, live=live)


async def parts(board: Board, visit: Visit) -> Parts:
    """Return what changes on it, until it has ended."""
    queue, job_id = visit.query.need("q"), visit.query.need("id")
    explained = await _explained(board, visit, queue, job_id)
    try:
        place = await _place(board, visit, queue, job_id)
    except JobNotFound:
        return Parts({"why": _why(explained)})
    return Parts(
        {
            "job-head": _head(visit, place),
            "why": _why(explained),
            "timeline": timeline(place.row),
            "facts": facts(place),
            "result": _result(visit, place),
        }
    )


async def download(visit: Visit) -> Response:
    """Return a job's data as a file, with what is secret masked."""
    queue, job_id = visit.query.need("q"), visit.query.need("id")
    found = await visit.server.queue(queue).get_job(job_id)
    if found is None:
        raise JobNotFound(queue, job_id)
    shown = visit.settings.redactor.show(found.raw_data.decode("utf-8", "surrogateescape"))
    return Response(
        shown.encode("utf-8", "surrogateescape"),
        content_type="application/octet-stream",
        headers={
            "content-disposition": 'attachment; filename="data.json"',
            "content-security-policy": "sandbox; default-src 'none'",
        },
    )


async def _place(board: Board, visit: Visit, queue: str, job_id: str) -> JobPlace:
    return await board.views.read(
        ("place", queue, job_id), lambda: visit.server.place(queue, job_id)
    )


def _head(visit: Visit, place: JobPlace) -> Element:
    row, job = place.row, place.row.job
    queue, state = row.queue, row.state
    back = url("job", q=queue, id=job.id)
    common = {"q": queue, "id": job.id, "state": str(state)}
    buttons = [
        ask_button(
            visit,
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
            ask_button(visit, "readd", "Edit and re-add…", common, back),
            ask_button(visit, "remove", "Remove…", common, removal, "danger")
            if state is not JobState.ACTIVE
            else None,
            class_="actions",
        ),
        id="job-head",
        class_="head",
    )


async def _explained(board: Board, visit: Visit, queue: str, job_id: str) -> Explanation:
    return await board.views.read(("why", queue, job_id), lambda: visit.server.why(queue, job_id))


def _why(explained: Explanation) -> Element:
    first, *others = [reason.text for reason in explained.reasons]
    return section(
        p(strong("Why: "), first),
        [p("Also: ", other, class_="also") for other in others],
        id="why",
        class_="card why",
        aria_label="Why",
    )


def _json(visit: Visit, place: JobPlace, field: str, name: str, text: str) -> Element:
    length = place.row.sizes.get(field, 0)
    return section(
        div(
            h2(name),
            span(
                size(length),
                [" · ", link_to("download", "download", q=place.row.queue, id=place.row.job.id)]
                if field == "data" and length
                else None,
                class_="quiet",
            ),
            class_="cardhead",
        ),
        pre(visit.settings.redactor.show(text)) if text else p(_no_text(length), class_="quiet"),
        id=field,
        class_="card",
    )


def _no_text(length: int) -> str:
    return f"{size(length)}: too large to be shown here." if length else "None."


def _result(visit: Visit, place: JobPlace) -> Element:
    row = place.row
    if row.state is JobState.COMPLETED:
        return _json(visit, place, "result", "Result", row.result)
    progress = _progress(visit, row.progress)
    is_over = row.state is JobState.FAILED and progress is None
    shown = progress or p("None.", class_="quiet")
    return section(h2("Progress"), shown, id="result", class_="card", hidden=is_over)


def _progress(visit: Visit, text: str) -> Node:
    if not text or text == "0":
        return None
    try:
        value = float(text)
    except ValueError:
        return pre(visit.settings.redactor.show(text))
    return meter(value, f"{text} %") if 0 <= value <= 100 else pre(text)


def _stacks(place: JobPlace) -> Node:
    job = place.row.job
    stacks = job.stacktrace
    if not stacks and not job.failed_reason:
        return None
    shown = [
        details(
            summary(f"Stack of failure {number}"),
            pre(stack),
            open=number == len(stacks),
        )
        for number, stack in reversed(list(enumerate(stacks, 1)))
    ]
    length = place.row.sizes.get("stacktrace", 0)
    return section(
        h2("Error"),
        pre(job.failed_reason, class_="bad") if job.failed_reason else None,
        shown,
        p(_no_text(length), class_="quiet") if length and not stacks else None,
        id="error",
        class_="card",
    )


def _log(lines: list[str], count: int) -> Node:
    if not lines:
        return None
    left_out = count - len(lines)
    return section(
        h2(f"Log, {plural(count, 'line')}"),
        p(f"The first {left_out:,} are not shown.", class_="quiet") if left_out > 0 else None,
        ol([li(line) for line in lines], class_="log code"),
        id="log",
        class_="card",
    )


async def _options(visit: Visit, place: JobPlace) -> Node:
    length = place.row.sizes.get("options", 0)
    if not 0 < length <= _LONGEST_OPTIONS:
        return None
    raw = await visit.server.raw_options(place.row.queue, place.row.job.id)
    text = raw.decode("utf-8", "backslashreplace")
    shown = pre(visit.settings.redactor.show(text))
    return section(details(summary("Options"), shown), class_="card")

"""One job: all that is stored about it, and why it is where it is."""

from __future__ import annotations

from typing import Final

from taskbull.core.states import JobState
from taskbull.core.why import Explanation
from taskbull.dashboard.board import Board
from taskbull.dashboard.frame import Content
from taskbull.dashboard.html import Element, code, div, h1, p, section, span, strong, url
from taskbull.dashboard.live import Parts
from taskbull.dashboard.pages.job_attempts import attempts
from taskbull.dashboard.pages.job_facts import facts, flow, timeline
from taskbull.dashboard.pages.job_fields import (
    error_card,
    json_card,
    log_card,
    options_card,
    read_pieces,
    result_card,
)
from taskbull.dashboard.parts import ask_button, badge
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago
from taskbull.errors import JobNotFound
from taskbull.queue.job_row import JobPlace

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


async def show(board: Board, visit: Visit) -> Content:
    """Return the page of a job; of one that is not there, what is known about that."""
    queue, job_id = visit.query.need("q"), visit.query.need("id")
    explained = await _explained(board, visit, queue, job_id)
    try:
        place = await _place(board, visit, queue, job_id)
    except JobNotFound:
        gone = [h1(queue, " / ", job_id), _why(explained)]
        return Content(f"{job_id} of {queue}", gone, "-", queue, status=404)
    log = await visit.server.peek_log(queue, job_id, _LOG_LINES)
    pieces = await read_pieces(board, visit, place.row)
    body = [
        _head(visit, place),
        _why(explained),
        timeline(place.row),
        await attempts(board, visit, place.row),
        div(
            div(
                json_card(visit, place, "data", "Data", place.row.data, pieces.data),
                result_card(visit, place, pieces),
                error_card(place, pieces.stacktrace),
                log_card(place, log),
            ),
            div(facts(place), await flow(visit, place), await options_card(visit, place)),
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
            "attempts": await attempts(board, visit, place.row),
            "facts": facts(place),
            "result": result_card(visit, place, await read_pieces(board, visit, place.row)),
        }
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

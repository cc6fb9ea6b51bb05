"""Looking for jobs: by id everywhere, by text in bounded steps that say how far they came.

What is looked for is sent by forms, never in an address, because it may be somebody's data.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

import msgspec
from anyio import create_task_group
from msgspec import Struct

from taskbull.core.search import Terms, read_terms
from taskbull.core.states import JobState
from taskbull.dashboard.board import Board
from taskbull.dashboard.frame import Content, framed
from taskbull.dashboard.html import (
    Element,
    Node,
    button,
    div,
    form,
    h1,
    input_,
    p,
    render_page,
    strong,
    tr,
    url,
)
from taskbull.dashboard.messages import Form, Refused, Response
from taskbull.dashboard.pages.job_list import about
from taskbull.dashboard.parts import badge, cell, grid
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago, number, plural
from taskbull.errors import JobNotFound, TaskbullError
from taskbull.queue.job_row import JobRow
from taskbull.queue.looked import START, After

STATES: Final = (
    JobState.FAILED,
    JobState.ACTIVE,
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.COMPLETED,
)

_STEP: Final = 10_000
"""Jobs that are looked at for one form, in one queue."""
_EACH: Final = 1_000
"""And of each state, if all queues are searched."""
_SECONDS: Final = 4.0
_MOST_HITS: Final = 200
_MOST_QUEUES: Final = 200


class Spot(Struct, frozen=True):
    """A state of a queue that is searched, from a place on."""

    queue: str
    state: JobState
    after: After = START


class Looking(Struct, frozen=True):
    """What is still to be searched; a form carries it from step to step."""

    spots: list[Spot]
    looked_at: int = 0
    too_large: int = 0


async def search(board: Board, visit: Visit) -> Response:
    """Look for what a form says; go to the job at once if it is an id."""
    given = await visit.request.form()
    text = given.need("text").strip()
    if not text:
        raise Refused(400, "Nothing is looked for.")
    if not given.get("place") and " " not in text:
        hits = await _by_id(board, visit, text)
        if len(hits) == 1:
            return Response.redirect(url("job", q=hits[0].queue, id=text))
        if hits:
            return _page(visit, given, hits, f"{plural(len(hits), 'job')} with this id.", None)
    terms = read_terms(text, datetime.now(UTC).astimezone())
    queue, state = given.get("q"), given.get("state")
    if queue and terms.empty:
        address = url("queue", q=queue, state=state or JobState.FAILED, find=text)
        return Response.redirect(address)
    looking = _continued(given) or await _beginning(board, queue, state)
    hits, left = await _look(visit, terms, looking, one_queue=bool(queue))
    return _page(visit, given, hits, _coverage(left, len(hits)), left)


async def _by_id(board: Board, visit: Visit, job_id: str) -> list[JobRow]:
    """Look for an id in all queues: one short call for each."""
    queues = list((await board.sampler.latest()).queues)[:_MOST_QUEUES]
    found: list[JobRow] = []

    async def look(queue: str) -> None:
        try:
            found.append((await visit.server.place(queue, job_id)).row)
        except (JobNotFound, TaskbullError):
            return

    async with create_task_group() as tasks:
        for queue in queues:
            tasks.start_soon(look, queue)
    return sorted(found, key=lambda row: row.queue)


async def _beginning(board: Board, queue: str, state: str) -> Looking:
    if queue:
        chosen = [JobState(state)] if state in set(STATES) else STATES
        return Looking([Spot(queue, each) for each in chosen])
    queues = (await board.sampler.latest()).queues
    return Looking([Spot(name, each) for each in STATES for name in queues])


def _continued(given: Form) -> Looking | None:
    if not given.get("place"):
        return None
    try:
        return msgspec.json.decode(given.get("place"), type=Looking)
    except msgspec.MsgspecError:
        raise Refused(400, "The search cannot go on from there: begin anew.") from None


async def _look(
    visit: Visit, terms: Terms, looking: Looking, *, one_queue: bool
) -> tuple[list[JobRow], Looking]:
    """Search until enough was found or looked at, or the time is over."""
    spots = list(looking.spots)
    hits: list[JobRow] = []
    looked_at = too_large = of_this = 0
    until = time.monotonic() + _SECONDS
    while spots and len(hits) < _MOST_HITS and time.monotonic() < until and looked_at < _STEP:
        spot = spots[0]
        await visit.pace()
        step = await visit.server.search(spot.queue, spot.state, terms, after=spot.after)
        hits += step.rows
        looked_at += step.looked_at
        too_large += step.too_large
        of_this += step.looked_at
        if step.after is None or (not one_queue and of_this >= _EACH):
            spots.pop(0)
            of_this = 0
        else:
            spots[0] = Spot(spot.queue, spot.state, step.after)
    left = Looking(spots, looking.looked_at + looked_at, looking.too_large + too_large)
    return hits, left


def _coverage(left: Looking, hits: int) -> str:
    words = f"{number(hits)} found; {plural(left.looked_at, 'job')} looked at so far"
    if left.too_large:
        words += f", of which {number(left.too_large)} have a field too large to be searched"
    if left.spots:
        return f"{words}. There are more to look at: none found does not mean that none exists."
    return f"{words}. That was all that can be looked at."


def _page(
    visit: Visit, given: Form, hits: list[JobRow], words: str, left: Looking | None
) -> Response:
    queue = given.get("q") or None
    columns: list[Node] = ["Job", "Queue", "State", "Task", "When", "About"]
    body = [
        div(h1("Search", f" in {queue}" if queue else " in all queues"), class_="head"),
        p(strong(given.get("text"))),
        p(words, class_="quiet", role="status"),
        grid("hits", columns, [_row(visit, row) for row in hits], "Nothing found so far."),
        _go_on(given, left) if left is not None and left.spots else None,
    ]
    state = given.get("state") or None
    content = Content("Search", body, "-", queue, state)
    return Response(render_page(framed(visit, content)))


def _row(visit: Visit, row: JobRow) -> Element:
    job = row.job
    when = job.finished_on or job.processed_on or job.timestamp
    return tr(
        cell("Job", link_to(job.id, "job", q=row.queue, id=job.id), kind="lead nw"),
        cell("Queue", link_to(row.queue, "queue", q=row.queue)),
        cell("State", badge(row.state)),
        cell("Task", job.name),
        cell("When", ago(when), kind="nw"),
        cell("About", about(visit, row), kind="w"),
    )


def _go_on(given: Form, left: Looking) -> Element:
    carried = {"text": given.get("text"), "q": given.get("q"), "state": given.get("state")}
    carried["place"] = msgspec.json.encode(left).decode()
    return form(
        [input_(type="hidden", name=name, value=value) for name, value in carried.items() if value],
        button(f"Look at the next {number(_STEP)}", type="submit"),
        method="post",
        action="search",
    )

"""Which page is where. Addresses are flat, so that all links are relative, and right anywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from taskbull.dashboard.board import MOST_STREAMS, Board
from taskbull.dashboard.board_order import Notice
from taskbull.dashboard.frame import Content, framed
from taskbull.dashboard.gate import act, confirm, download
from taskbull.dashboard.html import render, render_page
from taskbull.dashboard.live import LivePage, follow
from taskbull.dashboard.messages import Refused, Response, Stream
from taskbull.dashboard.pages import errors, job, operations, overview, queue, schedules, workers
from taskbull.dashboard.pages.job_fields import download as download_field
from taskbull.dashboard.pages.search import search
from taskbull.dashboard.visit import Visit

BoardPage: TypeAlias = Callable[[Board, Visit], Awaitable[Content]]

PAGES: Final[dict[str, BoardPage]] = {
    "": overview.show,
    "queue": queue.show,
    "errors": errors.show,
    "job": job.show,
    "schedules": schedules.show,
    "workers": workers.show,
    "operations": operations.show,
}


LIVE: Final[dict[str, LivePage]] = {
    "": overview.parts,
    "queue": queue.parts,
    "errors": errors.parts,
    "job": job.parts,
    "workers": workers.parts,
    "operations": operations.parts,
}


async def answer(board: Board, visit: Visit) -> Response | Stream:
    """Return what a request asks for."""
    path = visit.request.path
    if path == "":  # relative links would lead above the mount
        return Response.redirect(f"{str(visit.request.scope['path']).rpartition('/')[2]}/")
    page = path.removeprefix("/")
    if visit.request.method == "POST":
        return await _posted(board, visit, page)
    if page == "live":
        return _stream(board, visit)
    if page == "download":
        return await download_field(visit)
    if page not in PAGES:
        raise Refused(404, "There is no such page.")
    content = await PAGES[page](board, visit)
    return _page(visit, content, board.notices.get(visit.query.get("said")))


def _stream(board: Board, visit: Visit) -> Stream:
    page = LIVE.get(visit.query.get("page"))
    if page is None:
        raise Refused(404, "There is no such stream.")
    viewer = (visit.access.user, visit.request.peer)
    if not board.streams.make_room(viewer):
        raise Refused(503, f"{MOST_STREAMS} pages are open already: close some.")
    return Stream(follow(board, visit, page), viewer=viewer)


async def _posted(board: Board, visit: Visit, page: str) -> Response | Stream:
    match page:
        case "confirm":
            content, only_question = await confirm(visit)
            if only_question:
                return Response(render(content.body).encode())
            return _page(visit, content)
        case "act":
            return await act(board, visit)
        case "download":
            return await download(visit)
        case "search":
            return await search(board, visit)
        case _:
            raise Refused(405 if page in PAGES else 404, "There is nothing to send a form to.")


def _page(visit: Visit, content: Content, notice: Notice | None = None) -> Response:
    return Response(render_page(framed(visit, content, notice)), content.status)

"""Adding a job again, with other data."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskbull.core import payload
from taskbull.core.wire.job import encode_data
from taskbull.dashboard.actions.fields import choice
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.html import Node, code, label, p, span, textarea
from taskbull.dashboard.messages import Refused, apart
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import size
from taskbull.errors import TaskbullError
from taskbull.queue.job_view import JobView

_MOST_EDITED: Final = 2_000_000
"""Bytes of data that can be edited on a page."""


async def _ask_readd(visit: Visit, order: BoardOrder) -> Node:
    view = await _view(visit, order)
    raw = view.job.raw_data
    if len(raw) > _MOST_EDITED:
        raise Refused(413, f"The data has more than {size(_MOST_EDITED)}: too much to edit here.")
    shown = await apart(visit.settings.redactor.show, raw.decode("utf-8", "replace"))
    return [
        p("Add a new job ", code(view.job.name), " with this data?"),
        label(
            span("Data (JSON)", class_="name"),
            textarea(shown, name="data", rows="12", spellcheck="false", class_="code"),
            class_="field",
        ),
        p("What is masked stays as it was, unless you write something else.", class_="hint"),
        choice(
            "original",
            f"Job {order.id}",
            {"keep": "stays", "remove": "is removed once the new one is added"},
            "keep",
        ),
    ]


async def _readd(visit: Visit, order: BoardOrder) -> Acted:
    view = await _view(visit, order)
    data = visit.settings.redactor.restore(_json(order.form.get("data")), view.data)
    _check_data(visit, view.job.name, data)
    remove = order.form.get("original") == "remove"
    done = await visit.server.queue(order.queue).readd(order.id, data, remove=remove)
    if not remove:
        return Acted(f"Job {done.job.id} is added.")
    first = f"stays: {done.kept}" if done.kept else "is removed"
    return Acted(f"Job {done.job.id} is added. Job {order.id} {first}.")


def _json(text: str) -> Any:
    try:
        return payload.decode(text.encode("utf-8", "surrogateescape"))
    except (ValueError, msgspec.DecodeError) as error:
        raise Refused(400, f"The data is not JSON: {error}. Nothing was added.") from None


def _check_data(visit: Visit, name: str, data: Any) -> None:
    """Refuse data that does not fit the task, where this app knows it."""
    if visit.app is None:
        return
    try:
        visit.app.check_data(name, encode_data(data))
    except TaskbullError as error:
        raise Refused(400, f"{error}. Nothing was added.") from None


async def _view(visit: Visit, order: BoardOrder) -> JobView:
    return (await visit.server.inspect(order.queue, order.id, log_lines=1)).view


READD = BoardAction("readd", "Add the job", "job", _ask_readd, _readd)

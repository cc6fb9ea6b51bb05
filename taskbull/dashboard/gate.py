"""Submitted actions: check permission, confirm, perform once and record.

Every action goes through `read_action`, which checks permission before it reads other fields.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex

from taskbull.dashboard.actions.queues import ACTIONS
from taskbull.dashboard.forms import (
    Acted,
    BoardAction,
    BoardOrder,
    Notice,
    read_back,
    read_once,
    read_order,
)
from taskbull.dashboard.html import (
    Element,
    Node,
    a,
    button,
    code,
    div,
    form,
    h1,
    input_,
    label,
    section,
    span,
)
from taskbull.dashboard.layout import Content
from taskbull.dashboard.messages import (
    MOST_BYTES,
    MOST_EDITED_BYTES,
    Form,
    Refused,
    Response,
)
from taskbull.dashboard.pages.operations import describe_error
from taskbull.dashboard.state import Board
from taskbull.dashboard.visit import Audit, Visit
from taskbull.errors import TaskbullError
from taskbull.monitor.audit import OperationRecord

_log = logging.getLogger("taskbull.dashboard")

_IDS_LOGGED = 20

_FILE = "jobs.jsonl"


async def read_action(visit: Visit, name: str | None = None) -> tuple[BoardAction, Form]:
    """Return the submitted action and the form.

    Args:
        visit: The request.
        name: Action to use instead of the one that the form names.

    Raises:
        Refused: If the action is unknown, disabled or not permitted for this user.
    """
    if visit.settings.read_only:
        raise Refused(403, "This dashboard is read-only.")
    edits = visit.may("readd")
    given = await visit.request.form(MOST_EDITED_BYTES if edits else MOST_BYTES)
    action = ACTIONS.get(given.get("action") if name is None else name)
    if action is None:
        raise Refused(400, "Unknown action.")
    if action.name not in visit.settings.allowed:
        raise Refused(
            403,
            f"{action.label} is disabled. To enable it, use Dashboard(allow=[{action.name!r}]) or "
            f"taskbull dashboard --allow {action.name}.",
        )
    if not visit.may(action.name):
        raise Refused(403, f"{visit.access.user} is not allowed to: {action.name}.")
    return action, given


async def confirm(visit: Visit) -> tuple[Content, bool]:
    """Return the confirmation page, and True if the browser wants only the question."""
    action, given = await read_action(visit)
    order = read_order(action, given)
    question = await action.question(visit, order)
    asked = _question(action, order, question)
    return Content(action.label, section(asked, class_="card"), page="-"), bool(
        given.get("fragment")
    )


async def act(board: Board, visit: Visit) -> Response:
    """Perform the submitted action once, then redirect to the page it came from."""
    action, given = await read_action(visit)
    order = read_order(action, given)
    number = read_once(given)
    if action.typed and given.get("typed") != order.queue:
        raise Refused(400, f"The typed name is not {order.queue!r}. Nothing changed.")
    if not await visit.server.claim(number):
        back = read_back(given.get("back"))
        return _return(board, Notice("Already done: this form was submitted twice.", back))
    done = await _perform(visit, action, order)
    if done.file is not None:
        return Response.attachment(done.file, _FILE)
    board.forget_views(order.queue)
    after = None if done.after is None else partial(_go_on, board, order.queue, done.after)
    return _return(board, Notice(done.said, done.back or order.back, done.offer), after)


async def download(visit: Visit) -> Response:
    """Return the form's jobs as a file, whatever action the form names.

    The form can be submitted again afterwards. Secrets are masked unless the user may see them.
    """
    sees_all = visit.may("download-unmasked")
    action, given = await read_action(visit, "download-unmasked" if sees_all else "download")
    done = await _perform(visit, action, read_order(action, given))
    return Response.attachment(done.file or b"", _FILE)


async def _go_on(board: Board, queue: str, after: Callable[[], Awaitable[None]]) -> None:
    await after()
    board.forget_views(queue)


async def _perform(visit: Visit, action: BoardAction, order: BoardOrder) -> Acted:
    try:
        done = await action.perform(visit, order)
    except Refused as refused:
        tell(visit, action, order, 0, f"refused: {refused.status}")
        raise
    except TaskbullError as error:
        tell(visit, action, order, 0, f"failed: {type(error).__name__}")
        raise describe_error(error) from error
    tell(visit, action, order, done.count, "begun" if done.after else "done")
    if done.after is None:
        await visit.server.record_operation(_record(visit, action, order, done))
    return done


def _record(visit: Visit, action: BoardAction, order: BoardOrder, done: Acted) -> OperationRecord:
    now_ms = int(time.time() * 1000)
    ids = ", ".join(order.ids[:3]) + (", …" if len(order.ids) > 3 else "")
    return OperationRecord(
        id=token_hex(8),
        action=action.name,
        queue=order.queue,
        what=done.about or ids,
        by=visit.access.user,
        began_ms=now_ms,
        ended_ms=now_ms,
        count=done.count,
        outcome="done",
    )


def tell(visit: Visit, action: BoardAction, order: BoardOrder, count: int, outcome: str) -> None:
    """Log an action and pass it to `on_action`, without any job data."""
    told = Audit(
        action.name,
        order.queue,
        order.ids[:_IDS_LOGGED],
        count,
        order.form.get("group"),
        visit.access.user,
        visit.request.peer,
        outcome,
    )
    _log.info(
        "%s queue=%r ids=%s count=%d group=%r by=%r from=%s: %s",
        *(told.action, told.queue, list(told.ids), told.count, told.group, told.by, told.peer),
        told.outcome,
        extra={"audit": told},
    )
    if visit.settings.on_action is not None:
        try:
            visit.settings.on_action(told)
        except Exception:  # noqa: BLE001 - user code
            _log.exception("on_action failed")


def _return(
    board: Board, notice: Notice, after: Callable[[], Awaitable[None]] | None = None
) -> Response:
    joint = "&" if "?" in notice.back else "?"
    return Response.redirect(f"{notice.back}{joint}said={board.notices.put(notice)}", after)


def _question(action: BoardAction, order: BoardOrder, question: Node) -> Element:
    carried = [
        input_(type="hidden", name=name, value=value)
        for name, value in order.form.pairs
        if name in {"action", "q", "id", "state", "back", "group", *action.carries}
    ]
    return form(
        h1(action.label),
        question,
        carried,
        input_(type="hidden", name="once", value=token_hex(16)),
        _typed(order.queue) if action.typed else None,
        div(
            button(action.label, type="submit", class_=_look(action)),
            a("Go back", href=order.back, class_="button", data_close=True),
            class_="actions",
        ),
        method="post",
        action="act",
        class_="act question",
    )


def _look(action: BoardAction) -> str:
    return "main danger" if action.danger else "main"


def _typed(queue: str) -> Element:
    return label(
        span("Type ", code(queue), " to confirm", class_="name"),
        input_(name="typed", required=True, autocomplete="off", spellcheck="false"),
        class_="field",
    )

"""Submitted actions: check permission, confirm, perform once and record.

Every action goes through `read_action`, which checks permission before it reads other fields.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex

from taskbull.dashboard import html as h
from taskbull.dashboard.access import Audit, RequestContext
from taskbull.dashboard.actions.queues import ACTIONS
from taskbull.dashboard.forms import (
    ActionRequest,
    ActionResult,
    DashboardAction,
    Notice,
    read_back,
    read_once,
    read_request,
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
from taskbull.dashboard.state import DashboardState
from taskbull.errors import TaskbullError
from taskbull.monitor.audit import OperationRecord

_log = logging.getLogger("taskbull.dashboard")

_IDS_LOGGED = 20

_FILE = "jobs.jsonl"


async def read_action(ctx: RequestContext, name: str | None = None) -> tuple[DashboardAction, Form]:
    """Return the submitted action and the form.

    Args:
        ctx: The request.
        name: Action to use instead of the one that the form names.

    Raises:
        Refused: If the action is unknown, disabled or not permitted for this user.
    """
    if ctx.settings.read_only:
        raise Refused(403, "This dashboard is read-only.")
    edits = ctx.may("readd")
    given = await ctx.request.form(MOST_EDITED_BYTES if edits else MOST_BYTES)
    action = ACTIONS.get(given.get("action") if name is None else name)
    if action is None:
        raise Refused(400, "Unknown action.")
    if action.name not in ctx.settings.allowed:
        raise Refused(
            403,
            f"{action.label} is disabled. To enable it, use Dashboard(allow=[{action.name!r}]) or "
            f"taskbull dashboard --allow {action.name}.",
        )
    if not ctx.may(action.name):
        raise Refused(403, f"{ctx.access.user} is not allowed to: {action.name}.")
    return action, given


async def confirm(ctx: RequestContext) -> tuple[Content, bool]:
    """Return the confirmation page, and True if the browser wants only the question."""
    action, given = await read_action(ctx)
    request = read_request(action, given)
    question = await action.question(ctx, request)
    asked = _question(action, request, question)
    return Content(action.label, h.section(asked, class_="card"), page="-"), bool(
        given.get("fragment")
    )


async def act(dashboard: DashboardState, ctx: RequestContext) -> Response:
    """Perform the submitted action once, then redirect to the page it came from."""
    action, given = await read_action(ctx)
    request = read_request(action, given)
    number = read_once(given)
    if action.typed and given.get("typed") != request.queue:
        raise Refused(400, f"The typed name is not {request.queue!r}. Nothing changed.")
    if not await ctx.server.claim(number):
        back = read_back(given.get("back"))
        return _return(dashboard, Notice("Already done: this form was submitted twice.", back))
    done = await _perform(ctx, action, request)
    if done.file is not None:
        return Response.attachment(done.file, _FILE)
    dashboard.forget_views(request.queue)
    after = None if done.after is None else partial(_continue, dashboard, request.queue, done.after)
    return _return(dashboard, Notice(done.message, done.back or request.back, done.offer), after)


async def download(ctx: RequestContext) -> Response:
    """Return the form's jobs as a file, whatever action the form names.

    The form can be submitted again afterwards. Secrets are masked unless the user may see them.
    """
    sees_all = ctx.may("download-unmasked")
    action, given = await read_action(ctx, "download-unmasked" if sees_all else "download")
    done = await _perform(ctx, action, read_request(action, given))
    return Response.attachment(done.file or b"", _FILE)


async def _continue(
    dashboard: DashboardState, queue: str, after: Callable[[], Awaitable[None]]
) -> None:
    await after()
    dashboard.forget_views(queue)


async def _perform(
    ctx: RequestContext, action: DashboardAction, request: ActionRequest
) -> ActionResult:
    try:
        done = await action.perform(ctx, request)
    except Refused as refused:
        log_action(ctx, action, request, 0, f"refused: {refused.status}")
        raise
    except TaskbullError as error:
        log_action(ctx, action, request, 0, f"failed: {type(error).__name__}")
        raise describe_error(error) from error
    log_action(ctx, action, request, done.count, "begun" if done.after else "done")
    if done.after is None:
        await ctx.server.record_operation(_record(ctx, action, request, done))
    return done


def _record(
    ctx: RequestContext, action: DashboardAction, request: ActionRequest, done: ActionResult
) -> OperationRecord:
    now_ms = int(time.time() * 1000)
    ids = ", ".join(request.ids[:3]) + (", …" if len(request.ids) > 3 else "")
    return OperationRecord(
        id=token_hex(8),
        action=action.name,
        queue=request.queue,
        what=done.about or ids,
        by=ctx.access.user,
        began_ms=now_ms,
        ended_ms=now_ms,
        count=done.count,
        outcome="done",
    )


def log_action(
    ctx: RequestContext, action: DashboardAction, request: ActionRequest, count: int, outcome: str
) -> None:
    """Log an action and pass it to `on_action`, without any job data."""
    audit = Audit(
        action.name,
        request.queue,
        request.ids[:_IDS_LOGGED],
        count,
        request.form.get("group"),
        ctx.access.user,
        ctx.request.peer,
        outcome,
    )
    _log.info(
        "%s queue=%r ids=%s count=%d group=%r by=%r from=%s: %s",
        *(
            audit.action,
            audit.queue,
            list(audit.ids),
            audit.count,
            audit.group,
            audit.by,
            audit.peer,
        ),
        audit.outcome,
        extra={"audit": audit},
    )
    if ctx.settings.on_action is not None:
        try:
            ctx.settings.on_action(audit)
        except Exception:  # noqa: BLE001 - user code
            _log.exception("on_action failed")


def _return(
    dashboard: DashboardState, notice: Notice, after: Callable[[], Awaitable[None]] | None = None
) -> Response:
    joint = "&" if "?" in notice.back else "?"
    return Response.redirect(f"{notice.back}{joint}said={dashboard.notices.put(notice)}", after)


def _question(action: DashboardAction, request: ActionRequest, question: h.Node) -> h.Element:
    carried = [
        h.input_(type="hidden", name=name, value=value)
        for name, value in request.form.pairs
        if name in {"action", "q", "id", "state", "back", "group", *action.carries}
    ]
    return h.form(
        h.h1(action.label),
        question,
        carried,
        h.input_(type="hidden", name="once", value=token_hex(16)),
        _typed(request.queue) if action.typed else None,
        h.div(
            h.button(action.label, type="submit", class_=_look(action)),
            h.a("Go back", href=request.back, class_="button", data_close=True),
            class_="actions",
        ),
        method="post",
        action="act",
        class_="act question",
    )


def _look(action: DashboardAction) -> str:
    return "main danger" if action.danger else "main"


def _typed(queue: str) -> h.Element:
    return h.label(
        h.span("Type ", h.code(queue), " to confirm", class_="name"),
        h.input_(name="typed", required=True, autocomplete="off", spellcheck="false"),
        class_="field",
    )

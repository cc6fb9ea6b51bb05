"""Actions on jobs: download, edit, prioritize, delay, retry, promote, remove, cancel.

The module also has the form fields that actions use, and the action that limits a queue.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.keys import MAX_PRIORITY, JobState
from taskbull.core.validation import instant_from_ms, instant_to_ms
from taskbull.core.wire.job import JobCopy, encode_data, write_copy
from taskbull.dashboard import html as h
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.forms import ActionRequest, ActionResult, DashboardAction, UndoOffer
from taskbull.dashboard.layout import ago, clock, duration, plural, size
from taskbull.dashboard.messages import Form, Refused, run_in_thread
from taskbull.errors import ConfigurationError, JobNotFound, TaskbullError, WrongState
from taskbull.monitor.browse import JobRow
from taskbull.queue.operations import Finished
from taskbull.queue.queue import Queue

# Download: jobs as a file that `taskbull restore` can add again.


_LARGEST: Final = 32_000_000
"""Maximum size of a file in bytes, because it is built in memory."""


async def _ask(_: RequestContext, request: ActionRequest) -> h.Node:
    return [
        h.p("Download ", plural(len(request.ids), "job"), " from ", h.code(request.queue), "?"),
        h.p("One JSON object per line; re-add them with ", h.code("taskbull restore"), "."),
    ]


async def _ask_masked(ctx: RequestContext, request: ActionRequest) -> h.Node:
    hint = "Secret values are masked. Fill them in before you restore these jobs."
    return [await _ask(ctx, request), h.p(hint, class_="hint")]


async def _download(ctx: RequestContext, request: ActionRequest, *, mask: bool) -> ActionResult:
    queue, lines, length = ctx.server.queue(request.queue), list[bytes](), 0
    for job_id in request.ids:
        copy = await queue.copy_job(job_id)
        if copy is None:
            continue
        if mask:
            copy = await run_in_thread(masked, copy, ctx.settings.redactor)
        line = write_copy(copy)
        length += len(line)
        if length > _LARGEST:
            raise Refused(413, f"These jobs are larger than {size(_LARGEST)}. Select fewer.")
        lines.append(line)
    if not lines:
        raise Refused(404, "These jobs no longer exist.")
    return ActionResult("", len(lines), file=b"".join(lines))


def masked(copy: JobCopy, redactor: h.Redactor) -> JobCopy:
    """Return the copy with its secrets masked, and flagged as masked if it had any."""
    parts = {"data": bytes(copy.data).decode(), "options": bytes(copy.options).decode()}
    shown = {part: redactor.mask(text) for part, text in parts.items()}
    if shown == parts:
        return copy
    raws = {part: Raw(text.encode()) for part, text in shown.items()}
    return replace(copy, masked=True, **raws)


DOWNLOAD = DashboardAction(
    "download", "Download", "jobs", _ask_masked, partial(_download, mask=True)
)
DOWNLOAD_UNMASKED = DashboardAction(
    *("download-unmasked", "Download with secrets", "jobs", _ask, partial(_download, mask=False)),
    by_default=False,
)


# Form fields.


def field(
    name: str, words: h.Node, kind: str = "text", hint: str = "", **attributes: str
) -> h.Element:
    """Return a labeled input field."""
    return h.label(
        h.span(words, class_="name"),
        h.input_(name=name, type=kind, autocomplete="off", **attributes),
        h.small(hint) if hint else None,
        class_="field",
    )


def tick(name: str, words: h.Node) -> h.Element:
    """Return a checkbox."""
    box = h.input_(name=name, type="checkbox", value="yes")
    return h.label(box, h.span(words), class_="field tick")


def choice(name: str, words: str, options: Mapping[str, h.Node], chosen: str) -> h.Element:
    """Return a group of radio buttons."""
    return h.fieldset(
        h.legend(words),
        [
            h.label(
                h.input_(name=name, type="radio", value=value, checked=value == chosen),
                h.span(text),
                class_="tick",
            )
            for value, text in options.items()
        ],
    )


def attempts_choice() -> h.Element:
    """Return the radio buttons for the number of attempts of a retried job."""
    options = {"more": "one more", "reset": "reset to the full number"}
    return choice("attempts", "Attempts", options, "more")


def wants_reset(form: Form) -> bool:
    """Return True if the form asks to reset the attempt counters."""
    return form.get("attempts") == "reset"


# Add a copy of a job with edited data.


_MOST_EDITED: Final = 2_000_000
"""Maximum size of data that can be edited on a page, in bytes."""


async def _ask_readd(ctx: RequestContext, request: ActionRequest) -> h.Node:
    job = (await _row(ctx, request)).job
    raw = job.raw_data
    if len(raw) > _MOST_EDITED:
        raise Refused(413, f"The data is larger than {size(_MOST_EDITED)}, too large to edit here.")
    shown = await run_in_thread(ctx.settings.redactor.show, raw.decode("utf-8", "replace"))
    return [
        h.p("Add a new job ", h.code(job.name), " with this data?"),
        h.label(
            h.span("Data (JSON)", class_="name"),
            h.textarea(shown, name="data", rows="12", spellcheck="false", class_="code"),
            class_="field",
        ),
        h.p("Masked values stay unchanged unless you replace them.", class_="hint"),
        choice(
            "original",
            f"Original job {request.id}",
            {"keep": "keep", "remove": "remove after the new job is added"},
            "keep",
        ),
    ]


async def _readd(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    row = await _row(ctx, request)
    data = ctx.settings.redactor.restore(_json(request.form.get("data")), row.describe()["data"])
    _check_data(ctx, row.job.name, data)
    remove = request.form.get("original") == "remove"
    done = await ctx.server.queue(request.queue).readd(request.id, data, remove=remove)
    if not remove:
        return ActionResult(f"Added job {done.job.id}.")
    if done.kept:
        return ActionResult(f"Added job {done.job.id}, but kept job {request.id}: {done.kept}.")
    return ActionResult(f"Added job {done.job.id} and removed job {request.id}.")


def _json(text: str) -> Any:
    try:
        return payload.decode(text.encode("utf-8", "surrogateescape"))
    except (ValueError, msgspec.DecodeError) as error:
        raise Refused(400, f"The data is not valid JSON: {error}. Nothing was added.") from None


def _check_data(ctx: RequestContext, name: str, data: Any) -> None:
    """Refuse data that does not match the task's signature, if this app has the task."""
    if ctx.app is None:
        return
    try:
        ctx.app.check_data(name, encode_data(data))
    except TaskbullError as error:
        raise Refused(400, f"{error}. Nothing was added.") from None


async def _row(ctx: RequestContext, request: ActionRequest) -> JobRow:
    return (await ctx.server.inspect(request.queue, request.id, whole=True)).row


READD = DashboardAction("readd", "Add the job", "job", _ask_readd, _readd)


# Settings that can be undone: the priority and delay of a job, the limits of a queue.


async def _ask_priority(ctx: RequestContext, request: ActionRequest) -> h.Node:
    old = str(await _priority_of(ctx, request))
    return [
        h.p("Change the priority of job ", h.code(request.id), "?"),
        field(
            "priority",
            ["Priority: ", _from(old)],
            "number",
            f"0 runs before all others, then 1 to {MAX_PRIORITY:,}",
            min="0",
            max=str(MAX_PRIORITY),
            value=request.form.get("priority") or old,
            required="required",
        ),
    ]


async def _priority(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    request.form.need("priority")
    new, old = request.form.number("priority"), await _priority_of(ctx, request)
    await ctx.server.queue(request.queue).change_priority(request.id, new)
    fields = {"q": request.queue, "id": request.id, "priority": str(old)}
    return ActionResult(
        f"Priority of job {request.id}: {new} (was: {old}).",
        offer=UndoOffer("priority", f"Back to {old}", fields) if new != old else None,
    )


async def _priority_of(ctx: RequestContext, request: ActionRequest) -> int:
    return (await ctx.server.inspect(request.queue, request.id)).row.job.priority


async def _ask_delay(ctx: RequestContext, request: ActionRequest) -> h.Node:
    old, restored = await _due_time(ctx, request), restored_due(request.form)
    was = ["Due ", clock(old), " (", ago(old), ") → "]
    if restored is not None:
        return [
            h.p("Restore the due time of job ", h.code(request.id), "?"),
            h.p(was, clock(restored)),
        ]
    seconds = 3600 if old is None else max(0, round(old.timestamp() - time.time()))
    return [
        h.p("When should job ", h.code(request.id), " run?"),
        field(
            "delay",
            [was, "new, in seconds from now"],
            "number",
            min="0",
            value=str(seconds),
            required="required",
        ),
    ]


async def _delay(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    old, restored = await _due_time(ctx, request), restored_due(request.form)
    if restored is None:
        request.form.need("delay")
        delay: float = request.form.number("delay")
    else:
        delay = max(0.0, restored.timestamp() - time.time())
    await ctx.server.queue(request.queue).change_delay(request.id, restored or delay)
    message = f"Job {request.id} will run in {duration(delay)}"
    if old is None:
        return ActionResult(f"{message}.")
    due = {"due": str(instant_to_ms(old)), "state": str(request.state or "")}
    offer = UndoOffer("delay", "Undo", {"q": request.queue, "id": request.id, **due})
    before = duration(max(0.0, old.timestamp() - time.time()))
    return ActionResult(f"{message} (was: {before}).", offer=None if restored else offer)


async def _due_time(ctx: RequestContext, request: ActionRequest) -> datetime | None:
    return (await ctx.server.inspect(request.queue, request.id)).row.due


def restored_due(form: Form) -> datetime | None:
    """Return the due time to restore, or `None` if the form does not undo a change."""
    if not form.get("due"):
        return None
    due = instant_from_ms(form.number("due"))
    if due is None:
        raise Refused(400, "'due' is not a valid time. Reload the page.")
    return due


class _Limits(Struct, frozen=True):
    """Limits of a queue across all workers. 0 means no limit."""

    concurrency: int
    most: int
    window: float

    @property
    def words(self) -> str:
        most = self.concurrency
        concurrency = f"{most:,} concurrent" if most else "no concurrency limit"
        window = "second" if self.window == 1 else f"{self.window:g} s"
        rate = f"{self.most:,} per {window}" if self.most else "no rate limit"
        return f"{concurrency}, {rate}"

    @property
    def fields(self) -> dict[str, str]:
        return {
            "concurrency": str(self.concurrency or ""),
            "most": str(self.most or ""),
            "window": f"{self.window:g}",
        }


async def _ask_limits(ctx: RequestContext, request: ActionRequest) -> h.Node:
    old = await _limits_of(ctx, request)
    offered = bool(request.form.get("window"))
    new = {**old.fields, **{name: request.form.get(name) for name in old.fields if offered}}
    window = old.fields["window"] if old.most else "none"
    return [
        h.p(
            "Limit ",
            h.code(request.queue),
            " across all workers? Leave a field empty for no limit.",
        ),
        h.p("Current limits: ", h.strong(old.words), "."),
        field(
            "concurrency",
            ["Concurrent jobs: ", _from(old.fields["concurrency"])],
            "number",
            min="1",
            value=new["concurrency"],
        ),
        field(
            "most",
            ["Jobs started per window: ", _from(old.fields["most"])],
            "number",
            min="1",
            value=new["most"],
        ),
        field(
            "window",
            ["Window in seconds: ", _from(window)],
            "number",
            min="0.001",
            step="0.001",
            value=new["window"],
        ),
    ]


async def _limits(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    form, queue = request.form, ctx.server.queue(request.queue)
    new = _Limits(form.number("concurrency"), form.number("most"), form.seconds("window") or 1.0)
    old = await _limits_of(ctx, request)
    await queue.set_global_concurrency(new.concurrency or None)
    await queue.set_global_rate_limit(new.most or None, new.window)
    offer = UndoOffer("limits", "Undo", {"q": request.queue, **old.fields})
    message = f"Limits for {request.queue}: {new.words} (was: {old.words})."
    return ActionResult(message, offer=offer if new.words != old.words else None)


async def _limits_of(ctx: RequestContext, request: ActionRequest) -> _Limits:
    [found] = await ctx.server.survey([request.queue])
    return _Limits(found.concurrency or 0, found.rate_max or 0, found.rate_window or 1.0)


def _from(old: str) -> h.Node:
    return [h.strong(old or "none"), " → new"]


PRIORITY = DashboardAction("priority", "Change priority", "job", _ask_priority, _priority)
DELAY = DashboardAction("delay", "Change delay", "job", _ask_delay, _delay, carries=("due",))
LIMITS = DashboardAction("limits", "Set limits", "queue", _ask_limits, _limits)


# Actions on selected jobs.


_REGRETTED = 60
"""Seconds within which a promotion can be undone."""

_MOST_LISTED = 5
"""Maximum number of skipped jobs to name."""


async def _each(
    ctx: RequestContext,
    request: ActionRequest,
    done: str,
    do: Callable[[Queue, str], Awaitable[bool | None]],
) -> ActionResult:
    """Call `do` for each job; skip and report jobs that have changed state."""
    queue = ctx.server.queue(request.queue)
    problems: list[str] = []
    for job_id in request.ids:
        try:
            if await do(queue, job_id) is False:
                problems.append(f"{job_id} (running, or has a running child)")
        except (WrongState, JobNotFound):
            state = await queue.get_state(job_id)
            is_gone = state is JobState.UNKNOWN
            problems.append(f"{job_id} ({'no longer exists' if is_gone else state})")
    count = len(request.ids) - len(problems)
    return ActionResult(_sentence(count, done, problems), count)


def _sentence(count: int, done: str, problems: list[str]) -> str:
    if not problems:
        return f"{plural(count, 'job')} {done}."
    listed = ", ".join(problems[:_MOST_LISTED])
    more = f", and {len(problems) - _MOST_LISTED:,} more" if len(problems) > _MOST_LISTED else ""
    return f"{plural(count, 'job')} {done}. Skipped: {listed}{more}."


def _named(request: ActionRequest) -> h.Node:
    if len(request.ids) == 1:
        return ["job ", h.code(request.id)]
    return plural(len(request.ids), "job")


async def _ask_retry(_: RequestContext, request: ActionRequest) -> h.Node:
    return [
        h.p("Retry ", _named(request), " in ", h.code(request.queue), "?"),
        attempts_choice(),
        tick("reset_steps", "Discard the results of its steps, and start from the beginning"),
    ]


async def _retry(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    state: Finished = "completed" if request.state is JobState.COMPLETED else "failed"
    reset, steps = wants_reset(request.form), request.form.get("reset_steps") == "yes"

    async def retry(queue: Queue, job_id: str) -> None:
        await queue.retry(job_id, state, reset_attempts=reset, reset_steps=steps)

    return await _each(ctx, request, "will run again", retry)


async def _ask_promote(_: RequestContext, request: ActionRequest) -> h.Node:
    due = "its due time" if len(request.ids) == 1 else "their due times"
    return h.p("Run ", _named(request), " in ", h.code(request.queue), f" now instead of at {due}?")


async def _promote(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    due = await _due_of_delayed(ctx, request)
    done = await _each(ctx, request, "will run now", lambda queue, job: queue.promote(job))
    if due is None or not done.count:
        return done
    until = time.time() + _REGRETTED
    was = {"due": str(instant_to_ms(due)), "until": f"{until:.0f}"}
    fields = {"q": request.queue, "id": request.id, **was}
    return replace(done, offer=UndoOffer("delay-again", "Delay again", fields, until))


async def _due_of_delayed(ctx: RequestContext, request: ActionRequest) -> datetime | None:
    """Return the due time if the order is for a single delayed job."""
    if len(request.ids) > 1:
        return None
    try:
        return (await ctx.server.inspect(request.queue, request.id)).row.due
    except JobNotFound:
        return None


async def _ask_delay_again(_: RequestContext, request: ActionRequest) -> h.Node:
    due = clock(restored_due(request.form))
    return h.p("Delay job ", h.code(request.id), " in ", h.code(request.queue), " until ", due, "?")


async def _delay_again(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    due = restored_due(request.form)
    if due is None or request.form.number("until") < time.time():
        raise Refused(409, f"Too late to undo ({_REGRETTED} s). Nothing changed.")

    async def postpone(queue: Queue, job_id: str) -> None:
        await queue.postpone(job_id, due)

    return await _each(ctx, request, "delayed again", postpone)


async def _ask_remove(ctx: RequestContext, request: ActionRequest) -> h.Node:
    may_download = ctx.may("download") or ctx.may("download-unmasked")
    one = len(request.ids) == 1
    copy = f"; download the {'job' if one else 'jobs'} first to keep a copy" if may_download else ""
    return [
        h.p(
            "Remove ",
            _named(request),
            " from ",
            h.code(request.queue),
            f", with {'its' if one else 'their'} children?",
        ),
        h.p(f"This cannot be undone{copy}. Running jobs are skipped.", class_="hint"),
        _download_first() if may_download else None,
    ]


def _download_first() -> h.Node:
    """Return a button that submits this form to the download page instead."""
    return h.p(
        h.button("Download first", type="submit", formaction="download", formnovalidate=True),
        h.small(" to re-add them with ", h.code("taskbull restore"), ", without their children"),
    )


async def _remove(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    async def remove(queue: Queue, job_id: str) -> bool:
        state = await queue.get_state(job_id)
        if request.state is not None and _moved(request.state, state):
            raise WrongState(queue.name, job_id, f"is {state}", -1)
        return await queue.remove(job_id)

    return await _each(ctx, request, "removed", remove)


def _moved(shown: JobState, now: JobState) -> bool:
    """Return True if a job has left the state that the page showed.

    The waiting states count as one, because pausing the queue moves jobs between them.
    """
    waiting = {JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED}
    return shown != now and not {shown, now} <= waiting


async def _ask_cancel(_: RequestContext, request: ActionRequest) -> h.Node:
    return [
        h.p("Cancel ", _named(request), " in ", h.code(request.queue), "?"),
        h.p("A waiting job fails immediately; a running job is asked to stop.", class_="hint"),
        field("reason", "Reason (optional)", maxlength="200"),
    ]


async def _cancel(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    reason = request.form.get("reason")[:200]
    on_their_own: list[str] = []

    async def cancel(queue: Any, job_id: str) -> None:
        outcome = str(await queue.cancel(job_id, reason))
        if outcome == "too_late":
            raise WrongState(queue.name, job_id, "has ended", -1)
        if outcome == "unstoppable":
            on_their_own.append(job_id)

    done = await _each(ctx, request, "cancelled or asked to stop", cancel)
    if on_their_own:
        listed = ", ".join(on_their_own[:_MOST_LISTED])
        which = "do not support cancelling (such as Node) and will not be retried"
        done = replace(done, message=f"{done.message} These run on workers that {which}: {listed}.")
    return replace(done, about=reason)


async def _ask_signal(_: RequestContext, request: ActionRequest) -> h.Node:
    return [
        h.p("Send a signal to job ", h.code(request.id), " in ", h.code(request.queue), "?"),
        field("signal", "Signal", value=request.form.get("signal"), required="required"),
        h.label(
            h.span("Value (JSON)", class_="name"),
            h.textarea(
                request.form.get("value") or "null",
                name="value",
                rows="4",
                spellcheck="false",
                class_="code",
            ),
            class_="field",
        ),
    ]


async def _signal(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    name = request.form.need("signal")
    try:
        value = payload.decode(request.form.get("value").encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Refused(400, f"The value is not valid JSON: {error}. Nothing was sent.") from None

    async def send(queue: Queue, job_id: str) -> None:
        await queue.signal(job_id, name, value)

    try:
        done = await _each(ctx, request, f"got signal '{name}'", send)
    except ConfigurationError as error:
        raise Refused(400, f"{error}. Nothing was sent.") from None
    return replace(done, about=name)


SIGNAL = DashboardAction("signal", "Send signal", "job", _ask_signal, _signal)
RETRY = DashboardAction("retry", "Retry", "jobs", _ask_retry, _retry)
PROMOTE = DashboardAction("promote", "Run now", "jobs", _ask_promote, _promote)
DELAY_AGAIN = DashboardAction(
    *("delay-again", "Delay again", "job", _ask_delay_again, _delay_again),
    carries=("due", "until"),
)
REMOVE = DashboardAction("remove", "Remove", "jobs", _ask_remove, _remove, danger=True)
CANCEL = DashboardAction("cancel", "Cancel", "jobs", _ask_cancel, _cancel, danger=True)

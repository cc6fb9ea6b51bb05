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
from taskbull.core.states import MAX_PRIORITY, JobState
from taskbull.core.validation import instant_from_ms, instant_to_ms
from taskbull.core.wire.job import encode_data
from taskbull.core.wire.new_job import JobCopy, write_copy
from taskbull.dashboard.components import ago, clock, duration, plural, size
from taskbull.dashboard.forms import Acted, BoardAction, BoardOrder, Offer
from taskbull.dashboard.html import (
    Element,
    Node,
    Redactor,
    button,
    code,
    fieldset,
    input_,
    label,
    legend,
    p,
    small,
    span,
    strong,
    textarea,
)
from taskbull.dashboard.messages import Form, Refused, apart
from taskbull.dashboard.visit import Visit
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.monitor.browse import JobRow
from taskbull.queue.operations import Finished
from taskbull.queue.queue import Queue

# Download: jobs as a file that `taskbull restore` can add again.


_LARGEST: Final = 32_000_000
"""Maximum size of a file in bytes, because it is built in memory."""


async def _ask(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Download ", plural(len(order.ids), "job"), " from ", code(order.queue), "?"),
        p("One JSON object per line; re-add them with ", code("taskbull restore"), "."),
    ]


async def _ask_masked(visit: Visit, order: BoardOrder) -> Node:
    hint = "Secret values are masked. Fill them in before you restore these jobs."
    return [await _ask(visit, order), p(hint, class_="hint")]


async def _download(visit: Visit, order: BoardOrder, *, mask: bool) -> Acted:
    queue, lines, length = visit.server.queue(order.queue), list[bytes](), 0
    for job_id in order.ids:
        copy = await queue.copy_job(job_id)
        if copy is None:
            continue
        if mask:
            copy = await apart(masked, copy, visit.settings.redactor)
        line = write_copy(copy)
        length += len(line)
        if length > _LARGEST:
            raise Refused(413, f"These jobs are larger than {size(_LARGEST)}. Select fewer.")
        lines.append(line)
    if not lines:
        raise Refused(404, "These jobs no longer exist.")
    return Acted("", len(lines), file=b"".join(lines))


def masked(copy: JobCopy, redactor: Redactor) -> JobCopy:
    """Return the copy with its secrets masked, and flagged as masked if it had any."""
    parts = {"data": bytes(copy.data).decode(), "options": bytes(copy.options).decode()}
    shown = {part: redactor.mask(text) for part, text in parts.items()}
    if shown == parts:
        return copy
    raws = {part: Raw(text.encode()) for part, text in shown.items()}
    return replace(copy, masked=True, **raws)


DOWNLOAD = BoardAction("download", "Download", "jobs", _ask_masked, partial(_download, mask=True))
DOWNLOAD_UNMASKED = BoardAction(
    *("download-unmasked", "Download with secrets", "jobs", _ask, partial(_download, mask=False)),
    by_default=False,
)


# Form fields.


def field(name: str, words: Node, kind: str = "text", hint: str = "", **attributes: str) -> Element:
    """Return a labeled input field."""
    return label(
        span(words, class_="name"),
        input_(name=name, type=kind, autocomplete="off", **attributes),
        small(hint) if hint else None,
        class_="field",
    )


def tick(name: str, words: Node, *, ticked: bool = False) -> Element:
    """Return a checkbox."""
    box = input_(name=name, type="checkbox", value="yes", checked=ticked)
    return label(box, span(words), class_="field tick")


def choice(name: str, words: str, options: Mapping[str, Node], chosen: str) -> Element:
    """Return a group of radio buttons."""
    return fieldset(
        legend(words),
        [
            label(
                input_(name=name, type="radio", value=value, checked=value == chosen),
                span(text),
                class_="tick",
            )
            for value, text in options.items()
        ],
    )


def attempts_choice() -> Element:
    """Return the radio buttons for the number of attempts of a retried job."""
    options = {"more": "one more", "anew": "reset to the full number"}
    return choice("attempts", "Attempts", options, "more")


def wants_anew(form: Form) -> bool:
    """Return True if the form asks to reset the attempt counters."""
    return form.get("attempts") == "anew"


# Add a copy of a job with edited data.


_MOST_EDITED: Final = 2_000_000
"""Maximum size of data that can be edited on a page, in bytes."""


async def _ask_readd(visit: Visit, order: BoardOrder) -> Node:
    job = (await _row(visit, order)).job
    raw = job.raw_data
    if len(raw) > _MOST_EDITED:
        raise Refused(413, f"The data is larger than {size(_MOST_EDITED)}, too large to edit here.")
    shown = await apart(visit.settings.redactor.show, raw.decode("utf-8", "replace"))
    return [
        p("Add a new job ", code(job.name), " with this data?"),
        label(
            span("Data (JSON)", class_="name"),
            textarea(shown, name="data", rows="12", spellcheck="false", class_="code"),
            class_="field",
        ),
        p("Masked values stay unchanged unless you replace them.", class_="hint"),
        choice(
            "original",
            f"Original job {order.id}",
            {"keep": "keep", "remove": "remove after the new job is added"},
            "keep",
        ),
    ]


async def _readd(visit: Visit, order: BoardOrder) -> Acted:
    row = await _row(visit, order)
    data = visit.settings.redactor.restore(_json(order.form.get("data")), row.describe()["data"])
    _check_data(visit, row.job.name, data)
    remove = order.form.get("original") == "remove"
    done = await visit.server.queue(order.queue).readd(order.id, data, remove=remove)
    if not remove:
        return Acted(f"Added job {done.job.id}.")
    if done.kept:
        return Acted(f"Added job {done.job.id}, but kept job {order.id}: {done.kept}.")
    return Acted(f"Added job {done.job.id} and removed job {order.id}.")


def _json(text: str) -> Any:
    try:
        return payload.decode(text.encode("utf-8", "surrogateescape"))
    except (ValueError, msgspec.DecodeError) as error:
        raise Refused(400, f"The data is not valid JSON: {error}. Nothing was added.") from None


def _check_data(visit: Visit, name: str, data: Any) -> None:
    """Refuse data that does not match the task's signature, if this app has the task."""
    if visit.app is None:
        return
    try:
        visit.app.check_data(name, encode_data(data))
    except TaskbullError as error:
        raise Refused(400, f"{error}. Nothing was added.") from None


async def _row(visit: Visit, order: BoardOrder) -> JobRow:
    return (await visit.server.inspect(order.queue, order.id, whole=True)).row


READD = BoardAction("readd", "Add the job", "job", _ask_readd, _readd)


# Settings that can be undone: the priority and delay of a job, the limits of a queue.


async def _ask_priority(visit: Visit, order: BoardOrder) -> Node:
    old = str(await _priority_of(visit, order))
    return [
        p("Change the priority of job ", code(order.id), "?"),
        field(
            "priority",
            ["Priority: ", _from(old)],
            "number",
            f"0 runs before all others, then 1 to {MAX_PRIORITY:,}",
            min="0",
            max=str(MAX_PRIORITY),
            value=order.form.get("priority") or old,
            required="required",
        ),
    ]


async def _priority(visit: Visit, order: BoardOrder) -> Acted:
    order.form.need("priority")
    new, old = order.form.number("priority"), await _priority_of(visit, order)
    await visit.server.queue(order.queue).change_priority(order.id, new)
    fields = {"q": order.queue, "id": order.id, "priority": str(old)}
    return Acted(
        f"Priority of job {order.id}: {new} (was: {old}).",
        offer=Offer("priority", f"Back to {old}", fields) if new != old else None,
    )


async def _priority_of(visit: Visit, order: BoardOrder) -> int:
    return (await visit.server.inspect(order.queue, order.id)).row.job.priority


async def _ask_delay(visit: Visit, order: BoardOrder) -> Node:
    old, restored = await _due_time(visit, order), restored_due(order.form)
    was = ["Due ", clock(old), " (", ago(old), ") → "]
    if restored is not None:
        return [p("Restore the due time of job ", code(order.id), "?"), p(was, clock(restored))]
    seconds = 3600 if old is None else max(0, round(old.timestamp() - time.time()))
    return [
        p("When should job ", code(order.id), " run?"),
        field(
            "delay",
            [was, "new, in seconds from now"],
            "number",
            min="0",
            value=str(seconds),
            required="required",
        ),
    ]


async def _delay(visit: Visit, order: BoardOrder) -> Acted:
    old, restored = await _due_time(visit, order), restored_due(order.form)
    if restored is None:
        order.form.need("delay")
        delay: float = order.form.number("delay")
    else:
        delay = max(0.0, restored.timestamp() - time.time())
    await visit.server.queue(order.queue).change_delay(order.id, restored or delay)
    said = f"Job {order.id} will run in {duration(delay)}"
    if old is None:
        return Acted(f"{said}.")
    due = {"due": str(instant_to_ms(old)), "state": str(order.state or "")}
    offer = Offer("delay", "Undo", {"q": order.queue, "id": order.id, **due})
    before = duration(max(0.0, old.timestamp() - time.time()))
    return Acted(f"{said} (was: {before}).", offer=None if restored else offer)


async def _due_time(visit: Visit, order: BoardOrder) -> datetime | None:
    return (await visit.server.inspect(order.queue, order.id)).row.due


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

    at_once: int
    most: int
    window: float

    @property
    def words(self) -> str:
        at_once = f"{self.at_once:,} concurrent" if self.at_once else "no concurrency limit"
        window = "second" if self.window == 1 else f"{self.window:g} s"
        rate = f"{self.most:,} per {window}" if self.most else "no rate limit"
        return f"{at_once}, {rate}"

    @property
    def fields(self) -> dict[str, str]:
        return {
            "concurrency": str(self.at_once or ""),
            "most": str(self.most or ""),
            "window": f"{self.window:g}",
        }


async def _ask_limits(visit: Visit, order: BoardOrder) -> Node:
    old = await _limits_of(visit, order)
    offered = bool(order.form.get("window"))
    new = {**old.fields, **{name: order.form.get(name) for name in old.fields if offered}}
    window = old.fields["window"] if old.most else "none"
    return [
        p("Limit ", code(order.queue), " across all workers? Leave a field empty for no limit."),
        p("Current limits: ", strong(old.words), "."),
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


async def _limits(visit: Visit, order: BoardOrder) -> Acted:
    form, queue = order.form, visit.server.queue(order.queue)
    new = _Limits(form.number("concurrency"), form.number("most"), form.seconds("window") or 1.0)
    old = await _limits_of(visit, order)
    await queue.set_global_concurrency(new.at_once or None)
    await queue.set_global_rate_limit(new.most or None, new.window)
    offer = Offer("limits", "Undo", {"q": order.queue, **old.fields})
    said = f"Limits for {order.queue}: {new.words} (was: {old.words})."
    return Acted(said, offer=offer if new.words != old.words else None)


async def _limits_of(visit: Visit, order: BoardOrder) -> _Limits:
    [found] = await visit.server.survey([order.queue])
    return _Limits(found.concurrency or 0, found.rate_max or 0, found.rate_window or 1.0)


def _from(old: str) -> Node:
    return [strong(old or "none"), " → new"]


PRIORITY = BoardAction("priority", "Change priority", "job", _ask_priority, _priority)
DELAY = BoardAction("delay", "Change delay", "job", _ask_delay, _delay, carries=("due",))
LIMITS = BoardAction("limits", "Set limits", "queue", _ask_limits, _limits)


# Actions on selected jobs.


_REGRETTED = 60
"""Seconds within which a promotion can be undone."""

_TOLD = 5
"""Maximum number of skipped jobs to name."""


async def _each(
    visit: Visit, order: BoardOrder, done: str, do: Callable[[Queue, str], Awaitable[bool | None]]
) -> Acted:
    """Call `do` for each job; skip and report jobs that have changed state."""
    queue = visit.server.queue(order.queue)
    problems: list[str] = []
    for job_id in order.ids:
        try:
            if await do(queue, job_id) is False:
                problems.append(f"{job_id} (running, or has a running child)")
        except (WrongState, JobNotFound):
            state = await queue.get_state(job_id)
            is_gone = state is JobState.UNKNOWN
            problems.append(f"{job_id} ({'no longer exists' if is_gone else state})")
    count = len(order.ids) - len(problems)
    return Acted(_sentence(count, done, problems), count)


def _sentence(count: int, done: str, problems: list[str]) -> str:
    if not problems:
        return f"{plural(count, 'job')} {done}."
    told = ", ".join(problems[:_TOLD])
    more = f", and {len(problems) - _TOLD:,} more" if len(problems) > _TOLD else ""
    return f"{plural(count, 'job')} {done}. Skipped: {told}{more}."


def _named(order: BoardOrder) -> Node:
    if len(order.ids) == 1:
        return ["job ", code(order.id)]
    return plural(len(order.ids), "job")


async def _ask_retry(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Retry ", _named(order), " in ", code(order.queue), "?"),
        attempts_choice(),
    ]


async def _retry(visit: Visit, order: BoardOrder) -> Acted:
    state: Finished = "completed" if order.state is JobState.COMPLETED else "failed"
    anew = wants_anew(order.form)

    async def retry(queue: Queue, job_id: str) -> None:
        await queue.retry(job_id, state, reset_attempts=anew)

    return await _each(visit, order, "will run again", retry)


async def _ask_promote(_: Visit, order: BoardOrder) -> Node:
    due = "its due time" if len(order.ids) == 1 else "their due times"
    return p("Run ", _named(order), " in ", code(order.queue), f" now instead of at {due}?")


async def _promote(visit: Visit, order: BoardOrder) -> Acted:
    due = await _due_of_delayed(visit, order)
    done = await _each(visit, order, "will run now", lambda queue, job: queue.promote(job))
    if due is None or not done.count:
        return done
    until = time.time() + _REGRETTED
    was = {"due": str(instant_to_ms(due)), "until": f"{until:.0f}"}
    fields = {"q": order.queue, "id": order.id, **was}
    return replace(done, offer=Offer("delay-again", "Delay again", fields, until))


async def _due_of_delayed(visit: Visit, order: BoardOrder) -> datetime | None:
    """Return the due time if the order is for a single delayed job."""
    if len(order.ids) > 1:
        return None
    try:
        return (await visit.server.inspect(order.queue, order.id)).row.due
    except JobNotFound:
        return None


async def _ask_delay_again(_: Visit, order: BoardOrder) -> Node:
    due = clock(restored_due(order.form))
    return p("Delay job ", code(order.id), " in ", code(order.queue), " until ", due, "?")


async def _delay_again(visit: Visit, order: BoardOrder) -> Acted:
    due = restored_due(order.form)
    if due is None or order.form.number("until") < time.time():
        raise Refused(409, f"Too late to undo ({_REGRETTED} s). Nothing changed.")

    async def postpone(queue: Queue, job_id: str) -> None:
        await queue.postpone(job_id, due)

    return await _each(visit, order, "delayed again", postpone)


async def _ask_remove(visit: Visit, order: BoardOrder) -> Node:
    may_download = visit.may("download") or visit.may("download-unmasked")
    one = len(order.ids) == 1
    copy = f"; download the {'job' if one else 'jobs'} first to keep a copy" if may_download else ""
    return [
        p(
            "Remove ",
            _named(order),
            " from ",
            code(order.queue),
            f", with {'its' if one else 'their'} children?",
        ),
        p(f"This cannot be undone{copy}. Running jobs are skipped.", class_="hint"),
        _download_first() if may_download else None,
    ]


def _download_first() -> Node:
    """Return a button that submits this form to the download page instead."""
    return p(
        button("Download first", type="submit", formaction="download", formnovalidate=True),
        small(" to re-add them with ", code("taskbull restore"), ", without their children"),
    )


async def _remove(visit: Visit, order: BoardOrder) -> Acted:
    async def remove(queue: Queue, job_id: str) -> bool:
        state = await queue.get_state(job_id)
        if order.state is not None and _moved(order.state, state):
            raise WrongState(queue.name, job_id, f"is {state}", -1)
        return await queue.remove(job_id)

    return await _each(visit, order, "removed", remove)


def _moved(shown: JobState, now: JobState) -> bool:
    """Return True if a job has left the state that the page showed.

    The waiting states count as one, because pausing the queue moves jobs between them.
    """
    waiting = {JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED}
    return shown != now and not {shown, now} <= waiting


async def _ask_cancel(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Cancel ", _named(order), " in ", code(order.queue), "?"),
        p("A waiting job fails immediately; a running job is asked to stop.", class_="hint"),
        field("reason", "Reason (optional)", maxlength="200"),
    ]


async def _cancel(visit: Visit, order: BoardOrder) -> Acted:
    reason = order.form.get("reason")[:200]
    on_their_own: list[str] = []

    async def cancel(queue: Any, job_id: str) -> None:
        outcome = str(await queue.cancel(job_id, reason))
        if outcome == "too_late":
            raise WrongState(queue.name, job_id, "has ended", -1)
        if outcome == "unstoppable":
            on_their_own.append(job_id)

    done = await _each(visit, order, "cancelled or asked to stop", cancel)
    if on_their_own:
        told = ", ".join(on_their_own[:_TOLD])
        which = "do not support cancelling (such as Node) and will not be retried"
        done = replace(done, said=f"{done.said} These run on workers that {which}: {told}.")
    return replace(done, about=reason)


RETRY = BoardAction("retry", "Retry", "jobs", _ask_retry, _retry)
PROMOTE = BoardAction("promote", "Run now", "jobs", _ask_promote, _promote)
DELAY_AGAIN = BoardAction(
    *("delay-again", "Delay again", "job", _ask_delay_again, _delay_again),
    carries=("due", "until"),
)
REMOVE = BoardAction("remove", "Remove", "jobs", _ask_remove, _remove, danger=True)
CANCEL = BoardAction("cancel", "Cancel", "jobs", _ask_cancel, _cancel, danger=True)

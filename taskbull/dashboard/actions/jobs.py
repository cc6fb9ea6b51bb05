"""What can be done with single jobs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.states import MAX_PRIORITY, JobState
from taskbull.dashboard.actions.fields import choice, field
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.html import Node, code, label, p, span, textarea
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import plural
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.queue.job_view import JobView
from taskbull.queue.operations import Finished
from taskbull.queue.queue import Queue

_TOLD = 5
"""How many of the jobs that were left alone are named."""


async def _each(
    visit: Visit, order: BoardOrder, done: str, do: Callable[[Queue, str], Awaitable[bool | None]]
) -> Acted:
    """Do something with each job; one that has moved on is left alone, and named."""
    queue = visit.server.queue(order.queue)
    problems: list[str] = []
    for job_id in order.ids:
        try:
            if await do(queue, job_id) is False:
                problems.append(f"{job_id} runs, or one of its children does")
        except (WrongState, JobNotFound):
            state = await queue.get_state(job_id)
            is_gone = state is JobState.UNKNOWN
            problems.append(f"{job_id} {'is not there any more' if is_gone else f'is {state}'}")
    count = len(order.ids) - len(problems)
    return Acted(_sentence(count, done, problems), count)


def _sentence(count: int, done: str, problems: list[str]) -> str:
    if not problems:
        return f"{plural(count, 'job')} {done}."
    told = "; ".join(problems[:_TOLD])
    more = f"; and {len(problems) - _TOLD:,} more" if len(problems) > _TOLD else ""
    return f"{plural(count, 'job')} {done}; left alone: {told}{more}."


def _named(order: BoardOrder) -> Node:
    if len(order.ids) == 1:
        return ["job ", code(order.id)]
    return plural(len(order.ids), "job")


async def _ask_retry(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Run ", _named(order), " of ", code(order.queue), " again?"),
        choice(
            "attempts",
            "How often it is tried",
            {"more": "once more", "anew": "with all its attempts anew"},
            "more",
        ),
    ]


async def _retry(visit: Visit, order: BoardOrder) -> Acted:
    state: Finished = "completed" if order.state is JobState.COMPLETED else "failed"
    anew = order.form.get("attempts") == "anew"

    async def retry(queue: Queue, job_id: str) -> None:
        await queue.retry(job_id, state, reset_attempts=anew)

    return await _each(visit, order, "will run again", retry)


async def _ask_promote(_: Visit, order: BoardOrder) -> Node:
    return p("Run ", _named(order), " of ", code(order.queue), " now, and not when it is due?")


async def _promote(visit: Visit, order: BoardOrder) -> Acted:
    return await _each(visit, order, "may run now", lambda queue, job: queue.promote(job))


async def _ask_remove(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Remove ", _named(order), " from ", code(order.queue), ", with its children?"),
        p("Nothing brings it back. Jobs that run are left alone.", class_="hint"),
    ]


async def _remove(visit: Visit, order: BoardOrder) -> Acted:
    async def remove(queue: Queue, job_id: str) -> bool:
        state = await queue.get_state(job_id)
        if order.state is not None and _moved(order.state, state):
            raise WrongState(queue.name, job_id, f"is {state}", -1)
        return await queue.remove(job_id)

    return await _each(visit, order, "removed", remove)


def _moved(shown: JobState, now: JobState) -> bool:
    """Return whether a job is in another state than the page showed; a pause changes none."""
    waiting = {JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED}
    return shown != now and not {shown, now} <= waiting


async def _ask_cancel(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Cancel ", _named(order), " of ", code(order.queue), "?"),
        p("It fails as cancelled, now or when its worker has heard of it.", class_="hint"),
        field("reason", "Reason", maxlength="200"),
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

    done = await _each(visit, order, "cancelled, or told to stop", cancel)
    if on_their_own:
        told = ", ".join(on_their_own[:_TOLD])
        worker = "run on workers that cannot be told, and do not begin again"
        done = replace(done, said=f"{done.said} These {worker}: {told}.")
    return replace(done, about=reason)


async def _ask_priority(visit: Visit, order: BoardOrder) -> Node:
    view = await _view(visit, order)
    return [
        p("Change the priority of job ", code(order.id), f", which is {view.job.priority}?"),
        field(
            "priority",
            "New priority",
            "number",
            f"1 runs first, {MAX_PRIORITY:,} last; 0: before all of them",
            min="0",
            max=str(MAX_PRIORITY),
            value=str(view.job.priority),
            required="required",
        ),
    ]


async def _priority(visit: Visit, order: BoardOrder) -> Acted:
    new = order.form.number("priority")
    old = (await _view(visit, order)).job.priority
    await visit.server.queue(order.queue).change_priority(order.id, new)
    return Acted(f"The priority of job {order.id} was {old}, and is {new}.")


async def _ask_delay(_: Visit, order: BoardOrder) -> Node:
    return [
        p("When is job ", code(order.id), " to run?"),
        field("delay", "Seconds from now", "number", min="0", value="3600", required="required"),
    ]


async def _delay(visit: Visit, order: BoardOrder) -> Acted:
    delay = order.form.number("delay")
    await visit.server.queue(order.queue).change_delay(order.id, delay)
    return Acted(f"Job {order.id} will run in {delay:,} s.")


async def _ask_readd(visit: Visit, order: BoardOrder) -> Node:
    view = await _view(visit, order)
    shown = visit.settings.redactor.show(view.job.raw_data.decode("utf-8", "replace"))
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
    _check_arguments(visit, view.job.name, data)
    queue = visit.server.queue(order.queue)
    handle = await queue.add(
        view.job.name, data, attempts=max(view.attempts, 1), priority=view.job.priority
    )
    said = f"Job {handle.id} is added."
    if order.form.get("original") == "remove":
        removed = await queue.remove(order.id)
        said += f" Job {order.id} {'is removed' if removed else 'runs, and stays'}."
    return Acted(said)


def _json(text: str) -> Any:
    try:
        return payload.decode(text.encode("utf-8", "surrogateescape"))
    except (ValueError, msgspec.DecodeError) as error:
        raise Refused(400, f"The data is not JSON: {error}. Nothing was added.") from None


def _check_arguments(visit: Visit, name: str, data: Any) -> None:
    """Refuse data that does not fit the task, where this app knows it."""
    task = None if visit.app is None else visit.app.tasks.get(name)
    if task is None or not isinstance(data, dict):
        return
    parameters = inspect.signature(task.function).parameters.values()
    if any(each.kind is each.POSITIONAL_ONLY for each in parameters):
        return  # they have no names by which the data could be given; a worker knows how
    try:
        task.job(**data)
    except (TaskbullError, TypeError) as error:
        raise Refused(400, f"{error}. Nothing was added.") from None


async def _view(visit: Visit, order: BoardOrder) -> JobView:
    return (await visit.server.inspect(order.queue, order.id, log_lines=1)).view


RETRY = BoardAction("retry", "Retry", "jobs", _ask_retry, _retry)
PROMOTE = BoardAction("promote", "Run now", "jobs", _ask_promote, _promote)
REMOVE = BoardAction("remove", "Remove", "jobs", _ask_remove, _remove, danger=True)
CANCEL = BoardAction("cancel", "Cancel", "jobs", _ask_cancel, _cancel, danger=True)
PRIORITY = BoardAction("priority", "Change priority", "job", _ask_priority, _priority)
DELAY = BoardAction("delay", "Change delay", "job", _ask_delay, _delay)
READD = BoardAction("readd", "Add the job", "job", _ask_readd, _readd)

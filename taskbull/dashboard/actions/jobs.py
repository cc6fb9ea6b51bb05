"""What can be done with single jobs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskbull.core.durations import instant_to_ms
from taskbull.core.states import JobState
from taskbull.dashboard.actions.fields import attempts_choice, field, wants_anew
from taskbull.dashboard.actions.settings import restored_due
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder, Offer
from taskbull.dashboard.html import Node, button, code, p, small
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import clock, plural
from taskbull.errors import JobNotFound, WrongState
from taskbull.queue.bulk_operations import Finished
from taskbull.queue.queue import Queue

_REGRETTED = 60
"""Seconds for which a job that was promoted can be delayed again."""

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
        attempts_choice(),
    ]


async def _retry(visit: Visit, order: BoardOrder) -> Acted:
    state: Finished = "completed" if order.state is JobState.COMPLETED else "failed"
    anew = wants_anew(order.form)

    async def retry(queue: Queue, job_id: str) -> None:
        await queue.retry(job_id, state, reset_attempts=anew)

    return await _each(visit, order, "will run again", retry)


async def _ask_promote(_: Visit, order: BoardOrder) -> Node:
    return p("Run ", _named(order), " of ", code(order.queue), " now, and not when it is due?")


async def _promote(visit: Visit, order: BoardOrder) -> Acted:
    due = await _due(visit, order)
    done = await _each(visit, order, "may run now", lambda queue, job: queue.promote(job))
    if due is None or not done.count:
        return done
    until = time.time() + _REGRETTED
    was = {"due": str(instant_to_ms(due)), "until": f"{until:.0f}"}
    fields = {"q": order.queue, "id": order.id, **was}
    return replace(done, offer=Offer("delay-again", "Delay again", fields, until))


async def _due(visit: Visit, order: BoardOrder) -> datetime | None:
    """Return when the job is due, if it is only one, and delayed."""
    if len(order.ids) > 1:
        return None
    try:
        return (await visit.server.place(order.queue, order.id)).row.due
    except JobNotFound:
        return None


async def _ask_delay_again(_: Visit, order: BoardOrder) -> Node:
    due = clock(restored_due(order.form))
    return p("Let job ", code(order.id), " of ", code(order.queue), " wait until ", due, "?")


async def _delay_again(visit: Visit, order: BoardOrder) -> Acted:
    due = restored_due(order.form)
    if due is None or order.form.number("until") < time.time():
        raise Refused(409, f"That can be undone for {_REGRETTED} s only. Nothing was done.")

    async def postpone(queue: Queue, job_id: str) -> None:
        await queue.postpone(job_id, due)

    return await _each(visit, order, "delayed again", postpone)


async def _ask_remove(visit: Visit, order: BoardOrder) -> Node:
    may_download = visit.may("download") or visit.may("download-unmasked")
    unless = ", unless you download it first" if may_download else ""
    return [
        p("Remove ", _named(order), " from ", code(order.queue), ", with its children?"),
        p(f"Nothing brings it back{unless}. Jobs that run are left alone.", class_="hint"),
        _download_first() if may_download else None,
    ]


def _download_first() -> Node:
    """Return a button that sends this very form elsewhere: the same jobs, as a file."""
    return p(
        button("Download first", type="submit", formaction="download", formnovalidate=True),
        small(" for ", code("taskbull restore"), ", which adds them again, without children"),
    )


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


RETRY = BoardAction("retry", "Retry", "jobs", _ask_retry, _retry)
PROMOTE = BoardAction("promote", "Run now", "jobs", _ask_promote, _promote)
DELAY_AGAIN = BoardAction(
    *("delay-again", "Delay again", "job", _ask_delay_again, _delay_again),
    carries=("due", "until"),
)
REMOVE = BoardAction("remove", "Remove", "jobs", _ask_remove, _remove, danger=True)
CANCEL = BoardAction("cancel", "Cancel", "jobs", _ask_cancel, _cancel, danger=True)

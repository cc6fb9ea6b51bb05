"""What can be done with a whole queue."""

from __future__ import annotations

from taskbull.core.states import STATES, JobState
from taskbull.dashboard.actions.fields import choice, field, tick
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.html import Node, code, p
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import number, plural

_MIXED = (
    "BullMQ 5 uses this queue. It parks waiting jobs in another list while a queue is paused: "
    "resume it here, or by BullMQ 6 or taskbull, which know both lists."
)
_CLEANED = 10_000
"""Jobs that one form cleans at most: somebody waits for the answer."""

_WAITING = (JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED)


async def _ask_pause(visit: Visit, order: BoardOrder) -> Node:
    facts = await visit.server.facts(order.queue)
    return [
        p("Pause ", code(order.queue), "? Workers take none of its jobs until it is resumed."),
        p("Jobs that run go on.", class_="hint"),
        p(_MIXED, class_="notice") if (facts.version or "").startswith("bullmq:5.") else None,
        field("reason", "Why", hint="shown to whoever wonders", maxlength="200"),
    ]


async def _pause(visit: Visit, order: BoardOrder) -> Acted:
    reason = order.form.get("reason")[:200]
    await visit.server.queue(order.queue).pause(by=visit.access.user, why=reason)
    return Acted(f"{order.queue} is paused.", about=reason)


async def _ask_resume(_: Visit, order: BoardOrder) -> Node:
    return p("Resume ", code(order.queue), "? Workers take its jobs again.")


async def _resume(visit: Visit, order: BoardOrder) -> Acted:
    await visit.server.queue(order.queue).resume()
    return Acted(f"{order.queue} is not paused any more.")


async def _ask_drain(visit: Visit, order: BoardOrder) -> Node:
    counts = await visit.server.queue(order.queue).counts()
    waiting = sum(counts[state] for state in _WAITING)
    return [
        p("Remove ", plural(waiting, "waiting job"), " from ", code(order.queue), "?"),
        tick("delayed", f"also the {plural(counts[JobState.DELAYED], 'delayed job')}"),
    ]


async def _drain(visit: Visit, order: BoardOrder) -> Acted:
    delayed = order.form.get("delayed") == "yes"
    removed = await visit.server.queue(order.queue).drain(delayed=delayed)
    return Acted(f"{plural(removed, 'job')} removed from {order.queue}.", removed)


async def _ask_clean(visit: Visit, order: BoardOrder) -> Node:
    counts = await visit.server.queue(order.queue).counts()
    states = {
        str(state): f"{state} ({number(counts[state])})"
        for state in reversed(STATES)
        if state is not JobState.WAITING_CHILDREN
    }
    return [
        p("Remove old jobs from ", code(order.queue), "?"),
        choice("clean", "Which", states, order.form.get("state") or "completed"),
        field("hours", "Older than, in hours", "number", min="0", value="24", required="required"),
    ]


async def _clean(visit: Visit, order: BoardOrder) -> Acted:
    state = order.form.need("clean")
    if state not in set(STATES):
        raise Refused(400, "There is no such state.")
    age = order.form.number("hours") * 3600
    removed = await visit.server.queue(order.queue).clean(age, _CLEANED, state)
    more = " There may be more: clean again." if len(removed) == _CLEANED else ""
    said = f"{plural(len(removed), f'{state} job')} removed from {order.queue}.{more}"
    return Acted(said, len(removed))


async def _ask_obliterate(visit: Visit, order: BoardOrder) -> Node:
    counts = await visit.server.queue(order.queue).counts()
    jobs = plural(sum(counts.values()), "job")
    return [
        p("Remove ", code(order.queue), f" with its {jobs}, its schedules and its events?"),
        tick("force", "even while jobs run"),
    ]


async def _obliterate(visit: Visit, order: BoardOrder) -> Acted:
    queue = visit.server.queue(order.queue)
    jobs = sum((await queue.counts()).values())
    await queue.obliterate(force=order.form.get("force") == "yes")
    return Acted(f"{order.queue} is removed, with {plural(jobs, 'job')}.", jobs, back="./")


PAUSE = BoardAction("pause", "Pause", "queue", _ask_pause, _pause)
RESUME = BoardAction("resume", "Resume", "queue", _ask_resume, _resume)
DRAIN = BoardAction("drain", "Drain", "queue", _ask_drain, _drain, typed=True, danger=True)
CLEAN = BoardAction("clean", "Clean", "queue", _ask_clean, _clean, typed=True, danger=True)
OBLITERATE = BoardAction(
    *("obliterate", "Obliterate", "queue", _ask_obliterate, _obliterate),
    typed=True,
    danger=True,
    by_default=False,
)


async def _ask_stop(_: Visit, __: BoardOrder) -> Node:
    return p("Stop it? What it has done so far stays done.")


async def _stop(visit: Visit, order: BoardOrder) -> Acted:
    await visit.server.stop_operation(order.id)
    return Acted("It stops after the piece that it is at.")


STOP = BoardAction("stop", "Stop", "job", _ask_stop, _stop)

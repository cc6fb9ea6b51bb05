"""What can be done with a schedule."""

from __future__ import annotations

from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.html import Node, code, p
from taskbull.dashboard.visit import Visit


async def _ask_run(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Add one more job of schedule ", code(order.id), " at once?"),
        await _rule(visit, order),
        p("Its next run stays as it is.", class_="hint"),
    ]


async def _run(visit: Visit, order: BoardOrder) -> Acted:
    handle = await visit.server.queue(order.queue).run_schedule_now(order.id)
    return Acted(f"Job {handle.id} of schedule {order.id} is added.")


async def _ask_remove(visit: Visit, order: BoardOrder) -> Node:
    found = await visit.server.queue(order.queue).get_schedule(order.id)
    declared = found is not None and found.declared_by
    return [
        p("Remove schedule ", code(order.id), " of ", code(order.queue), "?"),
        await _rule(visit, order),
        p(f"App {declared} declares it: it comes back when a worker of that app starts.")
        if declared
        else None,
    ]


async def _remove(visit: Visit, order: BoardOrder) -> Acted:
    removed = await visit.server.queue(order.queue).remove_schedule(order.id)
    what = "is removed" if removed else "was not there any more"
    return Acted(f"Schedule {order.id} {what}.", int(removed))


async def _rule(visit: Visit, order: BoardOrder) -> Node:
    found = await visit.server.queue(order.queue).get_schedule(order.id)
    return None if found is None else p(f"It runs {found.describe()}.", class_="hint")


RUN_SCHEDULE = BoardAction("run-schedule", "Run now", "schedule", _ask_run, _run)
REMOVE_SCHEDULE = BoardAction(
    "remove-schedule", "Remove", "schedule", _ask_remove, _remove, danger=True
)

"""What can be done with all failed jobs that have an error in common."""

from __future__ import annotations

from taskbull.core.states import JobState
from taskbull.dashboard.actions.fields import choice, field
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.bulk import Change, GroupChange, MeantJobs
from taskbull.dashboard.html import Node, code, p, strong
from taskbull.dashboard.messages import Refused
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import duration, number
from taskbull.queue.failures import FailureGroup
from taskbull.queue.queue import Queue

_SIZES = {"1": "1, to see whether it works", "10": "10", "100": "100", "all": "all of them"}
_LOOKED_AT_PER_SECOND = 500
"""Two calls for 50 jobs, 20 calls in a second."""


async def _ask_retry(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Run the failed jobs of ", code(order.queue), " with this error again?"),
        *await _about(visit, order),
        choice("most", "How many, the newest first", _SIZES, "1"),
        field("rate", "At most per second", "number", "empty: as fast as it goes", min="1"),
        p("Jobs that fail from now on are left alone. It can be stopped.", class_="hint"),
    ]


async def _ask_remove(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Remove the failed jobs of ", code(order.queue), " with this error?"),
        *await _about(visit, order),
        choice("most", "How many, the newest first", _SIZES, "all"),
        p("Nothing brings them back. It can be stopped halfway.", class_="hint"),
    ]


async def _about(visit: Visit, order: BoardOrder) -> list[Node]:
    group, total = await _group_of(visit, order)
    seconds = total / _LOOKED_AT_PER_SECOND
    count = group.about or group.count
    about = f"about {number(count)}" if group.margin else number(count)
    return [
        p(strong(about), f" of {number(total)} failed jobs: ", code(group.error)),
        p(f"All failed jobs are looked at for that: about {duration(seconds)}.", class_="hint")
        if seconds > 1
        else None,
    ]


async def _group_of(visit: Visit, order: BoardOrder) -> tuple[FailureGroup, int]:
    """Return the group that a form means, as it is now."""
    wanted = order.form.need("group")
    failures = await visit.server.failures(order.queue)
    found = next((each for each in failures.groups if each.fingerprint == wanted), None)
    if found is None:
        raise Refused(409, "No failed job has this error any more.")
    return found, failures.total


async def _begin(visit: Visit, order: BoardOrder, action: str, change: Change) -> Acted:
    group, _ = await _group_of(visit, order)
    most = order.form.get("most")
    if most not in _SIZES:
        raise Refused(400, "How many are meant? Choose 1, 10, 100 or all.")
    counts = await visit.server.queue(order.queue).counts()
    meant = MeantJobs(
        order.queue,
        group.fingerprint,
        f"{group.error} in {group.task}",
        counts[JobState.FAILED],
        None if most == "all" else int(most),
        order.form.number("rate") or None,
    )
    bulk = GroupChange(visit, action, meant, change)
    await bulk.begin()
    return Acted("It has begun.", 0, meant.error, "operations", bulk.run)


async def _retry(visit: Visit, order: BoardOrder) -> Acted:
    async def retry(queue: Queue, job_id: str) -> None:
        await queue.retry(job_id)

    return await _begin(visit, order, "retry-group", retry)


async def _remove(visit: Visit, order: BoardOrder) -> Acted:
    async def remove(queue: Queue, job_id: str) -> None:
        await queue.remove(job_id)

    return await _begin(visit, order, "remove-group", remove)


RETRY_GROUP = BoardAction("retry-group", "Retry", "group", _ask_retry, _retry)
REMOVE_GROUP = BoardAction(
    "remove-group", "Remove", "group", _ask_remove, _remove, typed=True, danger=True
)

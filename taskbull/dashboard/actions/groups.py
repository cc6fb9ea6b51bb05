"""What can be done with all failed jobs that have an error in common, or with all of them."""

from __future__ import annotations

from datetime import UTC, datetime

from taskbull.core.search import read_time
from taskbull.core.states import JobState
from taskbull.dashboard.actions.fields import attempts_choice, choice, field, wants_anew
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.bulk import Change, GroupChange, MeantJobs
from taskbull.dashboard.html import Node, code, p, strong
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import duration, number
from taskbull.errors import ConfigurationError
from taskbull.queue.failures import FailureGroup
from taskbull.queue.groups import GroupStep
from taskbull.queue.queue import Queue

_SIZES = {"1": "1, to see whether it works", "10": "10", "100": "100", "all": "all of them"}
_LOOKED_AT_PER_SECOND = 500
"""Two calls for 50 jobs, 20 calls in a second."""


async def _ask_retry(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Run the failed jobs of ", code(order.queue), " with this error again?"),
        *await _about(visit, order),
        *_retry_fields(),
    ]


async def _ask_retry_all(visit: Visit, order: BoardOrder) -> Node:
    total = await _count(visit, order)
    return [
        p("Run the failed jobs of ", code(order.queue), " again, whatever their error?"),
        p(strong(number(total)), " of them."),
        *_retry_fields(),
    ]


def _retry_fields() -> list[Node]:
    return [
        choice("most", "How many, the newest first", _SIZES, "1"),
        _since_field(),
        field("rate", "At most per second", "number", "empty: as fast as it goes", min="1"),
        attempts_choice(),
        p("Jobs that fail from now on are left alone. It can be stopped.", class_="hint"),
    ]


async def _ask_remove(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Remove the failed jobs of ", code(order.queue), " with this error?"),
        *await _about(visit, order),
        choice("most", "How many, the newest first", _SIZES, "all"),
        _since_field(),
        p("Nothing brings them back. It can be stopped halfway.", class_="hint"),
    ]


def _since_field() -> Node:
    words = "03:10, -15min, 2030-01-31T09:00, in the time zone of the server; empty: all"
    return field("since", "Only those that failed after", hint=words, maxlength="40")


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
    if found.is_rest:
        raise Refused(409, "These are different errors: act on their jobs, or on all of them.")
    return found, failures.total


async def _count(visit: Visit, order: BoardOrder) -> int:
    return (await visit.server.queue(order.queue).counts())[JobState.FAILED]


async def _retry(visit: Visit, order: BoardOrder) -> Acted:
    group, _ = await _group_of(visit, order)
    change = _retrying(group.fingerprint, order.form)
    return await _begin(visit, order, f"{group.error} in {group.task}", change)


async def _retry_all(visit: Visit, order: BoardOrder) -> Acted:
    return await _begin(visit, order, "all failed jobs", _retrying(None, order.form))


async def _remove(visit: Visit, order: BoardOrder) -> Acted:
    group, _ = await _group_of(visit, order)
    since = _since(order.form)

    async def remove(queue: Queue, step: GroupStep | None, limit: int | None) -> GroupStep:
        return await queue.remove_group(group.fingerprint, step=step, since=since, limit=limit)

    return await _begin(visit, order, f"{group.error} in {group.task}", remove)


def _retrying(fingerprint: str | None, form: Form) -> Change:
    since, anew = _since(form), wants_anew(form)

    async def retry(queue: Queue, step: GroupStep | None, limit: int | None) -> GroupStep:
        return await queue.retry_group(
            fingerprint, step=step, since=since, limit=limit, reset_attempts=anew
        )

    return retry


def _since(form: Form) -> datetime | None:
    typed = form.get("since").strip()
    if not typed:
        return None
    try:
        return read_time("The time", typed, datetime.now(UTC).astimezone())
    except ConfigurationError as error:
        raise Refused(400, f"{error}. Nothing was done.") from None


async def _begin(visit: Visit, order: BoardOrder, what: str, change: Change) -> Acted:
    most = order.form.get("most")
    if most not in _SIZES:
        raise Refused(400, "How many are meant? Choose 1, 10, 100 or all.")
    meant = MeantJobs(
        order.queue,
        order.form.get("group"),
        what,
        await _count(visit, order),
        None if most == "all" else int(most),
        order.form.number("rate") or None,
    )
    bulk = GroupChange(visit, order.form.get("action"), meant, change)
    await bulk.begin()
    return Acted("It has begun.", 0, what, "operations", bulk.run)


RETRY_GROUP = BoardAction("retry-group", "Retry", "group", _ask_retry, _retry)
RETRY_ALL = BoardAction("retry-all", "Retry all", "queue", _ask_retry_all, _retry_all)
REMOVE_GROUP = BoardAction(
    "remove-group", "Remove", "group", _ask_remove, _remove, typed=True, danger=True
)

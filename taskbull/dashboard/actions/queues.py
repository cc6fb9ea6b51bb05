"""Actions on groups of failed jobs, queues and schedules, and the table of all actions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from taskbull.core.search import read_time
from taskbull.core.states import STATES, JobState
from taskbull.dashboard.actions.jobs import (
    CANCEL,
    DELAY,
    DELAY_AGAIN,
    DOWNLOAD,
    DOWNLOAD_UNMASKED,
    LIMITS,
    PRIORITY,
    PROMOTE,
    READD,
    REMOVE,
    RETRY,
    attempts_choice,
    choice,
    field,
    tick,
    wants_anew,
)
from taskbull.dashboard.components import duration, number, plural
from taskbull.dashboard.forms import Acted, BoardAction, BoardOrder, BulkTarget, Change, GroupChange
from taskbull.dashboard.html import Node, code, p, strong
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.visit import Visit
from taskbull.errors import ConfigurationError
from taskbull.queue.failures import FailureGroup, GroupStep
from taskbull.queue.queue import Queue

# Actions on failed jobs: those with the same error, or all.


_SIZES = {"1": "1 (test first)", "10": "10", "100": "100", "all": "all"}
_LOOKED_AT_PER_SECOND = 500
"""Scan speed, for estimates: 20 calls per second, two calls per 50 jobs."""


async def _ask_retry(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Retry failed jobs with this error in ", code(order.queue), "?"),
        *await _about(visit, order),
        *_retry_fields(),
    ]


async def _ask_retry_all(visit: Visit, order: BoardOrder) -> Node:
    total = await _count(visit, order)
    return [
        p("Retry failed jobs in ", code(order.queue), ", whatever their error?"),
        p(strong(plural(total, "failed job")), "."),
        *_retry_fields(),
    ]


def _retry_fields() -> list[Node]:
    return [
        choice("most", "How many (newest first)", _SIZES, "1"),
        _since_field(),
        field("rate", "Maximum per second", "number", "leave empty for no limit", min="1"),
        attempts_choice(),
        p(
            "Jobs that fail after you start are not included. "
            "You can stop it on the Operations page.",
            class_="hint",
        ),
    ]


async def _ask_remove_group(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Remove failed jobs with this error from ", code(order.queue), "?"),
        *await _about(visit, order),
        choice("most", "How many (newest first)", _SIZES, "all"),
        _since_field(),
        p("This cannot be undone. You can stop it on the Operations page.", class_="hint"),
    ]


def _since_field() -> Node:
    words = "03:10, -15min or 2030-01-31T09:00, in the server's time zone; leave empty for all"
    return field("since", "Only jobs that failed after", hint=words, maxlength="40")


async def _about(visit: Visit, order: BoardOrder) -> list[Node]:
    group, total = await _group_of(visit, order)
    seconds = total / _LOOKED_AT_PER_SECOND
    count = group.about or group.count
    about = f"about {number(count)}" if group.margin else number(count)
    return [
        p(strong(about), f" of {number(total)} failed jobs: ", code(group.error)),
        p(f"This checks all failed jobs and takes about {duration(seconds)}.", class_="hint")
        if seconds > 1
        else None,
    ]


async def _group_of(visit: Visit, order: BoardOrder) -> tuple[FailureGroup, int]:
    """Return the form's error group with current counts, and the number of failed jobs."""
    wanted = order.form.need("group")
    failures = await visit.server.failures(order.queue)
    found = next((each for each in failures.groups if each.fingerprint == wanted), None)
    if found is None:
        raise Refused(409, "No failed jobs with this error are left.")
    if found.is_rest:
        raise Refused(
            409, 'These are different errors. Select jobs in the list, or use "Retry all".'
        )
    return found, failures.total


async def _count(visit: Visit, order: BoardOrder) -> int:
    return (await visit.server.queue(order.queue).counts())[JobState.FAILED]


async def _retry(visit: Visit, order: BoardOrder) -> Acted:
    group, _ = await _group_of(visit, order)
    change = _retrying(group.fingerprint, order.form)
    return await _begin(visit, order, f"{group.error} in {group.task}", change)


async def _retry_all(visit: Visit, order: BoardOrder) -> Acted:
    return await _begin(visit, order, "all failed jobs", _retrying(None, order.form))


async def _remove_group(visit: Visit, order: BoardOrder) -> Acted:
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
        raise Refused(400, f"{error}. Nothing changed.") from None


async def _begin(visit: Visit, order: BoardOrder, what: str, change: Change) -> Acted:
    most = order.form.get("most")
    if most not in _SIZES:
        raise Refused(400, "Choose how many: 1, 10, 100 or all.")
    meant = BulkTarget(
        order.queue,
        order.form.get("group"),
        what,
        await _count(visit, order),
        None if most == "all" else int(most),
        order.form.number("rate") or None,
    )
    bulk = GroupChange(visit, order.form.get("action"), meant, change)
    await bulk.begin()
    return Acted("Started.", 0, what, "operations", bulk.run)


RETRY_GROUP = BoardAction("retry-group", "Retry", "group", _ask_retry, _retry)
RETRY_ALL = BoardAction("retry-all", "Retry all", "queue", _ask_retry_all, _retry_all)
REMOVE_GROUP = BoardAction(
    "remove-group", "Remove", "group", _ask_remove_group, _remove_group, typed=True, danger=True
)


# Actions on queues, and the action that stops an operation.


_MIXED = (
    "BullMQ 5 uses this queue. It moves waiting jobs to another list while a queue is paused. "
    "Resume the queue here, or with taskbull or BullMQ 6, which handle both lists."
)
_CLEANED = 10_000
"""Maximum number of jobs per clean, because the user waits for the response."""

_WAITING = (JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED)


async def _ask_pause(visit: Visit, order: BoardOrder) -> Node:
    facts = await visit.server.facts(order.queue)
    return [
        p("Pause ", code(order.queue), "? Workers stop fetching until you resume it."),
        p("Running jobs continue.", class_="hint"),
        p(_MIXED, class_="notice") if (facts.version or "").startswith("bullmq:5.") else None,
        field("reason", "Reason (optional)", maxlength="200"),
    ]


async def _pause(visit: Visit, order: BoardOrder) -> Acted:
    reason = order.form.get("reason")[:200]
    await visit.server.queue(order.queue).pause(by=visit.access.user, reason=reason)
    return Acted(f"{order.queue} paused.", about=reason)


async def _ask_resume(_: Visit, order: BoardOrder) -> Node:
    return p("Resume ", code(order.queue), "? Workers fetch its jobs again.")


async def _resume(visit: Visit, order: BoardOrder) -> Acted:
    await visit.server.queue(order.queue).resume()
    return Acted(f"{order.queue} resumed.")


async def _ask_drain(visit: Visit, order: BoardOrder) -> Node:
    counts = await visit.server.queue(order.queue).counts()
    waiting = sum(counts[state] for state in _WAITING)
    return [
        p("Remove ", plural(waiting, "waiting job"), " from ", code(order.queue), "?"),
        tick("delayed", f"also remove {plural(counts[JobState.DELAYED], 'delayed job')}"),
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
        choice("clean", "State", states, order.form.get("state") or "completed"),
        field("hours", "Older than (hours)", "number", min="0", value="24", required="required"),
    ]


async def _clean(visit: Visit, order: BoardOrder) -> Acted:
    state = order.form.need("clean")
    if state not in set(STATES):
        raise Refused(400, "Unknown state.")
    age = order.form.number("hours") * 3600
    removed = await visit.server.queue(order.queue).clean(age, _CLEANED, state)
    more = " There may be more; run it again." if len(removed) == _CLEANED else ""
    said = f"{plural(len(removed), f'{state} job')} removed from {order.queue}.{more}"
    return Acted(said, len(removed))


async def _ask_obliterate(visit: Visit, order: BoardOrder) -> Node:
    counts = await visit.server.queue(order.queue).counts()
    jobs = plural(sum(counts.values()), "job")
    return [
        p("Remove ", code(order.queue), f" with its {jobs}, schedules and events?"),
        tick("force", "even if jobs are running"),
    ]


async def _obliterate(visit: Visit, order: BoardOrder) -> Acted:
    queue = visit.server.queue(order.queue)
    jobs = sum((await queue.counts()).values())
    await queue.obliterate(force=order.form.get("force") == "yes")
    return Acted(f"{order.queue} removed, with {plural(jobs, 'job')}.", jobs, back="./")


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
    return p("Stop this operation? Completed changes are kept.")


async def _stop(visit: Visit, order: BoardOrder) -> Acted:
    await visit.server.stop_operation(order.id)
    return Acted("Stopping after the current batch.")


STOP = BoardAction("stop", "Stop", "job", _ask_stop, _stop)


# Actions on schedules.


async def _ask_run(visit: Visit, order: BoardOrder) -> Node:
    return [
        p("Run schedule ", code(order.id), " now?"),
        await _rule(visit, order),
        p("Its next run is unchanged.", class_="hint"),
    ]


async def _run(visit: Visit, order: BoardOrder) -> Acted:
    handle = await visit.server.queue(order.queue).run_schedule_now(order.id)
    return Acted(f"Added job {handle.id} of schedule {order.id}.")


async def _ask_remove_schedule(visit: Visit, order: BoardOrder) -> Node:
    found = await visit.server.queue(order.queue).get_schedule(order.id)
    declared = found is not None and found.declared_by
    return [
        p("Remove schedule ", code(order.id), " from ", code(order.queue), "?"),
        await _rule(visit, order),
        p(f"App {declared} declares this schedule; it will be re-created when a worker starts.")
        if declared
        else None,
    ]


async def _remove_schedule(visit: Visit, order: BoardOrder) -> Acted:
    removed = await visit.server.queue(order.queue).remove_schedule(order.id)
    what = "removed" if removed else "no longer exists"
    return Acted(f"Schedule {order.id} {what}.", int(removed))


async def _rule(visit: Visit, order: BoardOrder) -> Node:
    found = await visit.server.queue(order.queue).get_schedule(order.id)
    return None if found is None else p(f"It runs {found.describe()}.", class_="hint")


RUN_SCHEDULE = BoardAction("run-schedule", "Run now", "schedule", _ask_run, _run)
REMOVE_SCHEDULE = BoardAction(
    "remove-schedule", "Remove", "schedule", _ask_remove_schedule, _remove_schedule, danger=True
)


# All actions. A form can change nothing except through one of them.


_JOBS = (RETRY, PROMOTE, DELAY_AGAIN, REMOVE, PRIORITY, DELAY, READD)
_QUEUES = (PAUSE, RESUME, DRAIN, CLEAN, LIMITS, OBLITERATE, STOP)
_DOWNLOADS = (DOWNLOAD, DOWNLOAD_UNMASKED)
_GROUPS = (RETRY_GROUP, RETRY_ALL, REMOVE_GROUP)
_SCHEDULES = (RUN_SCHEDULE, REMOVE_SCHEDULE)
_CANCELS = (CANCEL,) if hasattr(Queue, "cancel") else ()

ACTIONS: Final[dict[str, BoardAction]] = {
    action.name: action
    for action in (*_JOBS, *_CANCELS, *_DOWNLOADS, *_GROUPS, *_QUEUES, *_SCHEDULES)
}

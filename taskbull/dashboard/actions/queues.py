"""Actions on groups of failed jobs, queues and schedules, and the table of all actions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from taskbull.core.groups import GroupInfo, Limiter
from taskbull.core.keys import STATES, JobState
from taskbull.core.search import read_time
from taskbull.dashboard.access import RequestContext
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
    SIGNAL,
    attempts_choice,
    choice,
    field,
    tick,
    wants_reset,
)
from taskbull.dashboard.forms import (
    ActionRequest,
    ActionResult,
    BulkTarget,
    Change,
    DashboardAction,
    GroupChange,
)
from taskbull.dashboard.html import Node, code, p, strong
from taskbull.dashboard.layout import duration, number, plural
from taskbull.dashboard.messages import Form, Refused
from taskbull.dashboard.pages.groups import SHOWN
from taskbull.errors import ConfigurationError
from taskbull.queue.failures import FailureGroup, GroupStep
from taskbull.queue.queue import Queue

# Actions on failed jobs: those with the same error, or all.


_SIZES = {"1": "1 (test first)", "10": "10", "100": "100", "all": "all"}
_LOOKED_AT_PER_SECOND = 500
"""Scan speed, for estimates: 20 calls per second, two calls per 50 jobs."""


async def _ask_retry(ctx: RequestContext, request: ActionRequest) -> Node:
    return [
        p("Retry failed jobs with this error in ", code(request.queue), "?"),
        *await _about(ctx, request),
        *_retry_fields(),
    ]


async def _ask_retry_all(ctx: RequestContext, request: ActionRequest) -> Node:
    total = await _count(ctx, request)
    return [
        p("Retry failed jobs in ", code(request.queue), ", whatever their error?"),
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


async def _ask_remove_group(ctx: RequestContext, request: ActionRequest) -> Node:
    return [
        p("Remove failed jobs with this error from ", code(request.queue), "?"),
        *await _about(ctx, request),
        choice("most", "How many (newest first)", _SIZES, "all"),
        _since_field(),
        p("This cannot be undone. You can stop it on the Operations page.", class_="hint"),
    ]


def _since_field() -> Node:
    words = "03:10, -15min or 2030-01-31T09:00, in the server's time zone; leave empty for all"
    return field("since", "Only jobs that failed after", hint=words, maxlength="40")


async def _about(ctx: RequestContext, request: ActionRequest) -> list[Node]:
    group, total = await _group_of(ctx, request)
    seconds = total / _LOOKED_AT_PER_SECOND
    count = group.about or group.count
    about = f"about {number(count)}" if group.margin else number(count)
    return [
        p(strong(about), f" of {number(total)} failed jobs: ", code(group.error)),
        p(f"This checks all failed jobs and takes about {duration(seconds)}.", class_="hint")
        if seconds > 1
        else None,
    ]


async def _group_of(ctx: RequestContext, request: ActionRequest) -> tuple[FailureGroup, int]:
    """Return the form's error group with current counts, and the number of failed jobs."""
    wanted = request.form.need("group")
    failures = await ctx.server.failures(request.queue)
    found = next((each for each in failures.groups if each.fingerprint == wanted), None)
    if found is None:
        raise Refused(409, "No failed jobs with this error are left.")
    if found.is_rest:
        raise Refused(
            409, 'These are different errors. Select jobs in the list, or use "Retry all".'
        )
    return found, failures.total


async def _count(ctx: RequestContext, request: ActionRequest) -> int:
    return (await ctx.server.queue(request.queue).counts())[JobState.FAILED]


async def _retry(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    group, _ = await _group_of(ctx, request)
    change = _retrying(group.fingerprint, request.form)
    return await _begin(ctx, request, f"{group.error} in {group.task}", change)


async def _retry_all(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    return await _begin(ctx, request, "all failed jobs", _retrying(None, request.form))


async def _remove_group(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    group, _ = await _group_of(ctx, request)
    since = _since(request.form)

    async def remove(queue: Queue, step: GroupStep | None, limit: int | None) -> GroupStep:
        return await queue.remove_group(group.fingerprint, step=step, since=since, limit=limit)

    return await _begin(ctx, request, f"{group.error} in {group.task}", remove)


def _retrying(fingerprint: str | None, form: Form) -> Change:
    since, reset = _since(form), wants_reset(form)

    async def retry(queue: Queue, step: GroupStep | None, limit: int | None) -> GroupStep:
        return await queue.retry_group(
            fingerprint, step=step, since=since, limit=limit, reset_attempts=reset
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


async def _begin(
    ctx: RequestContext, request: ActionRequest, what: str, change: Change
) -> ActionResult:
    most = request.form.get("most")
    if most not in _SIZES:
        raise Refused(400, "Choose how many: 1, 10, 100 or all.")
    meant = BulkTarget(
        request.queue,
        request.form.get("group"),
        what,
        await _count(ctx, request),
        None if most == "all" else int(most),
        request.form.number("rate") or None,
    )
    bulk = GroupChange(ctx, request.form.get("action"), meant, change)
    await bulk.begin()
    return ActionResult("Started.", 0, what, "operations", bulk.run)


RETRY_GROUP = DashboardAction("retry-group", "Retry", "group", _ask_retry, _retry)
RETRY_ALL = DashboardAction("retry-all", "Retry all", "queue", _ask_retry_all, _retry_all)
REMOVE_GROUP = DashboardAction(
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


async def _ask_pause(ctx: RequestContext, request: ActionRequest) -> Node:
    facts = await ctx.server.facts(request.queue)
    return [
        p("Pause ", code(request.queue), "? Workers stop fetching until you resume it."),
        p("Running jobs continue.", class_="hint"),
        p(_MIXED, class_="notice") if (facts.version or "").startswith("bullmq:5.") else None,
        field("reason", "Reason (optional)", maxlength="200"),
    ]


async def _pause(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    reason = request.form.get("reason")[:200]
    await ctx.server.queue(request.queue).pause(by=ctx.access.user, reason=reason)
    return ActionResult(f"{request.queue} paused.", about=reason)


async def _ask_resume(_: RequestContext, request: ActionRequest) -> Node:
    return p("Resume ", code(request.queue), "? Workers fetch its jobs again.")


async def _resume(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    await ctx.server.queue(request.queue).resume()
    return ActionResult(f"{request.queue} resumed.")


async def _ask_drain(ctx: RequestContext, request: ActionRequest) -> Node:
    counts = await ctx.server.queue(request.queue).counts()
    waiting = sum(counts[state] for state in _WAITING)
    return [
        p("Remove ", plural(waiting, "waiting job"), " from ", code(request.queue), "?"),
        tick("delayed", f"also remove {plural(counts[JobState.DELAYED], 'delayed job')}"),
    ]


async def _drain(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    delayed = request.form.get("delayed") == "yes"
    removed = await ctx.server.queue(request.queue).drain(delayed=delayed)
    return ActionResult(f"{plural(removed, 'job')} removed from {request.queue}.", removed)


async def _ask_clean(ctx: RequestContext, request: ActionRequest) -> Node:
    counts = await ctx.server.queue(request.queue).counts()
    states = {
        str(state): f"{state} ({number(counts[state])})"
        for state in reversed(STATES)
        if state is not JobState.WAITING_CHILDREN
    }
    return [
        p("Remove old jobs from ", code(request.queue), "?"),
        choice("clean", "State", states, request.form.get("state") or "completed"),
        field("hours", "Older than (hours)", "number", min="0", value="24", required="required"),
    ]


async def _clean(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    state = request.form.need("clean")
    if state not in set(STATES):
        raise Refused(400, "Unknown state.")
    age = request.form.number("hours") * 3600
    removed = await ctx.server.queue(request.queue).clean(age, _CLEANED, state)
    more = " There may be more; run it again." if len(removed) == _CLEANED else ""
    message = f"{plural(len(removed), f'{state} job')} removed from {request.queue}.{more}"
    return ActionResult(message, len(removed))


async def _ask_obliterate(ctx: RequestContext, request: ActionRequest) -> Node:
    counts = await ctx.server.queue(request.queue).counts()
    jobs = plural(sum(counts.values()), "job")
    return [
        p("Remove ", code(request.queue), f" with its {jobs}, schedules and events?"),
        tick("force", "even if jobs are running"),
    ]


async def _obliterate(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    queue = ctx.server.queue(request.queue)
    jobs = sum((await queue.counts()).values())
    await queue.obliterate(force=request.form.get("force") == "yes")
    return ActionResult(f"{request.queue} removed, with {plural(jobs, 'job')}.", jobs, back="./")


PAUSE = DashboardAction("pause", "Pause", "queue", _ask_pause, _pause)
RESUME = DashboardAction("resume", "Resume", "queue", _ask_resume, _resume)
DRAIN = DashboardAction("drain", "Drain", "queue", _ask_drain, _drain, typed=True, danger=True)
CLEAN = DashboardAction("clean", "Clean", "queue", _ask_clean, _clean, typed=True, danger=True)
OBLITERATE = DashboardAction(
    *("obliterate", "Obliterate", "queue", _ask_obliterate, _obliterate),
    typed=True,
    danger=True,
    by_default=False,
)


async def _ask_stop(_: RequestContext, __: ActionRequest) -> Node:
    return p("Stop this operation? Completed changes are kept.")


async def _stop(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    await ctx.server.stop_operation(request.id)
    return ActionResult("Stopping after the current batch.")


STOP = DashboardAction("stop", "Stop", "job", _ask_stop, _stop)


# Actions on groups of jobs that have limits.


async def _ask_pause_group(_: RequestContext, request: ActionRequest) -> Node:
    return [
        p("Pause group ", code(request.id), " of ", code(request.queue), "?"),
        p("Running jobs continue, and other groups are not affected.", class_="hint"),
    ]


async def _pause_group(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    await ctx.server.queue(request.queue).set_group(request.id, paused=True)
    return ActionResult(f"Group {request.id} paused.")


async def _ask_resume_group(_: RequestContext, request: ActionRequest) -> Node:
    return p("Resume group ", code(request.id), " of ", code(request.queue), "?")


async def _resume_group(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    await ctx.server.queue(request.queue).set_group(request.id, paused=False)
    return ActionResult(f"Group {request.id} resumed.")


async def _ask_group_limits(ctx: RequestContext, request: ActionRequest) -> Node:
    groups = await ctx.server.groups(request.queue, SHOWN)
    found = next((group for group in groups if group.id == request.id), None)
    window = 60 if found is None or found.limiter is None else found.limiter.duration
    least = {"kind": "number", "hint": "0: as for all groups", "min": "0"}
    return [
        p("Change the limits of group ", code(request.id), "? An empty field changes nothing."),
        None if found is None else _current_limits(found),
        field("concurrency", "Concurrent jobs", **least),
        field("most", "Cost of the jobs started per window", **least),
        field(
            "window",
            "Window in seconds",
            "number",
            min="0.001",
            step="0.001",
            value=f"{window:.15g}",
        ),
        field("weight", "Jobs per turn", **least),
    ]


def _current_limits(found: GroupInfo) -> Node:
    none = "no limit"
    words = (
        f"concurrency {none if found.concurrency is None else number(found.concurrency)}",
        f"limiter {none if found.limiter is None else _limit_words(found.limiter)}",
        f"weight {number(found.weight)}",
    )
    return p(f"Now: {', '.join(words)}.", class_="hint")


async def _group_limits(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    form, changes = request.form, dict[str, Any]()
    if form.get("concurrency"):
        changes["concurrency"] = form.number("concurrency") or None
    if form.get("weight"):
        changes["weight"] = form.number("weight") or None
    if form.get("most"):
        most = form.number("most")
        changes["limiter"] = Limiter(most, form.seconds("window") or 60) if most else None
    await ctx.server.queue(request.queue).set_group(request.id, **changes)
    words = ", ".join(
        f"{name} {'as for all groups' if value is None else _limit_words(value)}"
        for name, value in changes.items()
    )
    return ActionResult(f"Group {request.id}: {words or 'nothing changed'}.", about=request.id)


def _limit_words(value: int | Limiter) -> str:
    if isinstance(value, Limiter):
        return f"{number(value.max)} per {duration(value.duration)}"
    return number(value)


PAUSE_GROUP = DashboardAction("pause-group", "Pause", "job group", _ask_pause_group, _pause_group)
RESUME_GROUP = DashboardAction(
    "resume-group", "Resume", "job group", _ask_resume_group, _resume_group
)
GROUP_LIMITS = DashboardAction(
    "group-limits", "Set limits", "job group", _ask_group_limits, _group_limits
)


# Actions on schedules.


async def _ask_run(ctx: RequestContext, request: ActionRequest) -> Node:
    return [
        p("Run schedule ", code(request.id), " now?"),
        await _rule(ctx, request),
        p("Its next run is unchanged.", class_="hint"),
    ]


async def _run(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    handle = await ctx.server.queue(request.queue).run_schedule_now(request.id)
    return ActionResult(f"Added job {handle.id} of schedule {request.id}.")


async def _ask_remove_schedule(ctx: RequestContext, request: ActionRequest) -> Node:
    found = await ctx.server.queue(request.queue).get_schedule(request.id)
    declared = found is not None and found.declared_by
    return [
        p("Remove schedule ", code(request.id), " from ", code(request.queue), "?"),
        await _rule(ctx, request),
        p(f"App {declared} declares this schedule; it will be re-created when a worker starts.")
        if declared
        else None,
    ]


async def _remove_schedule(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    removed = await ctx.server.queue(request.queue).remove_schedule(request.id)
    what = "removed" if removed else "no longer exists"
    return ActionResult(f"Schedule {request.id} {what}.", int(removed))


async def _rule(ctx: RequestContext, request: ActionRequest) -> Node:
    found = await ctx.server.queue(request.queue).get_schedule(request.id)
    return None if found is None else p(f"It runs {found.describe()}.", class_="hint")


RUN_SCHEDULE = DashboardAction("run-schedule", "Run now", "schedule", _ask_run, _run)
REMOVE_SCHEDULE = DashboardAction(
    "remove-schedule", "Remove", "schedule", _ask_remove_schedule, _remove_schedule, danger=True
)


# Actions on workers.


async def _ask_quiet(_: RequestContext, request: ActionRequest) -> Node:
    return [
        p("Let worker ", code(request.id), " fetch no more jobs, from any of its queues?"),
        p("Running jobs continue. It fetches again when you resume it.", class_="hint"),
    ]


async def _quiet(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    await ctx.server.quiet_worker(request.id)
    return ActionResult(f"Worker {request.id} will fetch no more jobs.")


async def _ask_resume_worker(_: RequestContext, request: ActionRequest) -> Node:
    return p("Let worker ", code(request.id), " fetch jobs again?")


async def _resume_worker(ctx: RequestContext, request: ActionRequest) -> ActionResult:
    await ctx.server.resume_worker(request.id)
    return ActionResult(f"Worker {request.id} will fetch jobs again.")


QUIET = DashboardAction("quiet", "Quiet", "worker", _ask_quiet, _quiet)
RESUME_WORKER = DashboardAction(
    "resume-worker", "Resume", "worker", _ask_resume_worker, _resume_worker
)


# All actions. A form can change nothing except through one of them.


_JOBS = (RETRY, PROMOTE, DELAY_AGAIN, REMOVE, PRIORITY, DELAY, READD, SIGNAL)
_QUEUES = (PAUSE, RESUME, DRAIN, CLEAN, LIMITS, OBLITERATE, STOP)
_DOWNLOADS = (DOWNLOAD, DOWNLOAD_UNMASKED)
_GROUPS = (RETRY_GROUP, RETRY_ALL, REMOVE_GROUP, PAUSE_GROUP, RESUME_GROUP, GROUP_LIMITS)
_SCHEDULES = (RUN_SCHEDULE, REMOVE_SCHEDULE)
_WORKERS = (QUIET, RESUME_WORKER)
_CANCELS = (CANCEL,) if hasattr(Queue, "cancel") else ()

ACTIONS: Final[dict[str, DashboardAction]] = {
    action.name: action
    for action in (*_JOBS, *_CANCELS, *_DOWNLOADS, *_GROUPS, *_QUEUES, *_SCHEDULES, *_WORKERS)
}

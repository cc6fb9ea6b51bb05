"""What the doctor looks at in each queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote

from taskbull.cli.doctor.findings import Finding, ok, problem, warning
from taskbull.cli.doctor.server_checks import major_of
from taskbull.cli.terminal import cell, command, plural
from taskbull.core.durations import instant_to_ms
from taskbull.core.schedule import Schedule
from taskbull.core.states import JobState
from taskbull.errors import ConfigurationError, SerializationError, ServerRefused
from taskbull.observability.job_filter import cut
from taskbull.queue.server_operations import QueueSummary
from taskbull.queue.sync_server import SyncServer

_MANY = 100_000
_LOOKED_AT = 500
"""Running jobs of which the locks are looked at."""
_LATE = timedelta(minutes=1)
"""How late the run of a schedule may be: a worker may be busy."""


def check_queues(server: SyncServer) -> Iterator[Finding]:
    """Examine the queues, and tell who uses them."""
    try:
        found = server.survey()
    except ServerRefused as error:
        yield problem("queues", f"the queues cannot be read: {error}", "check the ACL rules")
        return
    if not found:
        yield ok("queues", f"there are none under the prefix {server.prefix!r}")
    if any(queue.workers is None and queue.problem is None for queue in found):
        yield warning("workers", "the server does not say who is connected (CLIENT LIST)")
    for queue in found:
        try:
            yield from _check_queue(server, queue)
        except (ServerRefused, ConfigurationError, SerializationError) as error:
            yield problem("queue", f"{queue.name}: it cannot be read: {error}", _REPAIR)


_REPAIR = "look at the types of its keys, and who writes to them; the other queues are not affected"


def _check_queue(server: SyncServer, queue: QueueSummary) -> Iterator[Finding]:
    if queue.problem is not None:
        yield problem("queue", f"{queue.name}: it cannot be read: {queue.problem}", _REPAIR)
        return
    yield _who(queue)
    yield from _waiting(queue)
    yield from _stalled(server, queue)
    yield from _pausing(queue)
    yield from _kept(queue)
    yield from _schedules(server, queue)


def _who(queue: QueueSummary) -> Finding:
    shown = ", ".join(f"{count:,} {state}" for state, count in queue.counts.items() if count)
    users = {
        None: "no Node producer has written its version",
        5: f"Node BullMQ 5 uses it ({queue.version})",
        6: f"Node BullMQ 6 uses it ({queue.version})",
    }
    user = users.get(major_of(queue.version), f"{queue.version} uses it")
    if queue.version is not None and major_of(queue.version) is None:
        user = f"{queue.version} uses it"
    workers = "" if queue.workers is None else f"; {plural(queue.workers, 'worker')} connected"
    return ok("queue", f"{queue.name}: {shown or 'empty'}; {user}{workers}")


def _waiting(queue: QueueSummary) -> Iterator[Finding]:
    ready = queue.counts[JobState.WAITING] + queue.counts[JobState.PRIORITIZED]
    if ready and queue.workers == 0 and not queue.paused:
        yield warning(
            "queue",
            f"{queue.name}: {plural(ready, 'job')} to run, but no worker is connected",
            f"taskbull worker -q {quote(queue.name)}",
        )


def _stalled(server: SyncServer, queue: QueueSummary) -> Iterator[Finding]:
    if not queue.counts[JobState.ACTIVE]:
        return
    still = [job.id for job in server.active(queue.name, _LOOKED_AT) if job.lock_seconds is None]
    if still:
        yield warning(
            "queue",
            f"{queue.name}: {plural(len(still), 'running job')} without a lock (stalled): "
            f"{', '.join(still[:5])}",
            "the next check of any worker puts them back; if they stay, no worker is running",
        )


def _pausing(queue: QueueSummary) -> Iterator[Finding]:
    if not queue.paused:
        return
    parked = queue.counts[JobState.PAUSED]
    waiting = queue.counts[JobState.WAITING]
    total = parked + waiting + queue.counts[JobState.PRIORITIZED]
    yield warning(
        "queue",
        f"{queue.name}: it is paused, and {plural(total, 'job')} cannot run",
        command("resume", queue.name),
    )
    if major_of(queue.version) == 5 and waiting and parked:
        yield warning(
            "queue",
            f"{queue.name}: jobs are in both of its lists, and BullMQ 5 would lose some when it "
            "resumes or pauses the queue",
            f"resume it with {command('resume', queue.name)}, which loses none",
        )


def _kept(queue: QueueSummary) -> Iterator[Finding]:
    kept = queue.counts[JobState.COMPLETED] + queue.counts[JobState.FAILED]
    if kept >= _MANY:
        yield warning(
            "queue",
            f"{queue.name}: {kept:,} finished jobs are kept, and take up memory",
            f"{command('clean', queue.name, options='--older-than 7d')}; and keep fewer: "
            "keep_completed=Keep(…)",
        )


def _is_stored(server: SyncServer, late: Sequence[Schedule]) -> bool:
    """Return whether a run is there that was begun, and then given back or left behind."""
    unfinished = {JobState.WAITING, JobState.ACTIVE}
    runs = zip(late, server.last_runs(late), strict=True)
    return any(
        run is not None
        and run.state in unfinished
        and each.last_due is not None
        and run.id.endswith(f":{instant_to_ms(each.last_due)}")
        for each, run in runs
    )


def _schedules(server: SyncServer, queue: QueueSummary) -> Iterator[Finding]:
    found = server.queue(queue.name).schedules()
    if old := [each for each in found if each.is_old]:
        yield warning(
            "schedules",
            f"{queue.name}: {plural(len(old), 'repeatable job')} of BullMQ 3, 4 or early 5, which "
            f"BullMQ 6 does not run: {', '.join(cut(each.id) for each in old[:5])}",
            "replace them by schedules (upsert_schedule, or Node's upsertJobScheduler), then "
            f"taskbull schedules remove {queue.name} ID",
        )
    yield from _overdue(server, queue, found)


def _overdue(
    server: SyncServer, queue: QueueSummary, found: Sequence[Schedule]
) -> Iterator[Finding]:
    latest = datetime.now(UTC) - _LATE
    late = [each for each in found if each.next_run is not None and each.next_run < latest]
    if not late:
        return
    names = ", ".join(cut(each.id) for each in late[:5])
    since = min(each.next_run for each in late if each.next_run is not None)
    if queue.paused:
        advice = command("resume", queue.name)
    elif any(each.is_pending for each in late) or _is_stored(server, late):
        start = f"taskbull worker -q {quote(queue.name)}"
        advice = f"{start}, or more of them: each run adds the next one"
    else:
        advice = "the job of the next run is gone: taskbull schedules sync, or upsert it again"
    yield warning(
        "schedules",
        f"{queue.name}: the next run of {plural(len(late), 'schedule')} is overdue, since "
        f"{cell(since)}: {names}",
        advice,
    )

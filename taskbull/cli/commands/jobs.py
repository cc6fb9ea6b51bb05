"""Commands that look at jobs: those of a queue, and all that is stored about one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import click
from msgspec import Struct

from taskbull.cli.app_loading import find_site, site_options
from taskbull.cli.commands.queues import STATES
from taskbull.cli.completion import complete_queue
from taskbull.cli.errors import note
from taskbull.cli.site import Site
from taskbull.cli.terminal import (
    instant,
    json_option,
    printable_lines,
    shortened,
    show_fields,
    show_json,
    show_section,
    show_table,
    to_json,
)
from taskbull.core import payload
from taskbull.core.durations import instant_from_ms
from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.states import JobState, due_ms_of_score
from taskbull.errors import CorruptJob, JobNotFound
from taskbull.queue.operations import Operations
from taskbull.scripts.call import Command
from taskbull.scripts.inspection import ChildCounts, Logs, count_children

_LISTED = tuple(state for state in STATES if state is not JobState.PAUSED)
"""All states in which jobs can be; those parked by a pause are among the waiting ones."""


class Listed(Struct, frozen=True):
    """A job, the state in which it was found, its attempts, and when it is due if delayed."""

    job: Job
    state: JobState
    attempts: int
    due: datetime | None = None


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice([s.value for s in STATES]),
    multiple=True,
    show_default="all",
    help="Only jobs in this state; several may be given.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many jobs to list."
)
@click.option("--offset", type=click.IntRange(0), default=0, help="How many jobs to skip.")
@site_options
@json_option
def jobs(
    queue: str | None,
    states: tuple[str, ...],
    limit: int,
    offset: int,
    as_json: bool,
    **where: str | None,
) -> None:
    """List the jobs of a queue, or of all: the next to run first, of finished ones the latest."""
    site = find_site(**where)
    wanted = [JobState(state) for state in dict.fromkeys(states)] or list(_LISTED)
    found: list[tuple[str, Listed]] = []
    for operations in _chosen(site, queue):
        name = operations.keys.queue
        some, total = _list(site, operations, wanted, offset, limit)
        found += [(name, each) for each in some]
        if total > offset + len(some) and not as_json:
            rest = f"{offset + 1} to {offset + len(some)} of {total:,}"
            note(f"jobs {rest} in queue {name}; the next: --offset {offset + len(some)}")
    if as_json:
        show_json([describe(name, each) for name, each in found])
        return
    show_table(
        [*([] if queue else ["queue"]), "job", "task", "state", "attempts", "added", "about"],
        [
            (
                *([] if queue else [name]),
                each.job.id,
                each.job.name,
                each.state,
                _attempts(each),
                each.job.timestamp,
                _about(each),
            )
            for name, each in found
        ],
        empty="There are no such jobs." if queue is None else f"Queue {queue} has no such jobs.",
    )


def _chosen(site: Site, queue: str | None) -> list[Operations]:
    if queue is not None:
        return [site.queue(queue)]
    site.redis.knock()
    return [site.operations(name) for name in site.names()]


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.argument("job_id", metavar="ID")
@site_options
@json_option
def job(queue: str, job_id: str, as_json: bool, **where: str | None) -> None:
    """Show all that is stored about a job."""
    site = find_site(**where)
    operations = site.queue(queue)
    found = find_job(site, operations, job_id)
    state = site.ask(operations.get_state(job_id))
    listed = Listed(
        found, state, site.attempts_of(found), *_due(site, operations.keys, [found], state)
    )
    logs = site.ask(operations.logs(job_id, 0, -1))
    extra = _extra(site, operations.keys, job_id, state)
    if as_json:
        children = extra.children
        shown = {
            **describe(queue, listed),
            "options": extra.options,
            "lock_seconds": extra.lock_seconds,
            "children": {name: getattr(children, name) for name in children.__struct_fields__},
            "logs": logs.lines,
        }
        show_json(shown)
    else:
        _show(queue, listed, logs, extra)


def find_job(site: Site, queue: Operations, job_id: str) -> Job:
    """Give a job; `JobNotFound` also for ids that would name another key of the queue."""
    found = None if job_id in RESERVED_IDS else site.ask(queue.get_job(job_id))
    if found is None:
        raise JobNotFound(queue.keys.queue, job_id)
    return found


def describe(queue: str, listed: Listed) -> dict[str, Any]:
    """Give a job as the JSON of `jobs` and `job` has it."""
    job = listed.job
    data, corrupt = _data_of(job)
    return {
        "id": job.id,
        "queue": queue,
        "name": job.name,
        "state": str(listed.state),
        "data": data,
        "result": job.returnvalue,
        "reason": job.failed_reason,
        "progress": _progress_of(job),
        "attempts": listed.attempts,
        "attempts_made": job.attempts_made,
        "attempts_started": job.attempts_started,
        "stalled_count": job.stalled_count,
        "priority": job.priority,
        "delay": job.delay_ms / 1000,
        "added_at": instant(job.timestamp),
        "due_at": instant(listed.due),
        "started_at": instant(job.processed_on),
        "finished_at": instant(job.finished_on),
        "worker": job.processed_by,
        "dedup": job.dedup_key,
        "scheduler": job.scheduler_id,
        "parent": job.parent_key,
        "stacktrace": job.stacktrace,
        "corrupt": corrupt,
    }


class Extra(Struct, frozen=True):
    """What stands beside a job's hash, or only in its options."""

    options: Any
    lock_seconds: float | None
    """How long the lock of a running job lives; 0 if there is none, None if it does not run."""
    children: ChildCounts


def _list(
    site: Site, queue: Operations, states: Sequence[JobState], offset: int, limit: int
) -> tuple[list[Listed], int]:
    """Give a page of the jobs in some states, one state after the other, and how many there are."""
    counts = site.ask(queue.counts())
    found: list[Listed] = []
    total = 0
    for state in states:
        count = counts[state] + (counts[JobState.PAUSED] if state is JobState.WAITING else 0)
        start = max(0, offset - total)
        total += count
        wanted = min(limit - len(found), count - start)
        if wanted > 0:
            jobs = site.ask(queue.get_jobs(state, start, start + wanted - 1))
            due = _due(site, queue.keys, jobs, state)
            found += (
                Listed(job, state, site.attempts_of(job), when)
                for job, when in zip(jobs, due, strict=True)
            )
    return found, total


def _due(
    site: Site, keys: QueueKeys, jobs: Sequence[Job], state: JobState
) -> list[datetime | None]:
    if state is not JobState.DELAYED:
        return [None] * len(jobs)
    words = [("ZSCORE", keys.delayed, job.id) for job in jobs]
    return site.redis.run_all([Command(each, keys.delayed, _read_due) for each in words])


def _read_due(score: bytes | None) -> datetime | None:
    return None if score is None else instant_from_ms(due_ms_of_score(float(score)))


def _extra(site: Site, keys: QueueKeys, job_id: str, state: JobState) -> Extra:
    key, lock = keys.job(job_id), keys.lock(job_id)
    options = site.redis.run(Command(("HGET", key, "opts"), key, _read_json))
    held = None
    if state is JobState.ACTIVE:
        held = site.redis.run(Command(("PTTL", lock), lock, lambda ms: max(0, ms) / 1000))
    return Extra(options, held, site.redis.run(count_children(keys, job_id)))


def _read_json(raw: bytes | None) -> Any:
    try:
        return payload.decode(raw or b"null")
    except ValueError:
        return None


def _show(queue: str, listed: Listed, logs: Logs, extra: Extra) -> None:
    job, children = listed.job, extra.children
    data, corrupt = _data_of(job)
    lock = None
    if extra.lock_seconds is not None:
        lock = f"for {extra.lock_seconds:g} s" if extra.lock_seconds else "none: it has stalled"
    family = {name: getattr(children, name) for name in children.__struct_fields__}
    show_fields(
        [
            ("job", job.id),
            ("task", job.name),
            ("queue", queue),
            ("state", listed.state),
            ("attempts", _attempts(listed)),
            ("stalled", job.stalled_count or None),
            ("priority", job.priority or None),
            ("added", job.timestamp),
            ("due", listed.due),
            ("started", job.processed_on),
            ("finished", job.finished_on),
            ("worker", job.processed_by),
            ("locked", lock),
            ("progress", _compact(_progress_of(job)) if job.raw_progress else None),
            ("dedup key", job.dedup_key),
            ("scheduler", job.scheduler_id),
            ("parent", job.parent_key),
            ("children", ", ".join(f"{n} {what}" for what, n in family.items() if n)),
            ("reason", job.failed_reason),
            ("corrupt", corrupt),
        ]
    )
    show_section("Data", to_json(data).split("\n"))
    show_section("Options", to_json(extra.options).split("\n") if extra.options else [])
    if listed.state is JobState.COMPLETED:
        show_section("Result", to_json(job.returnvalue).split("\n"))
    for numbers, stack in _alike(job.stacktrace):
        show_section(f"Stack of failure {numbers}", printable_lines(stack.rstrip("\n")))
    show_section("Log", [line for each in logs.lines for line in printable_lines(each)])


def _alike(stacks: list[str]) -> Iterator[tuple[str, str]]:
    """Give each stack once with the numbers of the failures in a row that had it: `1 to 3`."""
    number = 1
    for stack, same in groupby(stacks):
        last = number + len(list(same)) - 1
        yield str(number) if last == number else f"{number} to {last}", stack
        number = last + 1


def _data_of(job: Job) -> tuple[Any, str | None]:
    corrupt = job.corrupt
    try:
        return job.data, None if corrupt is None else str(corrupt)
    except CorruptJob as error:
        return job.raw_data.decode("utf-8", "backslashreplace"), str(error)


def _progress_of(job: Job) -> Any:
    try:
        return job.progress
    except CorruptJob:
        return None


def _attempts(listed: Listed) -> str:
    return f"{listed.job.attempts_made}/{listed.attempts}"


def _compact(value: Any) -> str:
    return to_json(value, indent=None)


def _about(listed: Listed) -> str | None:
    """Tell what matters most about a job in its state."""
    job = listed.job
    match listed.state:
        case JobState.FAILED:
            return shortened(job.failed_reason or "")
        case JobState.COMPLETED:
            return shortened(f"result {_compact(job.returnvalue)}")
        case JobState.DELAYED if listed.due is not None:
            return f"due {listed.due.astimezone():%Y-%m-%d %H:%M:%S}"
        case JobState.ACTIVE:
            since = "" if job.processed_on is None else f"{job.processed_on.astimezone():%H:%M:%S}"
            return f"since {since}" + (f" at {job.processed_by}" if job.processed_by else "")
        case JobState.PRIORITIZED:
            return f"priority {job.priority}"
        case _:
            return None

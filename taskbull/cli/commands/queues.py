"""The commands `events`, `groups`, `queues`, `tasks` and `workers`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from taskbull.app.batch import is_batch
from taskbull.app.task import Task
from taskbull.cli.app_loading import app_argument, app_option, find_app, find_server, server_options
from taskbull.cli.arguments import complete_queue
from taskbull.cli.errors import note
from taskbull.cli.output import cell, json_option, shortened, show_json, show_table, to_json
from taskbull.cli.server import existing_queue, note_lost_servers
from taskbull.core.diagnosis import describe_hold, describe_limiter
from taskbull.core.groups import GroupInfo
from taskbull.core.keys import STATES, JobState
from taskbull.core.queue_health import PauseNote
from taskbull.core.retry import CircuitBreaker
from taskbull.core.validation import instant_from_ms, iso
from taskbull.core.wire.job import QueueEvent
from taskbull.core.worker_record import WorkerRecord
from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.monitor.browse import QueueSample
from taskbull.monitor.server import SyncServer
from taskbull.queue.handle import check_last_id

# `taskbull events`.


_PAUSE = 0.5
"""Seconds between retries while Redis is unavailable."""


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "--last-id",
    default="$",
    show_default="now",
    help="Start after this event id; 0 starts with the oldest event.",
)
@server_options
@json_option
def events(queue: str, last_id: str, as_json: bool, **where: str | None) -> None:
    """Follow a queue's events until Ctrl-C."""
    check_last_id(last_id)
    server = find_server(**where)
    server.ping()
    if not server.exists(queue):
        note(f"queue '{queue}' does not exist yet; waiting for its first event")
    for event in _follow(server, queue, last_id):
        if as_json:
            click.echo(to_json(_describe(queue, event), indent=None))
        else:
            click.echo(_line(event))


def _follow(server: SyncServer, queue: str, last_id: str) -> Iterator[QueueEvent]:
    """Yield all events after an id. During an outage of Redis, print a note and retry."""
    away = False
    if last_id == "$":
        last_id = server.last_event_id(queue)
    while True:
        try:
            server.ping()  # Detect an outage immediately, without the retries of the next call.
            events = server.wait_for_events(queue, last_id)
        except (MaybeExecuted, ConnectionLost) as error:  # Reading is safe to repeat.
            if not away:
                note(f"{error}; retrying until it is available")
            away = True
            time.sleep(_PAUSE)
            continue
        if away:
            note("Reconnected to Redis")
            away = False
        for event in events:
            last_id = event.id
            yield event


def _time_of(event: QueueEvent) -> datetime | None:
    ms = event.id.partition("-")[0]
    try:
        return datetime.fromtimestamp(int(ms) / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # an id with an invalid timestamp
        return None


def _describe(queue: str, event: QueueEvent) -> dict[str, object]:
    return {
        "id": event.id,
        "at": iso(_time_of(event)),
        "queue": queue,
        "event": event.name,
        "job_id": event.job_id,
        "fields": dict(event.fields),
    }


def _line(event: QueueEvent) -> str:
    when = _time_of(event)
    clock = "-" if when is None else f"{when.astimezone():%H:%M:%S.%f}"[:-3]
    fields = " ".join(
        f"{cell(name)}={cell(shortened(value))}" for name, value in event.details.items()
    )
    return f"{clock}  {cell(event.name):<16}  {cell(event.job_id):<8}  {fields}".rstrip()


# `taskbull queues`.


@click.command()
@app_argument
@server_options
@json_option
def queues(
    named: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List queues with job counts by state."""
    server = find_server(app or named, redis, prefix)
    note_lost_servers(server)
    found = server.survey()
    for queue in found:
        if queue.problem:
            note(f"cannot read queue '{queue.name}': {queue.problem}")
    if as_json:
        show_json([_describe_queue(queue) for queue in found])
        return
    # Show these columns only if at least one queue has such jobs.
    rare = (JobState.PRIORITIZED, JobState.WAITING_CHILDREN, JobState.PAUSED)
    states = [
        state
        for state in STATES
        if state not in rare or any(queue.counts[state] for queue in found)
    ]
    show_table(
        ["queue", *states, "workers", "is paused"],
        [
            (
                queue.name,
                *("?" if queue.problem else queue.counts[state] for state in states),
                "?" if queue.workers is None else queue.workers,
                _paused(queue),
            )
            for queue in found
        ],
        empty=f"No queues found in Redis at {server.address} with prefix {server.prefix!r}.",
    )


def _paused(queue: QueueSample) -> str | bool:
    """Return the pause state of a queue, with the user and the reason if known."""
    if queue.problem:
        return "?"
    if queue.note is None:
        return queue.paused
    parts = [
        "yes",
        f" by {queue.note.by}" if queue.note.by else "",
        f": {queue.note.why}" if queue.note.why else "",
    ]
    return "".join(parts)


def _describe_queue(queue: QueueSample) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "note": None if queue.note is None else _describe_note(queue.note),
        "workers": queue.workers,
        "version": queue.version,
        "problem": queue.problem,
        "counts": {str(state): queue.counts[state] for state in STATES},
    }


def _describe_note(note: PauseNote) -> dict[str, Any]:
    return {"by": note.by, "at": iso(instant_from_ms(note.at_ms)), "why": note.why}


# `taskbull tasks`.


@click.command()
@app_argument
@app_option
@json_option
def tasks(named: str | None, app: str | None, as_json: bool) -> None:
    """List the app's tasks."""
    found = sorted(find_app(app or named).tasks.values(), key=lambda task: (task.queue, task.name))
    if as_json:
        show_json([_describe_task(task) for task in found])
        return
    show_table(
        ["task", "queue", "signature", "runs in", "attempts", "timeout", "breaker", "defined at"],
        [
            (
                task.name,
                task.queue,
                signature_of(task),
                _where(task),
                task.settings.options.attempts,
                _seconds(task.settings.timeout),
                _breaker(task.settings.circuit_breaker),
                _relative(task.location),
            )
            for task in found
        ],
        empty="The app has no tasks.",
    )


def signature_of(task: Task[..., Any]) -> str:
    """Return the signature of the task's function."""
    try:
        signature = inspect.signature(task.function, eval_str=True)
    except Exception:  # noqa: BLE001 - annotations may contain any user code
        signature = inspect.signature(task.function)
    return str(signature)


def _where(task: Task[..., Any]) -> str:
    where = "remote" if task.is_remote else task.execution_mode.value
    return f"{where}, batches of {task.batch.size}" if is_batch(task) else where


def _describe_task(task: Task[..., Any]) -> dict[str, Any]:
    breaker = task.settings.circuit_breaker
    return {
        "name": task.name,
        "queue": task.queue,
        "signature": signature_of(task),
        "kind": "remote" if task.is_remote else "async" if task.is_async else "sync",
        "runs_in": "remote" if task.is_remote else task.execution_mode.value,
        "batch_size": task.batch.size if is_batch(task) else None,
        "attempts": task.settings.options.attempts,
        "timeout": task.settings.timeout,
        "priority": task.settings.options.priority,
        "circuit_breaker": None
        if breaker is None
        else {
            "threshold": breaker.threshold,
            "duration": breaker.duration,
            "half_open_max_attempts": breaker.half_open_max_attempts,
        },
        "place": task.location,
        "description": inspect.getdoc(task.function) or "",
    }


def _seconds(duration: float | None) -> str | None:
    return None if duration is None else f"{duration:g} s"


def _breaker(breaker: CircuitBreaker | None) -> str | None:
    return None if breaker is None else f"{breaker.threshold} failures, {breaker.duration:g} s"


def _relative(location: str) -> str:
    here = f"{Path.cwd()}/"
    return location.removeprefix(here)


# `taskbull workers`.


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@server_options
@json_option
def workers(
    queue: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List connected workers."""
    server = find_server(app, redis, prefix)
    if queue is None:
        note_lost_servers(server)
    else:
        existing_queue(server, queue)
    by_queue = server.workers(None if queue is None else [queue])
    found = [(name, worker) for name, workers in by_queue.items() for worker in workers]
    records = {
        (name, record.id): record
        for name, listed in server.worker_records(list(by_queue)).items()
        for record in listed
    }
    if as_json:
        show_json(
            [
                {
                    "queue": name,
                    "name": worker.name,
                    "address": worker.address,
                    "age": worker.age,
                    "idle": worker.idle,
                    "state": _state(records.get((name, worker.name))),
                }
                for name, worker in found
            ]
        )
        return
    show_table(
        ["queue", "worker", "address", "connected for", "idle for", "state"],
        [
            (
                *(name, each.name, each.address, _duration(each.age), _duration(each.idle)),
                _state(records.get((name, each.name))) or "–",
            )
            for name, each in found
        ],
        empty="No worker is connected.",
    )


def _state(record: WorkerRecord | None) -> str | None:
    """Return whether a worker fetches jobs, or None if it publishes no record."""
    if record is None:
        return None
    if record.is_late(int(time.time() * 1000)):
        return "not responding"
    return "stopping" if record.stopping else "quiet" if record.quiet else "running"


def _duration(seconds: int) -> str:
    return str(timedelta(seconds=seconds))


# `taskbull groups`.


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@server_options
@json_option
def groups(queue: str, as_json: bool, **where: str | None) -> None:
    """List the groups of a queue, largest first."""
    server = find_server(**where)
    found = server.groups(existing_queue(server, queue).name)
    if as_json:
        show_json([_as_json(group) for group in found])
        return
    columns = ("group", "waiting", "running", "held", "limit", "rate", "weight", "state")
    now = datetime.now(UTC)
    rows = [
        (
            group.id,
            group.waiting,
            group.active,
            group.held,
            "-" if group.concurrency is None else group.concurrency,
            describe_limiter(group.limiter),
            group.weight,
            describe_hold(group, now) or "-",
        )
        for group in found
    ]
    show_table(columns, rows, empty=f"No job of queue '{queue}' has a group.")


def _as_json(group: GroupInfo) -> dict[str, object]:
    limiter = None if group.limiter is None else asdict(group.limiter)
    return {**asdict(group), "limited_until": iso(group.limited_until), "limiter": limiter}

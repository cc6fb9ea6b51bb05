"""What a worker shows when it starts: what it is, where Redis is, and what there is to do."""

from __future__ import annotations

import platform

import click

from taskbull import __version__
from taskbull.app.app import App
from taskbull.cli.advice import advice
from taskbull.cli.doctor.rights import first_trouble
from taskbull.cli.server import server_at
from taskbull.cli.terminal import printable, shortened
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.queue.sync_server import SyncServer
from taskbull.worker.worker import Worker

_PATIENCE = 2.0
"""Seconds to find out which tasks are missing: the worker does not wait for that."""


def show_banner(app: App, worker: Worker, backend: str) -> None:
    """Print the banner; that Redis is away is told in it, and no reason not to start."""
    options = worker.options
    rows = {
        "app": app.name,
        "redis": "",
        "queues": "",
        "tasks": ", ".join(sorted(app.tasks)) or "none",
        "jobs at once": _concurrency(worker),
        "processes": _processes(worker),
        "worker": worker.id,
        "to stop": f"Ctrl-C, and running jobs have {options.shutdown_timeout:g} s; twice: at once",
    }
    server = server_at(worker.namespace)
    try:
        server.ping()
        rows["redis"] = f"{worker.address} · {_server(server, worker.queues[0])}"
        rows["queues"] = " · ".join(_queue(server, name) for name in worker.queues)
        if strangers := _strangers(app, worker):
            rows["not here"] = strangers
    except ServerRefused as error:
        rows["redis"] = rows["redis"] or f"{worker.address} · cannot be used: {_with_advice(error)}"
        rows["queues"] = " · ".join(worker.queues)
    except TaskbullError as error:
        rows["redis"] = f"{worker.address} · not reachable yet: {_with_advice(error, server)}"
        rows["queues"] = " · ".join(worker.queues)
    finally:
        server.close()
    title = click.style(f"taskbull {__version__}", bold=True)
    click.echo(f"{title} · Python {platform.python_version()} · {backend}")
    for name, text in rows.items():
        if not text:
            continue
        click.echo(f"  {click.style(f'{name:<13}', dim=True)} {printable(text)}")


def _strangers(app: App, worker: Worker) -> str:
    found = [
        f"{shortened(', '.join(names))} in {queue}"
        for queue in worker.queues
        if (names := app.unknown_names(queue, timeout=_PATIENCE))
    ]
    if not found:
        return ""
    return (
        f"{'; '.join(found)}: jobs wait for tasks that this app does not have. All workers of a "
        "queue must know all its tasks"
    )


def _concurrency(worker: Worker) -> str:
    numbers = worker.concurrency
    if len(set(numbers.values())) == 1:
        return f"{next(iter(numbers.values()))} in each queue"
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


def _processes(worker: Worker) -> str:
    pool = worker.pool
    return "" if pool is None else f"{pool.size} for {', '.join(sorted(pool.tasks))}"


def _with_advice(error: TaskbullError, server: SyncServer | None = None) -> str:
    todo = advice(error, server)
    return f"{error} → {todo}" if todo else str(error)


def _server(server: SyncServer, queue: str) -> str:
    trouble = first_trouble(server, queue)
    try:
        fields = server.info(server.servers()[0])
    except ServerRefused:  # it works all the same
        return f"{trouble}: see taskbull doctor" if trouble else "version unknown, fine"
    kind = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get("valkey_version") or fields.get("redis_version", "of unknown version")
    policy = fields.get("maxmemory_policy", "noeviction")
    if trouble:
        return f"{kind} {version}, but {trouble}: see taskbull doctor"
    if policy != "noeviction":
        return f"{kind} {version}, but it may evict jobs (maxmemory-policy {policy}): see doctor"
    return f"{kind} {version}, fine"


def _queue(server: SyncServer, name: str) -> str:
    counts = server.queue(name).counts()
    shown = [
        f"{counts[state]:,} {state}"
        for state in ("waiting", "prioritized", "delayed", "active", "paused", "failed")
        if counts[state]
    ]
    return f"{name} ({', '.join(shown) or 'empty'})"

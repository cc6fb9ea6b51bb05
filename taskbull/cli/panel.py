"""What a worker shows when it starts: what it is, where Redis is, and what there is to do."""

from __future__ import annotations

import platform

import click

from taskbull import __version__
from taskbull.app.app import App
from taskbull.errors import TaskbullError
from taskbull.scripts.call import Command
from taskbull.store.sync import SyncStore
from taskbull.worker.worker import Worker

_PATIENCE = 2.0
"""Seconds that the panel waits for Redis: the worker itself waits longer."""


def show_panel(app: App, worker: Worker, backend: str) -> None:
    """Print the panel; that Redis is away is told in it, and no reason not to start."""
    options = worker.options
    rows = {
        "app": app.name,
        "redis": "",
        "queues": "",
        "tasks": ", ".join(sorted(app.tasks)) or "none",
        "jobs at once": f"{options.concurrency} in each queue",
        "worker": worker.id,
        "to stop": f"Ctrl-C, and running jobs have {options.shutdown_timeout:g} s; twice: at once",
    }
    store = SyncStore(worker.address)
    try:
        rows["redis"] = f"{worker.address} · {_server(store)}"
        rows["queues"] = " · ".join(_queue(app, name) for name in worker.queues)
    except TaskbullError as error:
        rows["redis"] = f"{worker.address} · not there yet: {error}"
        rows["queues"] = " · ".join(worker.queues)
    finally:
        store.close()
    title = click.style(f"taskbull {__version__}", bold=True)
    click.echo(f"{title} · Python {platform.python_version()} · {backend}")
    for name, text in rows.items():
        click.echo(f"  {click.style(f'{name:<13}', dim=True)} {text}")


def _server(store: SyncStore) -> str:
    info = store.run(Command(("INFO",), "", _fields), timeout=_PATIENCE)
    kind = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "of unknown version")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"{kind} {version}, but it may evict jobs (maxmemory-policy {policy}): see doctor"
    return f"{kind} {version}, fine"


def _fields(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def _queue(app: App, name: str) -> str:
    counts = app.sync_queue(name).counts()
    shown = [
        f"{counts[state]:,} {state}"
        for state in ("waiting", "prioritized", "delayed", "active", "paused", "failed")
        if counts[state]
    ]
    return f"{name} ({', '.join(shown) or 'empty'})"

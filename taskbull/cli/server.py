"""Asking before something is destroyed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from taskbull.app.app import App
from taskbull.cli.errors import SERVER, CommandFailed, WrongUsage, failure_of, note
from taskbull.cli.output import cell
from taskbull.core.validation import did_you_mean
from taskbull.errors import TaskbullError
from taskbull.monitor.server import Namespace, Node, SyncServer
from taskbull.queue.queue import SyncQueue

# Asking before something is destroyed.


F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """Add `--yes`, for commands that ask."""
    return click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")(function)


def ask(question: str, yes: bool) -> None:
    """Go on only if a person, or `--yes`, says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsage(f"{question} There is no terminal to ask on: pass --yes")
    if not click.confirm(cell(question), err=True):
        raise CommandFailed("nothing was changed")


# Where a command finds queues: a Redis server and a prefix, with what the app knows about them.


CALL_TIMEOUT = 8.0
"""Seconds that one call may take: somebody is waiting for it."""


def open_server(app: App | None, redis: str | None = None, prefix: str | None = None) -> SyncServer:
    """Return the server of the queues: what is given here, else the app's, else the default."""
    try:
        if app is None:
            prefix = "bull" if prefix is None else prefix
            server = SyncServer(redis or None, prefix=prefix, call_timeout=CALL_TIMEOUT)
        else:
            namespace = app.producer.namespace
            server = SyncServer(
                namespace.address if redis is None else redis,
                prefix=namespace.prefix if prefix is None else prefix,
                hash_tag=namespace.hash_tag,
                call_timeout=CALL_TIMEOUT,
                queues=app.queues,
                attempts_of=app.attempts_of,
            )
    except TaskbullError as error:
        raise failure_of(error) from error
    if ctx := click.get_current_context(silent=True):
        ctx.call_on_close(server.close)
        ctx.meta[SERVER] = server
    return server


def server_at(namespace: Namespace) -> SyncServer:
    """Return the server of the queues of a worker; whoever asks for it closes it."""
    return SyncServer(
        namespace.address,
        prefix=namespace.prefix,
        hash_tag=namespace.hash_tag,
        call_timeout=CALL_TIMEOUT,
    )


def note_lost_servers(server: SyncServer) -> dict[Node, str]:
    """Fail if Redis does not answer; note and return the nodes of a Cluster that do not."""
    lost = server.lost_servers()
    for node, reason in lost.items():
        note(f"the queues of {node} cannot be read: {reason}")
    return lost


def existing_queue(server: SyncServer, name: str) -> SyncQueue:
    """Return a queue that exists; one that does not is a failure that names the nearest."""
    queue = server.queue(name)
    server.ping()
    if not server.exists(name):
        known = server.queues()
        has = f"; there is {', '.join(known[:8])}" if known else "; there is none yet"
        hint = did_you_mean(name, known) or has
        raise CommandFailed(
            f"Queue {name} does not exist in Redis at {server.address} under the prefix "
            f"{server.prefix!r}{hint}"
        )
    return queue

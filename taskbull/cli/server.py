"""Confirmation prompts, and access to the server and the queues of a command."""

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

# Confirmation.


F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """Add the option `--yes`, for commands that ask for confirmation."""
    return click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")(function)


def ask(question: str, yes: bool) -> None:
    """Return if the user confirms or passes `--yes`.

    Raises:
        WrongUsage: If there is no terminal to ask on.
        CommandFailed: If the user declines.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsage(f"{question} Cannot ask for confirmation without a terminal: pass --yes")
    if not click.confirm(cell(question), err=True):
        raise CommandFailed("Cancelled; nothing was changed")


# Servers and queues.


CALL_TIMEOUT = 8.0
"""Time limit per call in seconds, because the user is waiting."""


def open_server(app: App | None, redis: str | None = None, prefix: str | None = None) -> SyncServer:
    """Return the server for these options, which default to the app's settings.

    It is closed with click's context.

    Raises:
        CommandFailed: If the options are invalid, or the app runs or records its jobs instead.
    """
    if app is not None and redis is None and app.producer.detour is not None:
        raise CommandFailed(app.producer.detour.refusal)
    try:
        if app is None:
            prefix = "bull" if prefix is None else prefix
            server = SyncServer(redis, prefix=prefix, call_timeout=CALL_TIMEOUT)
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
    """Return the server for a worker's queues. The caller must close it."""
    return SyncServer(
        namespace.address,
        prefix=namespace.prefix,
        hash_tag=namespace.hash_tag,
        call_timeout=CALL_TIMEOUT,
    )


def note_lost_servers(server: SyncServer) -> dict[Node, str]:
    """Print a note for each Cluster node that does not answer, and return these nodes.

    An error is raised if no node answers.
    """
    lost = server.lost_servers()
    for node, reason in lost.items():
        note(f"cannot read the queues of {node}: {reason}")
    return lost


def existing_queue(server: SyncServer, name: str) -> SyncQueue:
    """Return an existing queue.

    Raises:
        CommandFailed: If it does not exist. The message suggests a similar name.
    """
    queue = server.queue(name)
    server.ping()
    if not server.exists(name):
        known = server.queues()
        has = f"; known queues: {', '.join(known[:8])}" if known else "; there are no queues yet"
        hint = did_you_mean(name, known) or has
        raise CommandFailed(
            f"Queue '{name}' not found in Redis at {server.address} with prefix "
            f"{server.prefix!r}{hint}"
        )
    return queue

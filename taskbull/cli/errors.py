"""How a failure reaches a person: one sentence on stderr, and an exit code.

1: it failed. 2: what was typed, or set, cannot be right.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any

import click

from taskbull.cli.advice import advice
from taskbull.cli.terminal import printable, printable_lines
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    MaybeExecuted,
    SerializationError,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.queue.sync_server import SyncServer

SERVER = f"{__name__}.server"
"""By which click's context knows whom a command has asked."""

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""


class CommandFailed(click.ClickException):
    """A command did not do what it was asked."""

    exit_code = FAILED

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self._details = details

    def show(self, file: IO[Any] | None = None) -> None:
        """Say it; details, such as a stack, stand below it."""
        complain(self.message)
        if self._details:
            for line in printable_lines(self._details):
                click.echo(f"    {line}", err=True)


class WrongUsage(CommandFailed):
    """What was typed, or set, cannot be right."""

    exit_code = WRONG_USAGE


def failure_of(error: TaskbullError, server: SyncServer | None = None) -> CommandFailed:
    """Return what a person is told about an error of the library, met while asking `server`."""
    message = str(error)
    if isinstance(error, ConnectionLost | ServerRefused):
        message = _about_redis(error, server)
    elif isinstance(error, MaybeExecuted):
        message += ". It may or may not have been done: check before you try again"
    kind = WrongUsage if isinstance(error, ConfigurationError) else CommandFailed
    return kind(message, "\n".join(getattr(error, "__notes__", ())))


def _about_redis(error: ConnectionLost | ServerRefused, server: SyncServer | None) -> str:
    at, said = "", str(error).rstrip(".")
    if server is not None:
        at = f" at {server.address}"
        for known in (f"cannot connect to {server.address}: ", f"Redis at {server.address}: "):
            said = said.removeprefix(known)
    todo = advice(error, server)
    return f"Redis{at} cannot be used: {said}" + (f". {todo[0].upper()}{todo[1:]}" if todo else "")


@contextmanager
def others_go_on(queue: str, wanted: str | None) -> Generator[None]:
    """Note that a queue cannot be read, and continue with the others; raise if it was `wanted`."""
    try:
        yield
    except (ServerRefused, ConfigurationError, SerializationError) as error:
        if wanted is not None or isinstance(error, ServerUnavailable):
            raise
        note(f"queue {queue} cannot be read: {error}")
    except (ConnectionLost, MaybeExecuted) as error:
        server: SyncServer | None = click.get_current_context().meta.get(SERVER)
        if wanted is not None or server is None:
            raise
        server.ping()  # fails too, unless other nodes of a Cluster answer
        note(f"queue {queue} cannot be read: {error}")


def complain(message: str) -> None:
    """Say on stderr what went wrong."""
    click.secho(f"taskbull: {printable(message)}", fg="red", err=True, color=colour())


def colour() -> bool | None:
    """Return whether click is to use colours: never, or (None) in a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def note(message: str) -> None:
    """Say on stderr what is worth knowing but not part of the answer."""
    click.echo(f"taskbull: {printable(message)}", err=True)

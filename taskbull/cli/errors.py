"""Error messages of commands: advice for Redis errors, output on stderr and exit codes.

Exit code 1 means that a command failed; 2 means that an argument or a setting is invalid.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any

import click

from taskbull.cli.output import printable, printable_lines
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    EnqueueError,
    MaybeExecuted,
    SerializationError,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.monitor.server import SyncServer

# Advice for Redis errors.


def _settings() -> str:
    """Return the settings for the address of Redis that the running command reads."""
    context = click.get_current_context(silent=True)
    command = None if context is None else context.command
    if isinstance(command, click.Group) and context is not None:
        command = command.commands.get(context.invoked_subcommand or "")
    ways = ["--redis URL", "TASKBULL_REDIS_URL", "the app's redis=… (-A module:app names the app)"]
    if command is not None and not isinstance(command, click.Group):
        options = {name for each in command.params for name in each.opts}
        ways = [
            way
            for way, option in zip(ways, ("--redis", None, "-A"), strict=True)
            if option is None or option in options
        ]
    return f"{', '.join(ways[:-1])}{',' if len(ways) > 2 else ''} or {ways[-1]}"


_BY_CODE = {
    "NOAUTH": "put the user name and the password into the URL: redis://user:password@host",
    "WRONGPASS": "put the right user name and password into the URL: redis://user:password@host",
    "NOPERM": "grant the permission: taskbull doctor --acl prints the required rules",
    "DENIED": "set a password (requirepass), or let the server listen on this machine only; "
    "protected-mode no is for networks that you trust",
    "READONLY": "it is a replica: connect to its primary, or use a redis+sentinel:// URL",
    "NOREPLICAS": "bring its replicas back, or lower min-replicas-to-write",
    "OOM": "raise maxmemory, or remove jobs (taskbull clean) and keep fewer of them",
    "MISCONF": "it cannot save its data: check its log and its disk space",
    "LOADING": "wait until it has loaded its data",
    "BUSY": "a script is running for too long: SCRIPT KILL stops it",
    "CLUSTERDOWN": "check CLUSTER NODES: some slots have no node",
    "MASTERDOWN": "its primary is unavailable: restore it, or promote the replica",
    "INCOMPLETE": "it is not a complete Redis server (fakeredis over TCP, for example): "
    "use Redis 6.2 or newer, Valkey, or embedded://",
    "VERSION": "use Redis 6.2 or newer, or Valkey",
}


LOST_NODE = "start this node of the Cluster, or promote its replica; the other nodes answer"
"""Advice for a queue on a node that does not answer while others do."""


def advice(error: TaskbullError, server: SyncServer | None = None) -> str:
    """Return what to do about an error, or an empty string.

    If the error does not show the cause, `server` is probed, if given.
    """
    if isinstance(error, ServerRefused) and error.code not in {"TLS", "PROTOCOL"}:
        return _about_refusal(error)
    message = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return _about_certificate(message)
    if "max number of clients" in message:
        return "raise maxclients, or close connections: CLIENT LIST shows who opened them"
    if server is not None and server.namespace.address.clustered and _is_partly_reachable(server):
        return LOST_NODE
    if any(words in message for words in ("refused", "not known", "No such file")):
        return f"start a server, or set its address: {_settings()}; embedded:// needs none"
    return _address_advice(server)


def _is_partly_reachable(server: SyncServer) -> bool:
    try:
        return bool(server.lost_servers())  # raises if none answers
    except TaskbullError:
        return False


def _about_refusal(error: ServerRefused) -> str:
    if error.code != "INCOMPLETE" and "unknown command" in str(error).lower():
        return (
            "the command is disabled or renamed on the server, or a proxy does not know it: "
            "taskbull needs scripts (EVALSHA, SCRIPT LOAD) and blocking commands"
        )
    return _BY_CODE.get(error.code, "")


def _about_certificate(message: str) -> str:
    if "ostname" in message or "IP address" in message:
        return (
            "use the host name in the server's certificate, or ssl_check_hostname=false in the URL"
        )
    return (
        "add the authority that signed the server's certificate to the URL: "
        "rediss://…?ssl_ca_certs=/path/to/ca.pem"
    )


def _address_advice(server: SyncServer | None) -> str:
    address = None if server is None else server.namespace.address
    endpoint = address.endpoints[0] if address is not None and address.endpoints else None
    if address is None or endpoint is None or endpoint.path:
        return f"start a server, or set its address: {_settings()}"
    tls = "If the server uses TLS, use rediss:// instead of redis://"
    if address.tls is not None:
        tls = "If the server does not use TLS, use redis:// instead of rediss://"
    return (
        f"is {endpoint} a Redis server? {tls}. A proxy must forward scripts, blocking commands and "
        "CLIENT (twemproxy does not): connect to the server directly"
    )


# Messages on stderr and exit codes.


SERVER = f"{__name__}.server"
"""Key of the command's server in click's context."""

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 plus the number of SIGINT."""


class CommandFailed(click.ClickException):
    """A failure of a command, shown as one sentence with optional details."""

    exit_code = FAILED

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self._details = details

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, then the details, such as a stack trace, below it."""
        complain(self.message)
        if self._details:
            for line in printable_lines(self._details):
                click.echo(f"    {line}", err=True)


class WrongUsage(CommandFailed):
    """An invalid argument or setting."""

    exit_code = WRONG_USAGE


def failure_of(error: TaskbullError, server: SyncServer | None = None) -> CommandFailed:
    """Return the command failure for a taskbull error, raised while using `server`."""
    message = str(error)
    if isinstance(error, ConnectionLost | ServerRefused):
        message = _about_redis(error, server)
    elif isinstance(error, EnqueueError) and isinstance(error.__context__, ServerRefused):
        message = _advised(message, advice(error.__context__))
    elif isinstance(error, MaybeExecuted):
        message += ". The command may have been executed: check before you try again"
    kind = WrongUsage if isinstance(error, ConfigurationError) else CommandFailed
    return kind(message, "\n".join(getattr(error, "__notes__", ())))


def _about_redis(error: ConnectionLost | ServerRefused, server: SyncServer | None) -> str:
    at, said = "", str(error).rstrip(".")
    if server is not None:
        at = f" at {server.address}"
        for known in (f"cannot connect to {server.address}: ", f"Redis at {server.address}: "):
            said = said.removeprefix(known)
    todo = advice(error, server)
    if said.startswith("cannot connect to Redis"):
        return _advised(f"C{said[1:]}", todo)
    return _advised(f"Cannot use Redis{at}: {said}", todo)


def _advised(message: str, todo: str) -> str:
    return f"{message.rstrip('.')}. {todo[0].upper()}{todo[1:]}" if todo else message


@contextmanager
def skip_unreadable(queue: str, wanted: str | None) -> Generator[None]:
    """Print a note if a queue cannot be read, so that the command continues with other queues.

    The error is raised if the user asked for this queue (`wanted`), or if all of Redis is
    unavailable.
    """
    try:
        yield
    except (ServerRefused, ConfigurationError, SerializationError) as error:
        if wanted is not None or isinstance(error, ServerUnavailable):
            raise
        note(f"cannot read queue '{queue}': {error}")
    except (ConnectionLost, MaybeExecuted) as error:
        server: SyncServer | None = click.get_current_context().meta.get(SERVER)
        if wanted is not None or server is None:
            raise
        server.ping()  # raises unless other nodes of a Cluster answer
        note(f"cannot read queue '{queue}': {error}")


def complain(message: str) -> None:
    """Print an error to stderr."""
    click.secho(f"taskbull: {printable(message)}", fg="red", err=True, color=colour())


def colour() -> bool | None:
    """Return click's color setting: False if `NO_COLOR` is set, otherwise None (automatic)."""
    return False if os.environ.get("NO_COLOR") else None


def note(message: str) -> None:
    """Print a note to stderr that is not part of the output."""
    click.echo(f"taskbull: {printable(message)}", err=True)

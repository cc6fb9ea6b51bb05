"""Calls that concern a Redis server rather than one queue: info, clients, searches, permissions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from taskbull.core.keys import QueueKeys, read_connection_name
from taskbull.scripts.call import Call, Command, Word, info, nothing, text
from taskbull.scripts.loader import load

_SCANNED = 1000
"""Number of keys that one search step scans. It takes a fraction of a millisecond."""

_ANY = ""
"""Key of a command that concerns the server rather than a key."""


class Client(Struct, frozen=True):
    """A client connection to a server."""

    name: str
    address: str
    age: int
    """Seconds since it connected."""
    idle: int
    """Seconds since it last sent a command."""


class ConnectedWorker(Struct, frozen=True):
    """A BullMQ or taskbull worker that is connected to a queue."""

    name: str
    """Name of the worker, or empty if it has none."""
    address: str
    age: int
    """Seconds since it connected."""
    idle: int
    """Seconds since it last sent a command."""


class FoundQueues(Struct, frozen=True):
    """The result of one step of a search for queues."""

    names: list[str]
    """Queue names as they appear in keys, including any hash tag."""
    cursor: bytes
    """Cursor for the next step, or `b"0"` after the last step."""


def ping() -> Command[None]:
    """Check that the server answers."""
    return Command(("PING",), _ANY, nothing)


def get_info() -> Command[dict[str, str]]:
    """Read the fields of a server's INFO."""
    return Command(("INFO",), _ANY, info)


def get_cluster_info() -> Command[dict[str, str]]:
    """Read the fields of a node's CLUSTER INFO."""
    return Command(("CLUSTER", "INFO"), _ANY, info)


def get_setting(name: str) -> Command[str]:
    """Read a server's setting, such as `save`. Empty if it is unknown."""

    def read(reply: list[bytes]) -> str:
        return text(reply[1]) if len(reply) > 1 else ""

    return Command(("CONFIG", "GET", name), _ANY, read)


def get_time() -> Command[float]:
    """Read a server's clock, in seconds since 1970."""
    return Command(("TIME",), _ANY, lambda reply: int(reply[0]) + int(reply[1]) / 1e6)


def list_clients() -> Command[list[Client]]:
    """List the client connections of a server."""
    return Command(("CLIENT", "LIST"), _ANY, _clients)


def list_workers(queue: QueueKeys) -> Command[list[ConnectedWorker]]:
    """List the workers connected to a queue."""
    return Command(("CLIENT", "LIST"), queue.base, lambda reply: workers_of(queue, _clients(reply)))


def workers_of(queue: QueueKeys, clients: Sequence[Client]) -> list[ConnectedWorker]:
    """Select a queue's workers from all connections, by BullMQ's connection names."""
    name = queue.connection_name()
    return [
        ConnectedWorker(each.name[len(name) + 3 :], each.address, each.age, each.idle)
        for each in clients
        if each.name == name or each.name.startswith(f"{name}:w:")
    ]


def workers_by_queue(prefix: str, clients: Sequence[Client]) -> dict[str, list[ConnectedWorker]]:
    """Return the connected workers of all queues under a prefix, by queue.

    Queue names are returned as they appear in keys, including any hash tag.
    """
    found: dict[str, list[ConnectedWorker]] = {}
    for each in clients:
        if (named := read_connection_name(prefix, each.name)) is not None:
            queue, worker = named
            about = ConnectedWorker(worker, each.address, each.age, each.idle)
            found.setdefault(queue, []).append(about)
    return found


def find_queues(prefix: str, cursor: bytes = b"0") -> Command[FoundQueues]:
    """Search the next chunk of a server's keys for queues."""
    start, end = f"{prefix}:", ":meta"

    def read(reply: Any) -> FoundQueues:
        after, keys = reply
        names = [text(key)[len(start) : -len(end)] for key in keys]
        # Queue names contain no ":". Other keys belong to another prefix or to a job scheduler.
        return FoundQueues([name for name in names if name and ":" not in name], after)

    pattern = f"{escape_pattern(start)}*{end}"
    words: tuple[Word, ...] = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "hash")
    return Command(words, _ANY, read)


def escape_pattern(text: str) -> str:
    """Escape a text for use in a Redis glob pattern."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _clients(reply: bytes) -> list[Client]:
    clients: list[Client] = []
    for line in text(reply).splitlines():
        fields = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        age, idle = int(fields.get("age", 0)), int(fields.get("idle", 0))
        address = _unix_path(fields.get("addr", ""))
        clients.append(Client(fields.get("name", ""), address, age, idle))
    return clients


def _unix_path(address: str) -> str:
    """Return the path of a Unix socket. Redis formats it as path:0 and Valkey as [path:0]:0."""
    if address.startswith(("/", "[/")):
        return address.removesuffix("]:0").removeprefix("[").removesuffix(":0")
    return address


# Checks of the Redis user's permissions. Test keys are removed, or expire if Redis refuses that.

PROBE_COMMANDS = load("probe_commands")


def probe_commands(queue: QueueKeys, token: str) -> Call[dict[str, str]]:
    """Try each command that the scripts use. Return the refused commands with their errors."""
    kinds = ("text", "another", "hash", "list", "set", "zset", "stream")
    keys = tuple(queue.private("doctor", token, kind) for kind in kinds)
    return Call(PROBE_COMMANDS, keys, (), _refused)


def try_plainly(queue: QueueKeys, token: str) -> dict[str, Command[None]]:
    """Return harmless variants of the commands that are sent without a script, by name."""
    key = queue.private("doctor", token, "none")
    tried: dict[str, tuple[Word, ...]] = {
        "BZPOPMIN": ("BZPOPMIN", key, 0.01),
        "LPOP": ("LPOP", key, 1),
        "XREAD": ("XREAD", "COUNT", 1, "STREAMS", key, "0"),
        "CLIENT ID": ("CLIENT", "ID"),
        "CLIENT SETNAME": ("CLIENT", "SETNAME", "taskbull-doctor"),
        "CLIENT KILL": ("CLIENT", "KILL", "ID", 1 << 62),
        "CLIENT LIST": ("CLIENT", "LIST"),
        "SCAN": ("SCAN", 0, "COUNT", 1),
    }
    return {name: Command(words, queue.base, nothing) for name, words in tried.items()}


def try_shared_keys(prefix: str, token: str) -> Command[None]:
    """Return a harmless write to a key that all queues share."""
    key = f"{prefix}::tb:doctor:{token}"
    return Command(("DEL", key), key, nothing)


def _refused(reply: list[Any]) -> dict[str, str]:
    words = [text(each) for each in reply]
    return dict(zip(words[::2], words[1::2], strict=True))

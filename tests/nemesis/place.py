"""Where the play takes place: a server, with a network before it that can be broken."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbull.core.keys import QueueKeys
from taskbull.store.server import Server
from tests.nemesis.kinds import PREFIX
from tests.servers.proxy import Proxy

DURABLE: Final = {
    "appendonly": "yes",
    "appendfsync": "always",
    "enable-debug-command": "yes",
}
EVENTS_KEPT: Final = 10_000_000


class Place(Protocol):
    """What a run needs to know of its servers."""

    url: str
    """The way that all actors go, and that can be broken."""
    direct_url: str
    """The way of the operator, who must know how things are."""
    clustered: bool

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def for_node(self) -> dict[str, Any]:
        """Give the address as ioredis wants it: see node.mjs."""

    def masters(self) -> list[Server]:
        """Give the servers that take writes now."""

    def owner(self, key: str) -> Server:
        """Give the server that has a key."""

    def heal(self) -> None:
        """Undo all faults; return when every server serves."""


class Single:
    """One server that forgets nothing, behind a proxy."""

    clustered = False

    def __init__(self, binary: Path) -> None:
        self._stack = ExitStack()
        self.server = Server(binary, DURABLE)
        self.proxy: Proxy
        self.url = self.direct_url = ""

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.server)
            self.proxy = self._stack.enter_context(Proxy(self.server.socket))
            self.url, self.direct_url = self.proxy.url, self.server.unix_url
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def for_node(self) -> dict[str, Any]:
        host, port = self.proxy.address
        return {"host": host, "port": port}

    def masters(self) -> list[Server]:
        return [self.server]

    def owner(self, key: str) -> Server:
        return self.server

    def heal(self) -> None:
        if not self.server.running:
            self.server.start(60.0)
        self.server.resume()
        self.proxy.heal()
        with client(self.server) as admin:
            admin.config_set("maxmemory", 0)


def client(server: Server) -> redis.Redis:
    """Give a client of the server itself, out of reach of the network's faults."""
    return redis.Redis(
        unix_socket_path=str(server.socket), decode_responses=True, retry=Retry(NoBackoff(), 0)
    )


def keys_of(place: Place, queue: str) -> QueueKeys:
    """Name the keys of a queue."""
    return QueueKeys(queue, PREFIX, place.clustered)


def keep_all_events(place: Place, queue: str) -> None:
    """Let the stream of a queue forget nothing, so that it can be checked in the end."""
    keys = keys_of(place, queue)
    with client(place.owner(keys.meta)) as admin:
        admin.hset(keys.meta, "opts.maxLenEvents", EVENTS_KEPT)

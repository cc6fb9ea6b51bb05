"""Environments of a run: one server behind a breakable network, or several servers.

Replication is asynchronous, so a master that dies loses writes that its replica has not received,
acknowledged or not. That is a known limit and not tested here: before a master is killed, writes
are paused until its replica has everything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbull.core.keys import QueueKeys
from taskbull.store.server_process import HOST, ServerProcess
from tests.nemesis.kinds import PREFIX
from tests.servers.cluster import Cluster, slot_of
from tests.servers.proxy import Proxy
from tests.servers.sentinel import NAME, SentinelSet
from tests.servers.waiting import wait_until

DURABLE: Final = {
    "appendonly": "yes",
    "appendfsync": "always",
    "enable-debug-command": "yes",
}
EVENTS_KEPT: Final = 10_000_000

_PATIENCE_MS: Final = 4000
_HOLD_UP_MS: Final = 30_000  # Longer than a failover takes.


class Place(Protocol):
    """Interface of a run's servers."""

    url: str
    """The address for all actors, through a network that can be broken."""
    direct_url: str
    """The address for the operator, through a reliable network."""
    kind: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def for_node(self) -> dict[str, Any]:
        """Return the address in ioredis's form: see node.mjs."""

    def masters(self) -> list[ServerProcess]:
        """Return the servers that currently accept writes."""

    def owner(self, key: str) -> ServerProcess:
        """Return the server that holds a key."""

    def heal(self) -> None:
        """Undo all faults, and wait until every server is available."""

    def surprise(self) -> str:
        """Return unplanned events of the servers, which make the run inconclusive."""


class Single:
    """One server with an append-only file, behind a proxy."""

    kind = "single"

    def __init__(self, binary: Path) -> None:
        self._stack = ExitStack()
        self.server = ServerProcess(binary, DURABLE)
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

    def masters(self) -> list[ServerProcess]:
        return [self.server]

    def owner(self, key: str) -> ServerProcess:
        return self.server

    def heal(self) -> None:
        if not self.server.running:
            self.server.start(60.0)
        self.server.resume()
        self.proxy.heal()
        with client(self.server) as admin:
            admin.config_set("maxmemory", 0)

    def surprise(self) -> str:
        return ""


class Sentinels:
    """A master, its replica, and three sentinels."""

    kind = "sentinel"

    def __init__(self, binary: Path) -> None:
        self._set = SentinelSet(binary)
        self._expected: ServerProcess
        self.url = self.direct_url = ""

    def __enter__(self) -> Self:
        self._set.__enter__()
        for sentinel in self._set.sentinels:
            _patient(sentinel)
        self.url = self.direct_url = self._set.url
        self._expected = self._set.master
        return self

    def __exit__(self, *_: object) -> None:
        self._set.__exit__()

    def for_node(self) -> dict[str, Any]:
        sentinels = [{"host": HOST, "port": one.port} for one in self._set.sentinels]
        return {"sentinels": sentinels, "name": NAME}

    def masters(self) -> list[ServerProcess]:
        return [self._expected]

    def owner(self, key: str) -> ServerProcess:
        return self._expected

    def fail_over(self) -> None:
        """Swap master and replica."""
        self._set.await_ready()
        old = self._hold_up_writers()
        self._expected = self._set.fail_over()
        self._set.await_ready()  # The old one is now a replica and refuses paused writes.
        with client(old) as admin:
            admin.execute_command("CLIENT", "UNPAUSE")

    def kill_master(self) -> None:
        """Kill -9 the master. Return when the other has taken over, and this one is a replica."""
        self._set.await_ready()
        self._hold_up_writers()
        self._expected = self._set.kill_master()
        self._set.await_ready()

    def heal(self) -> None:
        self._set.mend()
        with client(self._expected) as admin:
            admin.config_set("maxmemory", 0)

    def surprise(self) -> str:
        same = self._set.master is self._expected
        return "" if same else "the sentinels changed the master by themselves"

    def _hold_up_writers(self) -> ServerProcess:
        [replica] = [one for one in self._set.servers if one is not self._expected]
        hold_up_writers(self._expected, replica)
        return self._expected


class Clustered:
    """Three masters, and a replica of the first one."""

    kind = "cluster"

    def __init__(self, binary: Path) -> None:
        self._cluster = Cluster(binary)
        self._expected: ServerProcess
        self.url = self.direct_url = ""

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        for node in self._cluster.nodes:
            node.run("CONFIG", "SET", "cluster-node-timeout", _PATIENCE_MS)
        self.url = self.direct_url = self._cluster.url
        self._expected = self._cluster.masters[0].server
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()

    def for_node(self) -> dict[str, Any]:
        return {"nodes": [{"host": HOST, "port": one.port} for one in self._cluster.nodes]}

    def masters(self) -> list[ServerProcess]:
        return [node.server for node in self._cluster.masters]

    def owner(self, key: str) -> ServerProcess:
        return self._cluster.owner(key).server

    def fail_over(self) -> None:
        """Swap the first master and its replica."""
        self._cluster.fail_over()
        self._expected = self._cluster.masters[0].server

    def kill_master(self) -> None:
        """Kill -9 the first master. Return when its replica has taken over, and it is a replica."""
        replica = self._cluster.replica
        assert replica is not None
        hold_up_writers(self._cluster.masters[0].server, replica.server)
        self._cluster.kill_master_with_replica()
        self._expected = self._cluster.masters[0].server
        self._cluster.mend()

    def migrate(self, key: str, wait: Callable[[], None]) -> None:
        """Move the slot of a key to another master, half of it before `wait`, half after."""
        source = self._cluster.owner(key)
        migration = self._cluster.migrate(slot_of(key), source, self._cluster.other_than(source))
        there = migration.keys_at_source()
        migration.move(*there[: len(there) // 2])
        wait()
        migration.finish()

    def heal(self) -> None:
        self._cluster.mend()
        for server in self.masters():
            with client(server) as admin:
                admin.config_set("maxmemory", 0)

    def surprise(self) -> str:
        same = self._cluster.masters[0].server is self._expected
        return "" if same else "the cluster changed a master by itself"


PLACES: Final[dict[str, Callable[[Path], Place]]] = {
    "single": Single,
    "sentinel": Sentinels,
    "cluster": Clustered,
}


def hold_up_writers(master: ServerProcess, replica: ServerProcess) -> None:
    """Pause writes to the master. Return when its replica has all earlier writes."""
    with client(master) as admin, client(replica) as other:
        admin.execute_command("CLIENT", "PAUSE", _HOLD_UP_MS, "WRITE")
        written = int(admin.info("replication")["master_repl_offset"])
        wait_until(
            lambda: int(other.info("replication")["slave_repl_offset"]) >= written,
            "the replica has everything",
        )


def _patient(sentinel: ServerProcess) -> None:
    """Raise the sentinels' timeout above the delays of a busy machine."""
    with client(sentinel) as admin:
        setting = ("down-after-milliseconds", _PATIENCE_MS)
        admin.execute_command("SENTINEL", "SET", NAME, *setting)


def client(server: ServerProcess) -> redis.Redis:
    """Return a client that connects directly, without the network's faults."""
    return redis.Redis(
        unix_socket_path=str(server.socket), decode_responses=True, retry=Retry(NoBackoff(), 0)
    )


def keys_of(place: Place, queue: str) -> QueueKeys:
    """Return the keys of a queue."""
    return QueueKeys(queue, PREFIX, place.kind == "cluster")


def keep_all_events(place: Place, queue: str) -> None:
    """Disable trimming of a queue's stream, so that it can be checked at the end."""
    keys = keys_of(place, queue)
    with client(place.owner(keys.meta)) as admin:
        admin.hset(keys.meta, "opts.maxLenEvents", EVENTS_KEPT)

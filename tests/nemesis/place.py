"""Where the play takes place: one server behind a network that can be broken, or several servers.

Replication is asynchronous, so a master that dies takes with it what its replica has not yet got,
acknowledged or not. That is known, and not what is looked for here: before a master is made to
fail, writers are held up until its replica has everything.
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
_HOLD_UP_MS: Final = 30_000  # longer than a failover takes


class Place(Protocol):
    """What a run needs to know of its servers."""

    url: str
    """The way that all actors go, and that can be broken."""
    direct_url: str
    """The way of the operator, who must know how things are."""
    kind: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def for_node(self) -> dict[str, Any]:
        """Give the address as ioredis wants it: see node.mjs."""

    def masters(self) -> list[ServerProcess]:
        """Give the servers that take writes now."""

    def owner(self, key: str) -> ServerProcess:
        """Give the server that has a key."""

    def heal(self) -> None:
        """Undo all faults; return when every server serves."""

    def surprise(self) -> str:
        """Tell what happened to the servers that nobody ordered, so that the run proves nothing."""


class Single:
    """One server that forgets nothing, behind a proxy."""

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
        """Let master and replica change places."""
        self._set.await_ready()
        old = self._hold_up_writers()
        self._expected = self._set.fail_over()
        self._set.await_ready()  # the old one is a replica: what was held up is refused
        with client(old) as admin:
            admin.execute_command("CLIENT", "UNPAUSE")

    def kill_master(self) -> None:
        """Kill -9 the master; return when the other one has taken over, and it is a replica."""
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
        """Let the first master and its replica change places."""
        self._cluster.fail_over()
        self._expected = self._cluster.masters[0].server

    def kill_master(self) -> None:
        """Kill -9 the first master; return when its replica has taken over, and it is one."""
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
    """Let the master take no writes; return when its replica has all that it took."""
    with client(master) as admin, client(replica) as other:
        admin.execute_command("CLIENT", "PAUSE", _HOLD_UP_MS, "WRITE")
        written = int(admin.info("replication")["master_repl_offset"])
        wait_until(
            lambda: int(other.info("replication")["slave_repl_offset"]) >= written,
            "the replica has everything",
        )


def _patient(sentinel: ServerProcess) -> None:
    """Let a sentinel give a master more time than a busy machine may need."""
    with client(sentinel) as admin:
        setting = ("down-after-milliseconds", _PATIENCE_MS)
        admin.execute_command("SENTINEL", "SET", NAME, *setting)


def client(server: ServerProcess) -> redis.Redis:
    """Give a client of the server itself, out of reach of the network's faults."""
    return redis.Redis(
        unix_socket_path=str(server.socket), decode_responses=True, retry=Retry(NoBackoff(), 0)
    )


def keys_of(place: Place, queue: str) -> QueueKeys:
    """Name the keys of a queue."""
    return QueueKeys(queue, PREFIX, place.kind == "cluster")


def keep_all_events(place: Place, queue: str) -> None:
    """Let the stream of a queue forget nothing, so that it can be checked in the end."""
    keys = keys_of(place, queue)
    with client(place.owner(keys.meta)) as admin:
        admin.hset(keys.meta, "opts.maxLenEvents", EVENTS_KEPT)

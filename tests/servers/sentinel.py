"""A real Sentinel set on this machine: a master, a replica, three sentinels, quick to fail over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import redis
from redis.sentinel import Sentinel

from taskbull.store.server_process import HOST, ServerProcess
from tests.servers.waiting import plain_client, wait_until

NAME = "mymaster"
QUORUM = 2

# Do not lower the publish-period. A sentinel waits four times as long before it demotes an unknown
# master, so it would undo the failover of a slower sentinel.
_HASTE = ("info-period", "500", "ask-period", "200")
# A sentinel that got no CPU for two seconds stops acting for 30: on a busy machine, a failover
# would wait for that, perhaps several times.
_NO_TILT = ("tilt-trigger", "20000", "tilt-period", "1000", "min-link-reconnect-period", "1000")
_REPLICATED = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}


class SentinelSet:
    """A Sentinel set that runs for the duration of a `with` block."""

    def __init__(self, binary: Path, *, replicas: int = 1, sentinels: int = 3) -> None:
        self._binary = binary
        self._counts = (replicas, sentinels)
        self._stack = ExitStack()
        self.servers: list[ServerProcess] = []
        self.sentinels: list[ServerProcess] = []

    def __enter__(self) -> Self:
        replicas, sentinels = self._counts
        with self._stack:
            first = self._server(_REPLICATED)
            following = _REPLICATED | {"replicaof": f"{HOST} {first.port}"}
            self.servers = [first, *(self._server(following) for _ in range(replicas))]
            self.sentinels = [self._sentinel(first.port) for _ in range(sentinels)]
            wait_until(self._is_ready, "the sentinels know all servers", 30.0)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The address of the set for taskbull."""
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}/0"

    @property
    def master(self) -> ServerProcess:
        """The master according to all running sentinels. Raises `LookupError` if they disagree."""
        master = self._agreed()
        if master is None:
            raise LookupError("the sentinels do not agree on a master")
        return master

    def await_replicated(self) -> None:
        """Wait until the replicas have the master's current data."""
        master = self.master
        written = int(_run(master, "ROLE")[1])
        followers = [server for server in self.servers if server is not master]
        wait_until(
            lambda: all(int(_run(server, "ROLE")[4]) >= written for server in followers),
            "the replicas have the master's data",
        )

    def fail_over(self) -> ServerProcess:
        """Make the sentinels fail over. Return the new master when all of them know it."""
        self.await_ready()
        old = self.master
        assert _run(self.sentinels[0], "SENTINEL FAILOVER", NAME)
        return self._await_master_other_than(old)

    def kill_master(self) -> ServerProcess:
        """Kill -9 the master. Return the new one when all sentinels know it."""
        self.await_ready()
        old = self.master
        old.kill()
        return self._await_master_other_than(old)

    def heal(self) -> None:
        """Undo what a test did, and empty the servers."""
        self.mend()
        _run(self.master, "FLUSHALL")

    def mend(self) -> None:
        """Restart killed servers, and wait until a failover could succeed. All data stays."""
        for server in (*self.servers, *self.sentinels):
            if server.running:
                server.resume()
            elif server in self.servers:
                self._start(server)
            else:
                server.start()
        wait_until(lambda: self._serving() is not None, "the sentinels agree on the master", 30.0)
        self.await_ready()

    def await_ready(self) -> None:
        """Restart killed servers; return when a failover could succeed and none is in progress."""
        master = self.master
        for server in self.servers:
            if not server.running:
                self._start(server)
            if server is not master and _run(server, "ROLE")[0] == "master":
                # Sentinels do it too, but only after they have watched it for eight seconds.
                _run(server, "REPLICAOF", HOST, str(master.port))
        wait_until(self._is_in_sync, "replicas are in sync", 60.0)
        for server in self.servers:
            _run(server, "CONFIG SET", "replica-priority", "100")
        wait_until(self._is_ready, "sentinels know each other, and replicas are in sync", 60.0)

    def _start(self, server: ServerProcess) -> None:
        """Start a killed server. It is empty, so no sentinel may promote it yet."""
        server.start()
        _run(server, "CONFIG SET", "replica-priority", "0")

    def _agreed(self) -> ServerProcess | None:
        ports = {self._master_port(sentinel) for sentinel in self.sentinels if sentinel.running}
        return next((server for server in self.servers if ports == {server.port}), None)

    def _serving(self) -> ServerProcess | None:
        """Return the master that all agree on, if it is running and knows its role."""
        master = self._agreed()
        alive = master is not None and master.running and _run(master, "ROLE")[0] == "master"
        return master if alive else None

    def _is_in_sync(self) -> bool:
        master = self._serving()
        followers = [server for server in self.servers if server is not master]
        return master is not None and all(_follows(server, master) for server in followers)

    def _is_ready(self) -> bool:
        return self._is_in_sync() and all(map(self._sees_all, self.sentinels))

    def _sees_all(self, sentinel: ServerProcess) -> bool:
        known = _pairs(_run(sentinel, "SENTINEL MASTER", NAME))
        replicas = [_pairs(row) for row in _run(sentinel, "SENTINEL REPLICAS", NAME)]
        following = [(row["flags"], row["slave-priority"]) for row in replicas]
        return (
            known["flags"] == "master"
            and int(known["num-other-sentinels"]) == len(self.sentinels) - 1
            and following == [("slave", "100")] * (len(self.servers) - 1)
        )

    def _await_master_other_than(self, old: ServerProcess) -> ServerProcess:
        # A sentinel that still considers the master down may start another failover.
        wait_until(
            lambda: self._serving() not in (None, old) and all(map(_sees_master, self.sentinels)),
            "the sentinels agree on a new master",
            180.0,
        )
        return self.master

    def _server(self, options: dict[str, str]) -> ServerProcess:
        return self._stack.enter_context(ServerProcess(self._binary, options))

    def _sentinel(self, port: int) -> ServerProcess:
        options = {
            "sentinel monitor": f"{NAME} {HOST} {port} {QUORUM}",
            "sentinel down-after-milliseconds": f"{NAME} 500",
            "sentinel failover-timeout": f"{NAME} 2000",
            "sentinel parallel-syncs": f"{NAME} 1",
        }
        sentinel = ServerProcess(self._binary, options, arguments=("--sentinel",))
        self._stack.enter_context(sentinel)
        # Redis 6.2 has no setting to check more often, so it is slower.
        with suppress(redis.ResponseError):
            _run(sentinel, "SENTINEL DEBUG", *_HASTE, *_NO_TILT)
        return sentinel

    def _master_port(self, sentinel: ServerProcess) -> int:
        return int(_run(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", NAME)[1])


def _sees_master(sentinel: ServerProcess) -> bool:
    return bool(_pairs(_run(sentinel, "SENTINEL MASTER", NAME))["flags"] == "master")


def _follows(server: ServerProcess, master: ServerProcess) -> bool:
    try:
        role = _run(server, "ROLE")
    except redis.ConnectionError:  # A server that becomes a replica closes its connections.
        return False
    return bool(role[0] == "slave" and int(role[2]) == master.port and role[3] == "connected")


def _run(server: ServerProcess, command: str, *arguments: str) -> Any:
    with plain_client(server) as client:
        return client.execute_command(command, *arguments)


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextmanager
def primary_client(sentinels: SentinelSet) -> Iterator[Any]:
    """A client of whichever server is the primary."""
    untyped: Any = Sentinel
    asked = untyped([("127.0.0.1", one.port) for one in sentinels.sentinels])
    client = asked.master_for(NAME)
    try:
        yield client
    finally:
        client.close()
        for sentinel in asked.sentinels:
            sentinel.close()

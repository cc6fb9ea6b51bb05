"""A real cluster on this machine: three masters, and a replica of the first one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from redis.crc import key_slot
from redis.exceptions import ClusterDownError

from taskbull.store.server_process import HOST, ServerProcess
from tests.servers.waiting import plain_client, wait_until

SLOTS = 16_384

# Seconds after which a replica gives up a failover. Masters of Redis 6.2 do not vote again for some
# time after the last failover, so the request may have to be repeated.
_MANUAL_FAILOVER = 5.5

_OPTIONS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    "cluster-config-file": "nodes.conf",
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
}


class Node:
    """One server of the cluster, and a plain client of it that follows no redirection."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = plain_client(server)
        self.id = str(self.run("CLUSTER", "MYID"))

    @property
    def port(self) -> int:
        return self.server.port

    def run(self, *command: str | int) -> Any:
        """Send a command to this node and return its raw reply."""
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.client.close()

    def is_ok(self, nodes: int) -> bool:
        """Return True if this node sees this many nodes and serves all slots."""
        said = self.run("CLUSTER", "INFO").split()
        return "cluster_state:ok" in said and f"cluster_known_nodes:{nodes}" in said

    def refusals(self, code: str) -> int:
        """Count how often this node has answered with an error of that code."""
        for line in self.run("INFO", "errorstats").splitlines():
            if line.startswith(f"errorstat_{code}:"):
                return int(line.partition("count=")[2])
        return 0

    def is_master(self) -> bool:
        return bool(self.run("ROLE")[0] == "master")

    def serves(self, slot: int) -> bool:
        """Return True if this node says that the slot is its own."""
        slots = self.run("CLUSTER", "SLOTS")
        return any(first <= slot <= last and by[2] == self.id for first, last, by, *_ in slots)

    def is_in_sync(self) -> bool:
        """Return True if this replica has its master's data."""
        role = self.run("ROLE")
        return bool(role[0] == "slave" and role[3] == "connected")


class Cluster:
    """A cluster that runs during a `with` block. Starting it takes about three seconds."""

    def __init__(self, binary: Path, *, masters: int = 3, with_replica: bool = True) -> None:
        self._binary = binary
        self._count = masters
        self._with_replica = with_replica
        self._stack = ExitStack()
        self.masters: list[Node] = []
        self.replica: Node | None = None
        self._migrations: list[Migration] = []

    def __enter__(self) -> Self:
        with self._stack:
            self.masters = [self._node() for _ in range(self._count)]
            self._share_slots()
            if self._with_replica:
                self.replica = self._node()
            self._meet()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def nodes(self) -> list[Node]:
        return self.masters + ([self.replica] if self.replica else [])

    @property
    def url(self) -> str:
        """The address of the cluster for taskbull."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.masters)

    def owner(self, key: str) -> Node:
        """Return the master that serves `key` now, according to the masters."""
        slot = slot_of(key)
        for node in self.nodes:
            if node.is_master() and node.serves(slot):
                return node
        raise LookupError(f"no master serves slot {slot}")

    def other_than(self, node: Node) -> Node:
        """Return any other master."""
        return next(other for other in self.masters if other is not node)

    def migrate(self, slot: int, source: Node, target: Node) -> Migration:
        """Start to move a slot. From now on, clients get ASK and TRYAGAIN."""
        migration = Migration(self, slot, source, target)
        self._migrations.append(migration)
        return migration

    def await_replicated(self) -> None:
        """Wait until the replica has the first master's current data."""
        replica = self.replica
        assert replica is not None
        written = int(self.masters[0].run("ROLE")[1])
        wait_until(
            lambda: replica.is_in_sync() and int(replica.run("ROLE")[4]) >= written,
            "the replica has the master's data",
        )

    def fail_over(self) -> tuple[Node, Node]:
        """Swap the first master and its replica. Return the new master and the old one."""
        old, new = self.masters[0], self.replica
        assert new is not None
        wait_until(new.is_in_sync, "the replica has the master's data")
        asked = 0.0

        def changed() -> bool:
            nonlocal asked
            if not new.is_master() and time.monotonic() - asked > _MANUAL_FAILOVER:
                new.run("CLUSTER", "FAILOVER")
                asked = time.monotonic()
            return new.is_master() and old.is_in_sync()

        wait_until(changed, "master and replica have changed", 30.0)
        self._promote()
        return new, old

    def kill_master_with_replica(self) -> tuple[Node, Node]:
        """Kill -9 the first master; return the new and the dead one when the replica serves."""
        old, new = self.masters[0], self.replica
        assert new is not None
        wait_until(new.is_in_sync, "the replica has the master's data")
        old.server.kill()
        wait_until(new.is_master, "the replica has taken over")
        self._promote()
        self.await_ok(except_for=old)
        return new, old

    def heal(self) -> None:
        """Undo what a test did, and empty all nodes."""
        self.mend()
        for node in self.masters:
            node.run("FLUSHALL")

    def mend(self) -> None:
        """Finish migrations, restart killed nodes, and wait until all serve. All data stays."""
        for node in self.nodes:
            if not node.server.running:
                node.server.start()
            node.server.resume()
        self.await_ok()
        while self._migrations:
            self._migrations.pop().finish()
        if self.replica is not None:
            self._settle_roles()

    def await_ok(self, except_for: Node | None = None) -> None:
        """Return when every node sees all nodes and serves."""
        living = [node for node in self.nodes if node is not except_for]
        _all(lambda node: node.is_ok(len(self.nodes)), living, "cluster_state:ok on all nodes")

    def _settle_roles(self) -> None:
        nodes = self.nodes
        wait_until(lambda: sum(n.is_in_sync() for n in nodes) == 1, "one node is a replica")
        self.replica = next(node for node in nodes if node.is_in_sync())
        followed = int(self.replica.run("ROLE")[2])
        masters = (node for node in nodes if node is not self.replica)
        self.masters = sorted(masters, key=lambda node: node.port != followed)

    def _promote(self) -> None:
        assert self.replica is not None
        self.masters[0], self.replica = self.replica, self.masters[0]

    def _node(self) -> Node:
        node = Node(self._stack.enter_context(ServerProcess(self._binary, _OPTIONS)))
        self._stack.callback(node.close)
        return node

    def _share_slots(self) -> None:
        size = -(-SLOTS // self._count)
        for number, node in enumerate(self.masters):
            # Different epochs from the start avoid the resolution of a collision.
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first = number * size
            # Redis 6.2 lacks ADDSLOTSRANGE.
            node.run("CLUSTER", "ADDSLOTS", *range(first, min(first + size, SLOTS)))

    def _meet(self) -> None:
        for node in self.nodes[1:]:
            node.run("CLUSTER", "MEET", HOST, self.masters[0].port)
        _all(lambda node: node.is_ok(len(self.nodes)), self.masters, "all masters serve")
        if self.replica is not None:
            self.replica.run("CLUSTER", "REPLICATE", self.masters[0].id)
            wait_until(self.replica.is_in_sync, "the replica has the master's data")
            self.await_ok()


class Migration:
    """A slot that moves from one master to another. The test controls the progress."""

    def __init__(self, cluster: Cluster, slot: int, source: Node, target: Node) -> None:
        self._cluster = cluster
        self._slot = slot
        self._source = source
        self._target = target
        self._finished = False
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move(self, *keys: str) -> None:
        """Move these keys. The source now replies ASK for them."""
        if keys:
            wait_until(lambda: self._moves(keys), "the source serves")

    def _moves(self, keys: Sequence[str]) -> bool:
        try:
            self._source.run("MIGRATE", HOST, self._target.port, "", 0, 5000, "KEYS", *keys)
        except ClusterDownError:  # The machine stalled, and nodes consider each other dead.
            return False
        return True

    def keys_at_source(self) -> list[str]:
        return list(self._source.run("CLUSTER", "GETKEYSINSLOT", self._slot, 10_000))

    def finish(self) -> None:
        """Move the rest, and update the slot's owner on every master. They reply MOVED."""
        if self._finished:
            return
        self._finished = True
        while keys := self.keys_at_source():
            self.move(*keys[:1000])
        others = [n for n in self._cluster.masters if n not in (self._target, self._source)]
        for node in (
            self._target,
            self._source,
            *others,
        ):  # Start with the target, whose update must not be refused.
            node.run("CLUSTER", "SETSLOT", self._slot, "NODE", self._target.id)


def slot_of(key: str) -> int:
    return key_slot(key.encode())


def _all(condition: Callable[[Node], bool], nodes: Sequence[Node], what: str) -> None:
    wait_until(lambda: all(condition(node) for node in nodes), what)

"""Which server holds a key, for the sync store: always the same one, or a node of a Cluster."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.store.address import Address, Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.locate import locate
from taskbull.store.slot_map import GUIDE_TIMEOUT, READ_SLOTS, SlotMap, is_clustered, no_guide
from taskbull.store.sync_connection import ConnectionPool


class SyncTopology(Protocol):
    """The servers behind an address; as `Topology`, without an event loop. Threads share it."""

    single: bool
    """Whether there is one server at a time: if it is away, no other will serve."""

    only: Endpoint | None
    """That server, if it is known: then no call needs to look for its own."""

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        """Return the server of `key`; raise `ConnectionLost` if there is none now."""
        ...

    def known(self, key: str) -> Endpoint | None:
        """Return the server of `key` if it is known without asking anybody."""
        ...

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        """Return the servers that hold the data."""
        ...

    def moved(self, key: str, endpoint: Endpoint) -> None:
        """Note that `key` lives at `endpoint` now."""
        ...

    def doubt(self) -> None:
        """Look anew for the servers before the next call."""
        ...


def sync_topology(address: Address, pool: ConnectionPool) -> SyncTopology:
    """Return the topology of an address."""
    return SyncClusterNodes(address, pool) if address.clustered else SyncOneServer(address)


class SyncOneServer:
    """A single server, the primary that Sentinel names, or the embedded server."""

    single = True

    def __init__(self, address: Address) -> None:
        self._locate = locate(address)
        self.only: Endpoint | None = None

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        server = self.only
        if server is None:
            server = self.only = self._locate(deadline.left)
        return server

    def known(self, key: str) -> Endpoint | None:
        return self.only

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        return [self.find("", deadline)]

    def moved(self, key: str, endpoint: Endpoint) -> None:
        raise is_clustered(self.only or endpoint)

    def doubt(self) -> None:
        self.only = None


class SyncClusterNodes:
    """The masters of a Redis Cluster."""

    single = False
    only: Endpoint | None = None

    def __init__(self, address: Address, pool: ConnectionPool) -> None:
        self._pool = pool
        self._map = SlotMap(address.endpoints)

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        if (node := self._map.find(key)) is not None:
            return node
        self._draw_map(deadline)
        return self._map.node_of(key)

    def known(self, key: str) -> Endpoint | None:
        return self._map.find(key)

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        self.find("", deadline)  # any key does: it draws the map of all slots
        return self._map.masters

    def moved(self, key: str, endpoint: Endpoint) -> None:
        self._map.move(key, endpoint)

    def doubt(self) -> None:
        self._map.forget()

    def _draw_map(self, deadline: Deadline) -> None:
        """Ask the nodes, one after the other, which slots are where."""
        reasons: list[str] = []
        for node in self._map.guides():
            soon = Deadline(min(deadline.left, GUIDE_TIMEOUT), monotonic)
            try:
                [reply] = self._pool.exchange(node, [READ_SLOTS], soon)
                return self._map.draw(reply, node)
            except (ConnectionLost, MaybeExecuted) as error:
                reasons.append(str(error))
        raise no_guide(reasons)

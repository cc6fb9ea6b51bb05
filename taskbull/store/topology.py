"""Which connection leads to a key: always the same one, or one per node of a Cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from time import monotonic
from typing import Protocol, TypeAlias

from anyio import CapacityLimiter, to_thread
from msgspec import structs

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.store.address import Address, Endpoint
from taskbull.store.connection import Connection
from taskbull.store.deadline import Deadline
from taskbull.store.dialing import ConnectionOptions
from taskbull.store.locate import EMBEDDED_TIMEOUT, locate
from taskbull.store.reconnection import Notify
from taskbull.store.slot_map import (
    GUIDE_TIMEOUT,
    READ_SLOTS,
    SlotMap,
    is_clustered,
    key_slot,
    no_guide,
)

Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a task that lives as long as the store."""


class Topology(Protocol):
    """The servers behind an address, as connections."""

    single: bool
    """Whether there is one server at a time: if it is away, no other will serve."""

    @property
    def only(self) -> Connection | None:
        """The connection to that server: then no call needs to look for its own."""
        ...

    async def find(self, key: str) -> Connection:
        """Return the connection that leads to `key`."""
        ...

    def known(self, key: str) -> Connection | None:
        """Return that connection if it is known without asking anybody."""
        ...

    def node(self, endpoint: Endpoint) -> Connection:
        """Return the connection that leads to `endpoint`."""
        ...

    async def servers(self) -> list[Endpoint]:
        """Return the servers that hold the data."""
        ...

    def moved(self, key: str, endpoint: Endpoint) -> None:
        """Note that `key` lives at `endpoint` now."""
        ...

    def doubt(self) -> None:
        """Look anew for the servers before the next call."""
        ...

    def part(self, key: str) -> str:
        """Return the name of the part of the servers that holds `key`, for reports of outages."""
        ...

    async def endpoint(self, key: str) -> Endpoint:
        """Return the server of `key`, for a connection of one's own."""
        ...


def topology(
    address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
) -> Topology:
    """Return the topology of an address."""
    kind = ClusterNodes if address.clustered else OneServer
    return kind(address, options, spawn, notify)


class OneServer:
    """A single server, the primary that Sentinel names, or the embedded server."""

    single = True

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        self._locate = locate(address)
        self._in_thread = address.topology != "single"
        # Its own, not anyio's, which tasks may hold: whoever waits for Redis in those would keep us
        # from finding it.
        self._threads = CapacityLimiter(inf)
        self.only = Connection(self._resolve, options, notify)
        spawn(self.only.run)

    async def find(self, key: str) -> Connection:
        return self.only

    def known(self, key: str) -> Connection:
        return self.only

    def node(self, endpoint: Endpoint) -> Connection:
        return self.only

    async def servers(self) -> list[Endpoint]:
        return [await self._resolve()]

    def moved(self, key: str, endpoint: Endpoint) -> None:
        raise is_clustered(self.only.endpoint)

    def doubt(self) -> None:
        pass  # it is looked for anew before each connection anyway

    def part(self, key: str) -> str:
        return ""

    async def endpoint(self, key: str) -> Endpoint:
        return await self._resolve()

    async def _resolve(self) -> Endpoint:
        if self._in_thread:
            limit = EMBEDDED_TIMEOUT  # the dialer has a deadline of its own, which is shorter
            return await to_thread.run_sync(
                self._locate, limit, abandon_on_cancel=True, limiter=self._threads
            )
        return self._locate(0)


class ClusterNodes:
    """The masters of a Redis Cluster: one connection each, made when first needed."""

    single = False
    only: Connection | None = None

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        self._options = options
        self._spawn = spawn
        self._notify = notify
        self._nodes: dict[Endpoint, Connection] = {}
        self._map = SlotMap(address.endpoints)

    async def find(self, key: str) -> Connection:
        return self.node(await self.endpoint(key))

    def known(self, key: str) -> Connection | None:
        endpoint = self._map.find(key)
        return None if endpoint is None else self.node(endpoint)

    def node(self, endpoint: Endpoint) -> Connection:
        if (connection := self._nodes.get(endpoint)) is None:

            async def here() -> Endpoint:
                return endpoint

            options = structs.replace(self._options, part=str(endpoint))
            connection = self._nodes[endpoint] = Connection(here, options, self._notify)
            self._spawn(connection.run)
        return connection

    async def servers(self) -> list[Endpoint]:
        await self.endpoint("")  # any key does: it draws the map of all slots
        return self._map.masters

    def moved(self, key: str, endpoint: Endpoint) -> None:
        self._map.move(key, endpoint)

    def doubt(self) -> None:
        self._map.forget()

    def part(self, key: str) -> str:
        return f"slot {key_slot(key)}"

    async def endpoint(self, key: str) -> Endpoint:
        if (node := self._map.find(key)) is not None:
            return node
        await self._draw_map()
        return self._map.node_of(key)

    async def _draw_map(self) -> None:
        """Ask the nodes, one after the other, which slots are where."""
        reasons: list[str] = []
        for endpoint in self._map.guides():
            soon = Deadline(GUIDE_TIMEOUT, monotonic)
            try:
                reply = await self.node(endpoint).execute(READ_SLOTS, soon)
                return self._map.draw(reply, endpoint)
            except (ConnectionLost, MaybeExecuted) as error:
                reasons.append(str(error))
        raise no_guide(reasons)

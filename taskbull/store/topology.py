"""Which connection leads to a key: always the same one, or one per node of a Cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol, TypeAlias

from anyio import CapacityLimiter, current_time, to_thread
from msgspec import structs

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.store.address import Address, Endpoint
from taskbull.store.connection import Connection
from taskbull.store.deadline import Deadline
from taskbull.store.dialing import ConnectionOptions
from taskbull.store.discovery import EMBEDDED_TIMEOUT, locate
from taskbull.store.reconnection import Notify
from taskbull.store.slots import READ_SLOTS, is_clustered, key_slot, read_slots

Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a task that lives as long as the store."""


class Topology(Protocol):
    """The servers behind an address, as connections."""

    single: bool
    """Whether there is one server at a time: if it is away, no other will serve."""

    async def find(self, key: str) -> Connection:
        """Give the connection that leads to `key`."""
        ...

    def known(self, key: str) -> Connection | None:
        """Give the same if it is known without asking anybody."""
        ...

    def node(self, endpoint: Endpoint) -> Connection:
        """Give the connection that leads to `endpoint`."""
        ...

    async def servers(self) -> list[Endpoint]:
        """Return the servers that hold the data."""
        ...

    def moved(self, key: str, endpoint: Endpoint) -> None:
        """Note that `key` lives at `endpoint` now."""
        ...

    def doubt(self) -> None:
        """Take it that what is known of the servers is out of date."""
        ...

    def part(self, key: str) -> str:
        """Name the part of the servers where `key` is, by which its outages are told."""
        ...

    async def endpoint(self, key: str) -> Endpoint:
        """Find the server of `key`, for a connection of one's own."""
        ...


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
        self.connection = Connection(self._resolve, options, notify)
        spawn(self.connection.run)

    async def find(self, key: str) -> Connection:
        return self.connection

    def known(self, key: str) -> Connection:
        return self.connection

    def node(self, endpoint: Endpoint) -> Connection:
        return self.connection

    async def servers(self) -> list[Endpoint]:
        return [await self._resolve()]

    def moved(self, key: str, endpoint: Endpoint) -> None:
        raise is_clustered(self.connection.endpoint)

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

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        self._seeds = address.endpoints
        self._options = options
        self._spawn = spawn
        self._notify = notify
        self._nodes: dict[Endpoint, Connection] = {}
        self._slots: dict[int, Endpoint] = {}
        self._guide: tuple[Endpoint, ...] = ()  # who told the slots the last time

    async def find(self, key: str) -> Connection:
        return self.node(await self.endpoint(key))

    def known(self, key: str) -> Connection | None:
        endpoint = self._slots.get(key_slot(key))
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
        return list(dict.fromkeys(self._slots.values()))

    def moved(self, key: str, endpoint: Endpoint) -> None:
        self._slots[key_slot(key)] = endpoint

    def doubt(self) -> None:
        self._slots.clear()

    def part(self, key: str) -> str:
        return f"slot {key_slot(key)}"

    async def endpoint(self, key: str) -> Endpoint:
        slot = key_slot(key)
        if slot not in self._slots:
            await self._draw_map()
        try:
            return self._slots[slot]
        except KeyError:
            raise ConnectionLost(f"no node of the cluster serves slot {slot} now") from None

    async def _draw_map(self) -> None:
        """Ask the nodes, one after the other, which slots are where."""
        reasons: list[str] = []
        for endpoint in dict.fromkeys((*self._guide, *self._nodes, *self._seeds)):
            try:
                reply = await self.node(endpoint).execute(READ_SLOTS, Deadline(2.0, current_time))
                self._slots = read_slots(reply, endpoint)
                self._guide = (endpoint,)
            except (ConnectionLost, MaybeExecuted) as error:
                reasons.append(str(error))
            else:
                return
        raise ConnectionLost(f"no node of the cluster answers ({'; '.join(reasons)})")

"""One connection through the proxy: two sockets, and the rules for the bytes between them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import cast

from msgspec import Struct

Target = tuple[str, int] | Path

_BUFFER = 1 << 20
_RESET = struct.pack("ii", 1, 0)


class Cut(Enum):
    """Rule that cuts one connection."""

    NEVER = "no order"
    BEFORE_REQUEST = "the next request does not reach the server"
    BEFORE_REPLY = "the server has executed the next request, the client gets no reply"
    AFTER_BYTES = "so many bytes of replies have passed"
    AFTER_REQUEST_BYTES = "so many bytes of requests have passed"


class Orders(Struct):
    """Current rules for all connections of the proxy, and counters."""

    cut: Cut = Cut.NEVER
    containing: bytes = b""
    remaining: int = 0
    swallowing: bool = False
    holding: bool = False
    holding_replies: bool = False
    hold_replies_at: bytes = b""
    swallow_at: bytes = b""
    delay: float = 0.0
    rate: float = 0.0
    accepted: int = 0
    cuts: int = 0


class Link:
    """A client's connection, and the proxy's connection to the server."""

    def __init__(self, target: Target, orders: Orders, links: set[Link], sides: set[Side]) -> None:
        self.client = Side(self, self._request)
        self.server = Side(self, self._reply)
        self.orders = orders
        self.doomed = False  # Its next reply never arrives.
        self._dead = False  # It has lost bytes to a black hole.
        self._target = target
        self._links = links
        self.sides = sides  # All links of the proxy whose sockets are open.
        self._connecting: asyncio.Task[None] | None = None
        # Bytes that arrived before the connection was established.
        self._early: list[bytes] | None = []
        self._held: list[bytes] = []  # Delayed requests.
        self._held_replies: list[bytes] = []

    def opened(self) -> None:
        """Connect to the server. Until then, the client's bytes wait, most of them in the kernel.

        In older Pythons, a transport that is paused immediately still reads once.
        """
        self.orders.accepted += 1
        self._links.add(self)
        self.client.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def reset(self) -> None:
        """Drop both connections immediately. The client sees a reset."""
        self._links.discard(self)
        for side in (self.client, self.server):
            side.abort()

    def forget(self) -> None:
        """Stop forwarding, without closing anything."""
        self._dead = True

    def close(self) -> None:
        """Close both connections after the pending bytes have arrived."""
        self._links.discard(self)
        for side in (self.client, self.server):
            side.finish()

    def lost(self, side: Side) -> None:
        """Handle the loss of one end.

        Delayed requests of a client still arrive. The server does not notice a dead link, so it
        continues to serve a client that has left.
        """
        if side is not self.client or not (self._held or self._dead):
            self.close()

    def deliver(self) -> None:
        """Deliver all delayed bytes, including requests of clients that have left."""
        replies, self._held_replies = self._held_replies, []
        for chunk in replies:
            self.client.send(chunk)
        held, self._held = self._held, []
        for chunk in held:
            self.server.send(chunk)
        if held and not self.client.open:
            self.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if isinstance(self._target, Path):
                await loop.create_unix_connection(lambda: self.server, str(self._target))
            else:
                await loop.create_connection(lambda: self.server, *self._target)
        except OSError:
            self.reset()
            return
        if self in self._links:
            early, self._early = self._early or [], None
            for chunk in early:
                self._request(chunk)
            self.client.hold(held=False)
        else:  # It was cut while it was connecting.
            self.server.abort()

    def _request(self, chunk: bytes) -> None:
        if self._early is not None:
            self._early.append(chunk)
            return
        orders = self.orders
        if orders.swallow_at and orders.swallow_at in chunk:
            orders.swallowing = True
        if orders.hold_replies_at and orders.hold_replies_at in chunk:
            orders.holding_replies = True
        if self._swallows():
            return
        if orders.holding or self._held:
            self._held.append(chunk)
            return
        if orders.cut is Cut.AFTER_REQUEST_BYTES:
            chunk = chunk[: orders.remaining]
            orders.remaining -= len(chunk)
            self.server.send(chunk)
            if orders.remaining == 0:
                self._cut()
                self.close()
            return
        if orders.cut is Cut.BEFORE_REQUEST and orders.containing in chunk:
            self._cut()
            self.reset()
            return
        if orders.cut is Cut.BEFORE_REPLY and orders.containing in chunk:
            self.doomed = True
        self.server.send(chunk)

    def _reply(self, chunk: bytes) -> None:
        orders = self.orders
        if self._swallows():
            return
        if orders.holding_replies or self._held_replies:
            self._held_replies.append(chunk)
            return
        if orders.cut is Cut.BEFORE_REPLY and self.doomed:
            self._cut()
            self.reset()
            return
        if orders.cut is Cut.AFTER_BYTES:
            chunk = chunk[: orders.remaining]
            orders.remaining -= len(chunk)
            self.client.send(chunk)
            if orders.remaining == 0:
                self._cut()
                self.close()  # A reset could overtake the bytes that should arrive.
            return
        self.client.send(chunk)

    def _swallows(self) -> bool:
        self._dead = self._dead or self.orders.swallowing
        return self._dead

    def _cut(self) -> None:
        self.orders.cut = Cut.NEVER
        self.orders.cuts += 1


class Side(asyncio.Protocol):
    """One end of a link: its transport, and the bytes on their way to it."""

    transport: asyncio.Transport

    def __init__(self, link: Link, received: Callable[[bytes], None]) -> None:
        self._link = link
        self._received = received
        self._late: deque[tuple[float, bytes]] = deque()
        self._late_size = 0
        self._open = False
        self._finishing = False
        self._free_at = 0.0  # Time when the previous bytes will have passed.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._open = True
        self._link.sides.add(self)
        if self is self._link.client:
            self._link.opened()

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        self._link.sides.discard(self)
        self._late.clear()
        self._link.lost(self)

    @property
    def open(self) -> bool:
        return self._open

    def pause_writing(self) -> None:
        self._peer.hold(held=True)

    def resume_writing(self) -> None:
        self._peer.hold(held=False)

    def send(self, chunk: bytes) -> None:
        """Write a chunk with the configured delay and rate."""
        orders = self._link.orders
        if not self._open:
            return
        if not orders.delay and not orders.rate and not self._late:
            self.transport.write(chunk)
            return
        loop = asyncio.get_running_loop()
        if orders.rate:
            self._free_at = max(self._free_at, loop.time()) + len(chunk) / orders.rate
        due = max(self._free_at, loop.time()) + orders.delay
        self._late.append((due, chunk))
        self._late_size += len(chunk)
        if self._late_size > _BUFFER:
            self._peer.hold(held=True)
        if len(self._late) == 1:
            loop.call_at(due, self._send_late)

    def hold(self, *, held: bool) -> None:
        """Pause or resume reading from this end."""
        if self._open and not self.transport.is_closing():
            if held:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def finish(self) -> None:
        """Close when all has been sent."""
        self._finishing = True
        if self._open and not self._late:
            self.transport.close()

    def abort(self) -> None:
        """Close immediately, with a reset."""
        self._late.clear()
        if self._open:
            with suppress(OSError):
                if raw := self.transport.get_extra_info("socket"):  # TLS may have dropped it.
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    @property
    def _peer(self) -> Side:
        return self._link.server if self is self._link.client else self._link.client

    def _send_late(self) -> None:
        loop = asyncio.get_running_loop()
        while self._late and self._late[0][0] <= loop.time():
            _, chunk = self._late.popleft()
            self._late_size -= len(chunk)
            self.transport.write(chunk)
        if self._late:
            loop.call_at(self._late[0][0], self._send_late)
        elif self._finishing and self._open:
            self.transport.close()
        if self._late_size <= _BUFFER:
            self._peer.hold(held=False)

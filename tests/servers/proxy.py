"""A TCP proxy in a thread in front of a server, to simulate network faults.

Methods return when their rule is in effect. A connection that lost bytes to a black hole stays
dead, as in a real network. `heal` restores normal behavior for later connections.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from random import Random
from typing import Self, TypeVar

from tests.servers.link import Cut, Link, Orders, Side, Target

T = TypeVar("T")

_ORDER_LIMIT = 60.0


class Proxy:
    """Forwards to `target`. The thread and its connections end with the `with` block."""

    def __init__(self, target: Target, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._target = target
        self._tls = tls
        self._orders = Orders()
        self._links: set[Link] = set()
        self._sides: set[Side] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_ORDER_LIMIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ORDER_LIMIT)
        self._loop.close()

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        """The URL of the server as seen through the proxy."""
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def accepted(self) -> int:
        """Number of connections so far."""
        return self._orders.accepted

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._order(lambda: len(self._links))

    @property
    def cuts(self) -> int:
        """Number of connections cut by `cut_before_request` and similar rules."""
        return self._orders.cuts

    def cut(self) -> None:
        """Reset all connections."""
        self._order(self._reset_all)

    def cut_one(self, random: Random) -> None:
        """Reset one of the connections, if there is one."""
        self._order(lambda: self._reset(random))

    def cut_before_request(self, containing: bytes = b"") -> None:
        """Cut a connection at its next request (with these bytes in it), which is not forwarded."""
        self._order(lambda: self._arm(Cut.BEFORE_REQUEST, containing))

    def cut_before_reply(self, containing: bytes = b"") -> None:
        """Cut a connection when the server replies to its next request: executed, unanswered.

        If other requests are in flight on that connection, the reply may be that of an earlier one.
        """
        self._order(lambda: self._arm(Cut.BEFORE_REPLY, containing))

    def cut_after(self, reply_bytes: int) -> None:
        """Cut the connection that brings the last of this many more bytes of replies."""
        self._order(lambda: self._arm(Cut.AFTER_BYTES, b"", reply_bytes))

    def cut_after_requests(self, request_bytes: int) -> None:
        """Cut the connection that brings the last of this many more bytes of requests."""
        self._order(lambda: self._arm(Cut.AFTER_REQUEST_BYTES, b"", request_bytes))

    def hold_requests(self) -> None:
        """Delay requests until `deliver`, even if the client disconnects before that.

        Its connection to the server stays open until then, as in a network with long queues.
        """
        self._order(lambda: setattr(self._orders, "holding", True))

    def hold_replies(self) -> None:
        """Delay replies until `deliver`. Requests still arrive."""
        self._order(lambda: setattr(self._orders, "holding_replies", True))

    def hold_replies_at(self, containing: bytes) -> None:
        """Delay replies, starting with the next request that contains these bytes."""
        self._order(lambda: setattr(self._orders, "hold_replies_at", containing))

    def deliver(self) -> None:
        """Deliver everything that was delayed, and stop delaying."""
        self._order(self._deliver)

    def black_hole(self) -> None:
        """Accept and drop everything in both directions, without closing anything."""
        self._order(lambda: setattr(self._orders, "swallowing", True))

    def black_hole_at(self, containing: bytes) -> None:
        """Become a black hole at the next request that contains these bytes."""
        self._order(lambda: setattr(self._orders, "swallow_at", containing))

    def forget(self) -> None:
        """Silently drop the open connections. New ones work."""
        self._order(self._forget_all)

    def throttle(self, rate: float) -> None:
        """Limit each connection to this many bytes per second in each direction."""
        self._order(lambda: setattr(self._orders, "rate", rate))

    def slow_down(self, seconds: float) -> None:
        """Delay every chunk in both directions."""
        self._order(lambda: setattr(self._orders, "delay", seconds))

    def heal(self) -> None:
        """Remove all rules. Connections that lost bytes stay dead, and new ones work."""
        self._order(self._withdraw)
        self.accept()

    def refuse(self) -> None:
        """Refuse new connections. Open ones continue."""
        asyncio.run_coroutine_threadsafe(self._stop_listening(), self._loop).result(_ORDER_LIMIT)

    def accept(self) -> None:
        """Accept connections on the same port again."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_ORDER_LIMIT)

    def _order(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(_ORDER_LIMIT)

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        self._listener = await self._loop.create_server(
            lambda: Link(self._target, self._orders, self._links, self._sides).client,
            "127.0.0.1",
            self.port,
            ssl=self._tls,
            backlog=512,
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            for accepting in listener.sockets:
                self._loop.remove_reader(accepting.fileno())
            for _ in range(3):  # A connection that was just accepted still needs its listener.
                await asyncio.sleep(0)
            listener.close()

    def _arm(self, cut: Cut, containing: bytes, remaining: int = 0) -> None:
        self._orders.cut = cut
        self._orders.containing = containing
        self._orders.remaining = remaining
        for link in self._links:
            link.doomed = False

    def _withdraw(self) -> None:
        self._orders.swallowing = False
        self._orders.swallow_at = b""
        self._orders.delay = self._orders.rate = 0.0
        self._arm(Cut.NEVER, b"")
        self._deliver()

    def _deliver(self) -> None:
        self._orders.holding = self._orders.holding_replies = False
        self._orders.hold_replies_at = b""
        for link in list(self._links):
            link.deliver()

    def _reset(self, random: Random) -> None:
        if self._links:
            random.choice(list(self._links)).reset()

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    def _forget_all(self) -> None:
        for link in self._links:
            link.forget()

    async def _end(self) -> None:
        await self._stop_listening()
        self._reset_all()
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for side in list(self._sides):  # A closed link may still have delayed bytes to send.
            side.abort()
        for _ in range(10):  # transports close their sockets in a later round of the loop
            await asyncio.sleep(0)

"""Links: connected sockets that send a pipeline's commands and receive the replies.

`Link` is the interface for asyncio and trio. `AsyncioLink` implements it on asyncio, and
`trio_link` on trio.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast

import anyio

from taskbull.store import sockets
from taskbull.store.address import Endpoint
from taskbull.store.protocol import Pipeline, ProtocolError, Reply
from taskbull.store.sockets import RECEIVE, keep_alive, last_words

# The interface of all links.


BROKEN = (
    *sockets.BROKEN,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)

LEFT = "the connection was left"


class Link(Protocol):
    """A connected socket. One `Connection` owns it from `open_link` to `close`."""

    async def exchange(self, commands: list[bytes]) -> list[Reply]:
        """Send commands, bypassing the queue, and return their replies.

        If the server sends an error and closes the connection, fewer replies are returned. The last
        one is then the error.
        """
        ...

    def kick(self) -> None:
        """Schedule a write of the queued commands."""
        ...

    def push(self) -> None:
        """Write queued commands before this returns, as far as the socket accepts them."""
        ...

    def is_free(self) -> bool:
        """Return True if `write` can be used now."""
        ...

    def write(self, command: bytes) -> None:
        """Write a command to the socket, bypassing the queue."""
        ...

    async def carry(self) -> Exception:
        """Exchange commands and replies until the link is lost; return the cause."""
        ...

    @property
    def unsent(self) -> int:
        """A number that changes whenever the socket accepts more data."""
        ...

    def hold(self, *, held: bool) -> None:
        """Pause sending, or resume it."""
        ...

    def drain(self, reason: str) -> None:
        """Stop sending, and fail the link after the last reply has arrived."""
        ...

    def fail(self, error: Exception) -> None:
        """Abandon the link because of an error."""
        ...

    async def close(self) -> None:
        """Close the socket immediately."""
        ...


def left(reason: str = "") -> Exception:
    """Return the error for a link that was abandoned, with the reason if there is one."""
    return ConnectionAbortedError(f"{LEFT}: {reason}" if reason else LEFT)


# The link on asyncio. It is a protocol, because callbacks can read without waking a task.
#
# A call takes 3.4 µs with 100 callers, compared with 5.7 µs through streams.


async def open_asyncio_link(
    endpoint: Endpoint, address: str, tls: ssl.SSLContext | None, pipeline: Pipeline
) -> Link:
    loop = asyncio.get_running_loop()
    link = AsyncioLink(pipeline, loop)
    if endpoint.path:
        await loop.create_unix_connection(lambda: link, endpoint.path)
    else:
        name = endpoint.host if tls else None
        await loop.create_connection(
            lambda: link, address, endpoint.port, ssl=tls, server_hostname=name
        )
    return link


class AsyncioLink(asyncio.BufferedProtocol):
    """Link on asyncio. Commands queued in one pass of the event loop are written together.

    It receives into its own buffer of `RECEIVE` bytes. asyncio would allocate 256 kB each time.
    """

    def __init__(self, pipeline: Pipeline, loop: asyncio.AbstractEventLoop) -> None:
        self._pipeline = pipeline
        self._loop = loop
        self._lost: asyncio.Future[Exception] = loop.create_future()
        self._transport: asyncio.Transport
        self._buffer = memoryview(bytearray(RECEIVE))
        self._flushing = False
        self._paused = False
        self._held = False
        self._draining: Exception | None = None

    async def exchange(self, commands: list[bytes]) -> list[Reply]:
        replies = [self._loop.create_future() for _ in commands]
        for reply in replies:
            self._pipeline.expect(reply)
        self._transport.write(b"".join(commands))
        try:
            await asyncio.wait([replies[-1], self._lost], return_when=asyncio.FIRST_COMPLETED)
            said = [reply.result() for reply in replies if reply.done()]
            return said if len(said) == len(replies) else last_words(said, self._lost.result())
        finally:
            for reply in replies:
                reply.cancel()

    def kick(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def push(self) -> None:
        self._flush()

    def is_free(self) -> bool:
        return not (self._paused or self._held or self._draining or self._lost.done())

    def write(self, command: bytes) -> None:
        self._transport.write(command)

    def _flush(self) -> None:
        self._flushing = False
        if not self.is_free():
            return
        if data := self._pipeline.take():
            self._transport.write(data)
        if self._pipeline.queued:
            self.kick()

    async def carry(self) -> Exception:
        return await asyncio.shield(self._lost)

    @property
    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def hold(self, *, held: bool) -> None:
        self._held = held
        if not held and self._pipeline.queued:
            self.kick()

    def drain(self, reason: str) -> None:
        self._draining = left(reason)
        if not self._pipeline.sent:
            self.fail(self._draining)

    def fail(self, error: Exception) -> None:
        if not self._lost.done():
            self._lost.set_result(error)
        self._transport.abort()

    async def close(self) -> None:
        self.fail(left())

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._pipeline.feed(bytes(self._buffer[:nbytes]))
        except ProtocolError as error:
            self.fail(error)
        if self._draining and not self._pipeline.sent:
            self.fail(self._draining)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc or anyio.EndOfStream())

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._pipeline.queued:
            self.kick()

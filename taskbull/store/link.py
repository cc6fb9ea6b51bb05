"""One live socket that carries a pipeline: an asyncio protocol, or a stream on trio.

asyncio's protocol callbacks need no task and no wake-up of ours to read (3.4 µs per call at 100
callers, against 5.7 through streams); trio has no such layer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, cast

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from taskbull.store.address import Endpoint
from taskbull.store.backend import Waiter, on_trio, waiters
from taskbull.store.names import addresses_of
from taskbull.store.pipeline import Pipeline, ProtocolError, Reply, ReplyError

BROKEN = (
    OSError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    UnicodeError,  # a name that is no host
)

CLOSED = "the connection was closed by the server"
LEFT = "the connection was left"

RECEIVE = 1 << 18
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,  # ms for which the peer may leave what was sent unacknowledged
}
NEXT_ADDRESS = 1.0
"""Seconds after which the next address of a host is tried."""

PIECE = 1 << 16  # bytes of a write whose progress is seen


class Link(Protocol):
    """A connected socket. Between `open_link` and `close` it belongs to one `Connection`."""

    async def exchange(self, commands: list[bytes]) -> list[Reply]:
        """Send commands past the queue and give their replies; for the handshake.

        Fewer replies, with an error as the last, if the server said why and closed.
        """
        ...

    def kick(self) -> None:
        """Say that the pipeline has commands to send."""
        ...

    async def carry(self) -> Exception:
        """Carry commands and replies until the link is lost; give the reason."""
        ...

    @property
    def unsent(self) -> int:
        """A number that changes when the socket accepts more of what was handed to it."""
        ...

    def hold(self, *, held: bool) -> None:
        """Send nothing more for now, or go on sending."""
        ...

    def drain(self, reason: str) -> None:
        """Send nothing more, and end when the last reply has come."""
        ...

    def fail(self, error: Exception) -> None:
        """Give the link up."""
        ...

    async def close(self) -> None:
        """Close the socket at once."""
        ...


async def open_link(endpoint: Endpoint, tls: ssl.SSLContext | None, pipeline: Pipeline) -> Link:
    """Connect a socket to `endpoint`; raises `OSError` if that cannot be done."""
    open_one = _open_stream_link if on_trio() else _open_protocol_link
    if endpoint.path:
        return await open_one(endpoint, "", tls, pipeline)
    *others, last = await addresses_of(endpoint.host, endpoint.port)
    for address in others:  # such as ::1, where a server listens at 127.0.0.1 only
        with suppress(OSError), anyio.move_on_after(NEXT_ADDRESS):
            return await open_one(endpoint, address, tls, pipeline)
    return await open_one(endpoint, last, tls, pipeline)


async def _open_protocol_link(
    endpoint: Endpoint, address: str, tls: ssl.SSLContext | None, pipeline: Pipeline
) -> Link:
    loop = asyncio.get_running_loop()
    link = ProtocolLink(pipeline, loop)
    if endpoint.path:
        await loop.create_unix_connection(lambda: link, endpoint.path)
    else:
        name = endpoint.host if tls else None
        await loop.create_connection(
            lambda: link, address, endpoint.port, ssl=tls, server_hostname=name
        )
    return link


async def _open_stream_link(
    endpoint: Endpoint, address: str, tls: ssl.SSLContext | None, pipeline: Pipeline
) -> Link:
    from taskbull.store.trio_io import socket_io  # noqa: PLC0415 - trio is optional

    if tls is not None:
        encrypted = await anyio.connect_tcp(
            address,
            endpoint.port,
            ssl_context=tls,
            tls_standard_compatible=False,
            tls_hostname=endpoint.host,
        )
        keep_alive(encrypted.extra(SocketAttribute.raw_socket))
        return StreamLink(pipeline, encrypted, encrypted.send, encrypted.receive)
    stream: SocketStream
    if endpoint.path:
        stream = await anyio.connect_unix(endpoint.path)
    else:
        stream = await anyio.connect_tcp(address, endpoint.port)
    raw = stream.extra(SocketAttribute.raw_socket)
    keep_alive(raw)
    return StreamLink(pipeline, stream, *socket_io(raw))


def keep_alive(raw: socket.socket) -> None:
    """Let the kernel find out about a peer that vanished: it costs no command."""
    if raw.family == socket.AF_UNIX:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # macOS lacks the first and the last
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class ProtocolLink(asyncio.Protocol):
    """The link on asyncio. Commands of one pass of the loop go out in one write."""

    def __init__(self, pipeline: Pipeline, loop: asyncio.AbstractEventLoop) -> None:
        self._pipeline = pipeline
        self._loop = loop
        self._lost: asyncio.Future[Exception] = loop.create_future()
        self._transport: asyncio.Transport
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

    def _flush(self) -> None:
        self._flushing = False
        if self._paused or self._held or self._draining or self._lost.done():
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

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        try:
            self._pipeline.feed(data)
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


class StreamLink:
    """The link over a byte stream: one task writes what has gathered, one reads."""

    def __init__(
        self,
        pipeline: Pipeline,
        stream: ByteStream,
        send: Callable[[bytes], Awaitable[None]],
        receive: Callable[[int], Awaitable[bytes]],
    ) -> None:
        self._pipeline = pipeline
        self._stream = stream
        self._send = send
        self._receive = receive
        self._new_waiter = waiters()
        self._idle: Waiter | None = None
        self._scope = anyio.CancelScope()
        self._held = False
        self._draining: Exception | None = None
        self._pieces = 0
        self._error: Exception = left()

    async def exchange(self, commands: list[bytes]) -> list[Reply]:
        replies = [self._new_waiter() for _ in commands]
        for reply in replies:
            self._pipeline.expect(reply)
        await self._send(b"".join(commands))
        try:
            while not replies[-1].done():
                self._pipeline.feed(await self._receive(RECEIVE))
        except BROKEN as error:
            return last_words([await reply for reply in replies if reply.done()], error)
        return [await reply for reply in replies]

    def kick(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def carry(self) -> Exception:
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._read)
        return self._error

    async def _write(self) -> None:
        pipeline, send = self._pipeline, self._send
        try:
            while True:
                if not (self._draining or self._held) and (data := pipeline.take()):
                    for start in range(0, len(data), PIECE):
                        await send(data[start : start + PIECE])
                        self._pieces += 1
                elif self._draining or self._held or not pipeline.queued:
                    self._idle = self._new_waiter()
                    await self._idle
        except BROKEN as error:
            self.fail(error)

    async def _read(self) -> None:
        pipeline, receive = self._pipeline, self._receive
        try:
            while True:
                pipeline.feed(await receive(RECEIVE))
                if self._draining and not pipeline.sent:
                    self.fail(self._draining)
        except (ProtocolError, *BROKEN) as error:
            self.fail(error)

    @property
    def unsent(self) -> int:
        return self._pieces

    def hold(self, *, held: bool) -> None:
        self._held = held
        if not held:
            self.kick()

    def drain(self, reason: str) -> None:
        self._draining = left(reason)
        if not self._pipeline.sent:
            self.fail(self._draining)

    def fail(self, error: Exception) -> None:
        if not self._scope.cancel_called:
            self._error = error
            self._scope.cancel()

    async def close(self) -> None:
        await anyio.aclose_forcefully(self._stream)


def left(reason: str = "") -> Exception:
    """Make the error of a link that was left, for a reason if there was one."""
    return ConnectionAbortedError(f"{LEFT}: {reason}" if reason else LEFT)


def last_words(replies: list[Reply], error: Exception) -> list[Reply]:
    """Give what a server said before it closed, if that was why; else raise the error."""
    if replies and isinstance(replies[-1], ReplyError):
        return replies
    raise error


def explain(error: Exception) -> str:
    """Say in a few words why there is no connection (any more)."""
    match error:
        case ProtocolError():
            return "the peer does not speak the Redis protocol"
        case anyio.EndOfStream() | anyio.ClosedResourceError() | anyio.BrokenResourceError():
            return CLOSED
        case OSError(errno=int(number)) if number > 0:  # asyncio words them in its own way
            return os.strerror(number)
        case OSError(__cause__=OSError() as cause):  # anyio: all connection attempts failed
            return explain(cause)
        case OSError(__cause__=BaseExceptionGroup(exceptions=[OSError() as first, *_])):
            return explain(first)
        case _:
            return str(error)

"""One live socket that carries a pipeline: an asyncio protocol, or a stream on trio.

asyncio's protocol callbacks need no task and no wake-up of ours to read (3.4 µs per call at 100
callers, against 5.7 through streams); trio has no such layer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, cast

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from taskbull.store import sockets
from taskbull.store.address import Endpoint
from taskbull.store.backend import Waiter, on_trio, waiters
from taskbull.store.names import addresses_of
from taskbull.store.pipeline import Pipeline, ProtocolError, Reply
from taskbull.store.sockets import RECEIVE, keep_alive, last_words

BROKEN = (
    *sockets.BROKEN,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)

LEFT = "the connection was left"

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

    def push(self) -> None:
        """Hand them to the socket before this returns, as far as it takes them."""
        ...

    def is_free(self) -> bool:
        """Tell whether `write` can be used."""
        ...

    def write(self, command: bytes) -> None:
        """Hand a command to the socket, past the queue."""
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
    return StreamLink(pipeline, stream, *socket_io(raw), raw.send)


class ProtocolLink(asyncio.BufferedProtocol):
    """The link on asyncio. Commands of one pass of the loop go out in one write.

    It receives into a buffer of its own: see `RECEIVE`. asyncio would take one of 256 kB each time.
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

    # What asyncio calls:

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


class StreamLink:
    """The link over a byte stream: one task writes what has gathered, one reads."""

    def __init__(
        self,
        pipeline: Pipeline,
        stream: ByteStream,
        send: Callable[[bytes], Awaitable[None]],
        receive: Callable[[int], Awaitable[bytes]],
        send_now: Callable[[bytes], int] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._stream = stream
        self._send = send
        self._receive = receive
        self._send_now = send_now  # where what is sent needs no encryption
        self._rest = b""  # what the socket did not take of it
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

    def push(self) -> None:
        if self.is_free() and (data := self._pipeline.take()):
            self.write(data)
        if self._pipeline.queued:
            self.kick()

    def is_free(self) -> bool:
        if self._send_now is None or self._held or self._draining:
            return False
        return self._idle is not None and not self._idle.done()

    def write(self, command: bytes) -> None:
        try:
            self._rest = command[self._send_now(command[:PIECE]) :] if self._send_now else command
        except BlockingIOError:
            self._rest = command
        except OSError as error:
            self.fail(error)
            return
        self._pieces += 1
        if self._rest:
            self.kick()

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
                data, self._rest = self._rest, b""
                if data or (not (self._draining or self._held) and (data := pipeline.take())):
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

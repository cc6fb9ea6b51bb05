"""The differences between asyncio and trio: tasks, waiters, and links to Redis."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from anyio import CancelScope, CapacityLimiter, create_task_group, move_on_after, to_thread

from taskbull.store import protocol
from taskbull.store.address import Endpoint
from taskbull.store.credentials import Credentials
from taskbull.store.protocol import (
    RECEIVE,
    Pipeline,
    ProtocolError,
    Reply,
    keep_alive,
    replies_before_close,
)
from taskbull.store.protocol import Recipient as Recipient
from taskbull.store.protocol import Waiter as Waiter

# Functions that differ between asyncio and trio: waiters, background tasks, thread wake-ups.
#
# A waiter is asyncio's `Future`, or an equivalent on trio. On asyncio, suspending and resuming a
# task takes 4.6 µs with a future, and 7.3 µs with an `anyio.Event`.


def on_trio() -> bool:
    """Return True if the running event loop is trio's.

    anyio cannot be used here. In a callback of a loop that asyncio started, no task is current, and
    anyio then finds no event loop.
    """
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_task())  # trio's callbacks run in a task


def waiters() -> Callable[[], Waiter]:
    """Return a function that creates waiters for the running event loop."""
    if on_trio():
        from taskbull.store.trio_link import TrioWaiter  # noqa: PLC0415 - trio is optional

        return TrioWaiter
    return asyncio.get_running_loop().create_future


def wake(waiter: Waiter) -> None:
    """Resume the task that awaits a waiter, unless the waiter is already done."""
    if not waiter.done():
        waiter.set_result(None)


def poster() -> Callable[[Callable[[], object]], object]:
    """Return a function that schedules a callback on the running event loop from another thread.

    The function raises `RuntimeError` after the loop has closed.
    """
    if on_trio():
        import trio  # noqa: PLC0415 - trio is optional

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def spawn(run: Callable[[], Awaitable[None]]) -> None:
    """Start a background task that belongs to the event loop and ends with it.

    It suits tasks without a task group, such as a producer's connection. `run` must not raise.
    """
    if on_trio():
        import trio  # noqa: PLC0415 - trio is optional

        trio.lowlevel.spawn_system_task(run)
    else:
        task = asyncio.ensure_future(run())
        _background.add(task)
        task.add_done_callback(_background.discard)


def running_beside(
    run: Callable[[], Coroutine[Any, Any, None]],
) -> AbstractAsyncContextManager[None]:
    """Run a task during an `async with` block, and wait for it at the end of the block.

    If the task fails, the block is cancelled and the error is raised.

    On asyncio, the block may be left in another task than it was entered in, which a task group
    does not allow. pytest-asyncio does this: it runs the two halves of a fixture in different
    tasks. If the first task has finished, the block cannot be cancelled. An error from `run` is
    then raised at the end of the block.
    """
    return _in_task_group(run) if on_trio() else _in_asyncio_task(run)


@asynccontextmanager
async def _in_task_group(
    run: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncGenerator[None, None]:
    async with create_task_group() as tasks:
        tasks.start_soon(run)
        yield


@asynccontextmanager
async def _in_asyncio_task(
    run: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncGenerator[None, None]:
    host, scope = asyncio.current_task(), CancelScope()
    is_over = is_interrupted = False

    async def run_in_scope() -> None:
        with scope:
            await run()

    def interrupt(done: asyncio.Task[None]) -> None:
        nonlocal is_interrupted
        failed = done.cancelled() or done.exception() is not None
        if failed and not is_over and host is not None and not host.done():
            is_interrupted = host.cancel()

    task = asyncio.create_task(run_in_scope())
    task.add_done_callback(interrupt)
    cancelled: asyncio.CancelledError | None = None
    try:
        yield
    except asyncio.CancelledError as error:
        if not (is_interrupted and host is not None and host.uncancel() == 0):
            cancelled = error
        scope.cancel()
    finally:
        is_over = True
        with CancelScope(shield=True):
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
                    scope.cancel()
    if not task.cancelled() and (failure := task.exception()) is not None:
        raise failure
    if cancelled is not None:
        raise cancelled


_background: set[asyncio.Future[None]] = set()  # asyncio itself keeps only weak references


# Links: connected sockets that send a pipeline's commands and receive the replies.
#
# `AsyncioLink` is the link on asyncio. `TrioLink` in `trio_link` has the same methods on trio.


# Errors of all links.


BROKEN = (
    *protocol.BROKEN,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)

LEFT = "the connection was left"


def left(reason: str = "") -> Exception:
    """Return the error for a link that was abandoned, with the reason if there is one."""
    return ConnectionAbortedError(f"{LEFT}: {reason}" if reason else LEFT)


# The link on asyncio. It is a protocol, because callbacks can read without waking a task.
#
# A call takes 3.4 µs with 100 callers, compared with 5.7 µs through streams.


async def open_asyncio_link(
    endpoint: Endpoint, address: str, tls: ssl.SSLContext | None, pipeline: Pipeline
) -> AsyncioLink:
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
        """Send commands, bypassing the queue, and return their replies.

        If the server sends an error and closes the connection, fewer replies are returned. The last
        one is then the error.
        """
        replies = [self._loop.create_future() for _ in commands]
        for reply in replies:
            self._pipeline.expect(reply)
        self._transport.write(b"".join(commands))
        try:
            await asyncio.wait([replies[-1], self._lost], return_when=asyncio.FIRST_COMPLETED)
            said = [reply.result() for reply in replies if reply.done()]
            return (
                said
                if len(said) == len(replies)
                else replies_before_close(said, self._lost.result())
            )
        finally:
            for reply in replies:
                reply.cancel()

    def kick(self) -> None:
        """Schedule a write of the queued commands."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def push(self) -> None:
        """Write queued commands before this returns, as far as the socket accepts them."""
        self._flush()

    def is_free(self) -> bool:
        """Return True if `write` can be used now."""
        return not (self._paused or self._held or self._draining or self._lost.done())

    def write(self, command: bytes) -> None:
        """Write a command to the socket, bypassing the queue."""
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
        """Exchange commands and replies until the link is lost; return the cause."""
        return await asyncio.shield(self._lost)

    @property
    def unsent(self) -> int:
        """A number that changes whenever the socket accepts more data."""
        return self._transport.get_write_buffer_size()

    def hold(self, *, held: bool) -> None:
        """Pause sending, or resume it."""
        self._held = held
        if not held and self._pipeline.queued:
            self.kick()

    def drain(self, reason: str) -> None:
        """Stop sending, and fail the link after the last reply has arrived."""
        self._draining = left(reason)
        if not self._pipeline.sent:
            self.fail(self._draining)

    def fail(self, error: Exception) -> None:
        """Abandon the link because of an error."""
        if not self._lost.done():
            self._lost.set_result(error)
        self._transport.abort()

    async def close(self) -> None:
        """Close the socket immediately."""
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


# Connecting an async socket to a server, trying each address of its host, and credentials.
#
# Host names are resolved in separate threads, and functions that return credentials run there. The
# event loop's threads are few and shared with tasks. If tasks that wait for Redis held all of them,
# the name could never be resolved.


if TYPE_CHECKING:  # trio is optional
    from taskbull.store.trio_link import TrioLink

    Link: TypeAlias = AsyncioLink | TrioLink
    """A connected socket. One `Connection` owns it from `open_link` to `close`."""
else:
    Link = AsyncioLink

NEXT_ADDRESS = 1.0
"""Seconds before the next address of a host is tried."""


async def open_link(endpoint: Endpoint, tls: ssl.SSLContext | None, pipeline: Pipeline) -> Link:
    """Open a link to `endpoint`.

    Raises `OSError` if no address of the host accepts the connection.
    """
    open_one: Callable[[Endpoint, str, ssl.SSLContext | None, Pipeline], Awaitable[Link]]
    open_one = open_asyncio_link
    if on_trio():
        from taskbull.store.trio_link import open_trio_link  # noqa: PLC0415 - trio is optional

        open_one = open_trio_link
    if endpoint.path:
        return await open_one(endpoint, "", tls, pipeline)
    *others, last = await addresses_of(endpoint.host, endpoint.port)
    for address in others:  # for example ::1, if the server listens on 127.0.0.1 only
        with suppress(OSError), move_on_after(NEXT_ADDRESS):
            return await open_one(endpoint, address, tls, pipeline)
    return await open_one(endpoint, last, tls, pipeline)


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the IP addresses of `host`, in order of preference.

    Raises `OSError` if the host has no address.
    """
    try:
        ip_address(host)
    except ValueError:
        own = CapacityLimiter(1)
        return await to_thread.run_sync(_look_up, host, port, abandon_on_cancel=True, limiter=own)
    return [host]


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def ask_credentials(credentials: Credentials) -> Credentials:
    """Return the credentials for a new connection, without blocking the event loop.

    See `Credentials.within`. Raises the same errors.
    """
    provider = credentials.provider
    if provider is None:
        return credentials
    provider.uses_trio = on_trio()
    own = CapacityLimiter(1)
    try:
        # In a list, because trio refuses a thread that returns a coroutine.
        [answer] = await to_thread.run_sync(
            lambda: [provider.ask()], abandon_on_cancel=True, limiter=own
        )
        if isinstance(answer, Awaitable):
            answer = await answer
    except Exception as error:
        raise credentials.failed(error) from error
    return credentials.with_answer(answer)

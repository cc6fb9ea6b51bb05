"""The store for asyncio and trio: runs calls, whatever may go wrong."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from anyio import CapacityLimiter, create_task_group, move_on_after
from msgspec import Struct, structs

from taskbull.errors import ConnectionLost, TaskbullError
from taskbull.scripts.call import Call, Command, Operation, Request, Steps, none_failed
from taskbull.store import backend
from taskbull.store.address import Address, Endpoint
from taskbull.store.async_call import AsyncCall, OutagePolicy, ScriptLoader
from taskbull.store.blocking import BlockingConnection
from taskbull.store.connection import Connection
from taskbull.store.deadline import Deadline
from taskbull.store.dialing import ConnectionOptions
from taskbull.store.direct_call import (
    NONSENSE,
    invalid_reply,
    loading,
    read_replies,
    read_reply,
)
from taskbull.store.drive import Drive
from taskbull.store.pipeline import Note, Reply, ReplyError, pack
from taskbull.store.reconnection import Notify, log_change, time_for
from taskbull.store.topology import Spawn, topology

T = TypeVar("T")

SentOn: TypeAlias = tuple[Connection, int]
"""The link on which a call was sent: its connection, and the generation of the link."""

DEFAULT = ConnectionOptions()

_DIALS = 32
"""Blocking connections that are opened at the same time: if a worker opened those of 1,000 queues
together, none might be ready within its time limit."""


class _Sent(Struct, frozen=True):
    """A call of several that was sent: where, and who waits for its reply."""

    connection: Connection
    waiter: backend.Waiter
    note: Note


class Store:
    """Runs calls against the Redis at an address, from one event loop.

    `open_store` makes one for a block; `ambient_store` one that lives with the event loop.
    """

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        self.address = address
        self._options = options = _for_address(options, address)
        self._notify = notify
        self._loader = ScriptLoader()
        patience = time_for(options.max_reconnect_attempts, options.longest_delay)
        self._policy = OutagePolicy(notify, patience)
        self._topology = topology(address, options, spawn, notify)
        self._only = self._topology.only
        self._dials = CapacityLimiter(_DIALS)

    async def run(
        self,
        operation: Operation[T],
        *,
        timeout: float | None = None,
        total: float | None = None,
    ) -> T:
        """Run one call, or several, and return the result.

        Raises `ConnectionLost` (not executed), `MaybeExecuted`, or `ServerRefused`. Without a
        `timeout` it waits for Redis to come back, as long as that takes. `timeout` is for each
        call, over all tries: what works in pieces may take long, as long as the pieces come.
        `total` is for everything.
        """
        limit = timeout if total is None else total
        if isinstance(operation, Call | Command):
            return await self._run(operation, limit)
        deadline = Deadline(limit, monotonic)
        return await self.complete(Drive(operation, deadline, renew=total is None))

    async def _run(self, call: Request[T], timeout: float | None = None) -> T:
        only = self._only
        if timeout is not None or only is None or only.full:
            return await self.run_within(call, Deadline(timeout, monotonic))
        generation = only.generation
        reply = await only.submit(pack(call.words))
        if isinstance(reply, ReplyError):
            reply = await self._calling(call).go_on(only, generation, reply)
        try:
            return call.parse(reply)
        except TaskbullError:
            raise
        except NONSENSE as error:
            raise invalid_reply(self.address, reply) from error

    def start(
        self, call: Request[Any], waiter: backend.Recipient, note: Note | None = None
    ) -> SentOn | None:
        """Send a call before this returns; `waiter` gets its raw reply.

        Pass an error reply on to `finish`. Do the same with a call for which this returns None,
        because it cannot be sent without waiting.
        """
        only = self._only
        connection = self._topology.known(call.key) if only is None else only
        if connection is None or not connection.ready:
            return None
        words = call.cluster_words if only is None else call.words
        connection.send(pack(words), waiter, note)
        return connection, connection.generation

    async def finish(
        self,
        call: Request[T],
        sent_on: SentOn | None,
        reply: Reply,
        deadline: Deadline | None = None,
    ) -> T:
        """Return the result of a call that was started, whatever came of it."""
        if sent_on is None:
            return await self._run(call)
        if isinstance(reply, ReplyError) or self._may_go_on(reply):
            reply = await self._calling(call, deadline).go_on(*sent_on, reply)
        elif isinstance(reply, BaseException):
            raise reply
        return read_reply(call, reply, self.address)

    def _may_go_on(self, error: object) -> bool:
        """Return whether another node may run a call that was surely not executed."""
        return self._only is None and isinstance(error, ConnectionLost)

    async def run_all(
        self, calls: Sequence[Request[T]], *, timeout: float | None = None
    ) -> list[T]:
        """Run several calls in one trip; results in order. If some fail, the first error is raised
        when all have ended. `timeout` is for everything."""
        return none_failed(await self.run_each(calls, timeout=timeout))

    async def run_each(
        self, calls: Sequence[Request[T]], *, timeout: float | None = None
    ) -> list[T | TaskbullError]:
        """Run several calls in one trip; results in order, errors instead of those that failed."""
        deadline = Deadline(timeout, monotonic)
        sent: list[_Sent | None] = []
        results: dict[int, T | TaskbullError] = {}
        try:
            for call in calls:
                sent.append(await self._submit(call, deadline))  # noqa: PERF401 - if cancelled, see below
            # Nodes that cannot be reached take all the time that there is: they come last.
            for place in sorted(range(len(calls)), key=lambda each: sent[each] is None):
                call, one = calls[place], sent[place]
                try:
                    if one:
                        reply = await self._reply(call, one, deadline)
                    else:
                        reply = await self._calling(call, deadline).run()
                    results[place] = read_reply(call, reply, self.address)
                except TaskbullError as error:
                    results[place] = error
        finally:
            for one in sent:
                if one:
                    one.waiter.cancel()
        return [results[place] for place in range(len(calls))]

    async def _submit(self, call: Request[Any], deadline: Deadline) -> _Sent | None:
        """Send a call; return None if no node of a Cluster can be reached for it now."""
        connection, words = self._only, call.words
        if connection is None:
            words = call.cluster_words
            try:
                connection = await self._topology.find(call.key)
            except ConnectionLost:
                return None
        if connection.full:
            with move_on_after(deadline.timeout):
                await connection.room()
        note = Note()
        return _Sent(connection, connection.submit(pack(words), note), note)

    async def go_on(self, steps: Steps[T], deadline: Deadline, failed: TaskbullError) -> T:
        """Run an operation whose first call was made already, and failed."""
        drive = Drive(steps, deadline)
        drive.fail(failed)
        return await self.complete(drive)

    async def complete(self, drive: Drive[T]) -> T:
        """Make the calls of an operation until it returns."""
        while drive.asks:
            with drive:
                call = drive.request()
                if drive.deadline.seconds is None:
                    drive.answer = await self._run(call)
                else:
                    drive.answer = await self.run_within(call, drive.deadline)
        return drive.result

    async def run_within(self, call: Request[T], deadline: Deadline) -> T:
        """Run one call and return its result; as `run`, with a deadline that others may share."""
        only = self._only
        if only is None:
            return read_reply(call, await self._calling(call, deadline).run(), self.address)
        generation = only.generation
        reply = await only.execute(pack(call.words), deadline)
        if isinstance(reply, ReplyError):
            reply = await self._calling(call, deadline).go_on(only, generation, reply)
        try:
            return call.parse(reply)
        except TaskbullError:
            raise
        except NONSENSE as error:
            raise invalid_reply(self.address, reply) from error

    async def servers(self, *, timeout: float | None = None) -> list[Endpoint]:
        """Return the servers that hold the data: one, or the masters of a Cluster."""
        with move_on_after(timeout):
            return await self._topology.servers()
        raise self._not_found(timeout)

    async def server_of(self, key: str, *, timeout: float | None = None) -> Endpoint:
        """Return the server that holds a key."""
        with move_on_after(timeout):
            return await self._topology.endpoint(key)
        raise self._not_found(timeout)

    async def run_on(
        self, server: Endpoint, call: Request[T], *, timeout: float | None = None
    ) -> T:
        """Run one call on one of the servers; nothing is tried again, nor anywhere else."""
        connection, deadline = self._topology.node(server), Deadline(timeout, monotonic)
        commands = (*loading(call), call.words)
        replies = [await connection.execute(pack(each), deadline) for each in commands]
        return read_replies(call, replies, server)

    def _not_found(self, timeout: float | None) -> ConnectionLost:
        within = Deadline(timeout, monotonic)
        return ConnectionLost(f"Redis at {self.address} could not be reached{within}")

    async def _reply(self, call: Request[Any], sent: _Sent, deadline: Deadline) -> Reply:
        connection, generation = sent.connection, sent.connection.generation
        try:
            reply = await connection.reply(sent.waiter, sent.note, deadline)
        except ConnectionLost as error:
            if not self._may_go_on(error):
                raise
            reply = error
        if isinstance(reply, ReplyError | ConnectionLost):
            return await self._calling(call, deadline).go_on(connection, generation, reply)
        return reply

    def _calling(self, call: Request[Any], deadline: Deadline | None = None) -> AsyncCall:
        deadline = Deadline(None, monotonic) if deadline is None else deadline
        return AsyncCall(call, self._topology, self._loader, self._policy, deadline)

    def blocking(self, key: str, name: str = "") -> BlockingConnection:
        """Return a connection for blocking commands on `key`; CLIENT LIST shows its `name`."""

        async def resolve() -> Endpoint:
            return await self._topology.endpoint(key)

        part, name = self._topology.part(key), name or self.address.client_name
        options = structs.replace(self._options, name=name, insist=True, part=part)
        return BlockingConnection(resolve, self._topology.doubt, options, self._notify, self._dials)


@asynccontextmanager
async def open_store(
    address: Address, options: ConnectionOptions = DEFAULT, notify: Notify = log_change
) -> AsyncGenerator[Store, None]:
    """Open a store for a block, which `ConnectionLost` ends when the attempts are used up."""
    failure: Exception | None = None
    async with create_task_group() as tasks:

        async def carry(run: Callable[[], Awaitable[None]]) -> None:
            nonlocal failure
            try:
                await run()
            except ConnectionLost as error:
                failure = error
                tasks.cancel_scope.cancel()

        def spawn(run: Callable[[], Awaitable[None]]) -> None:
            tasks.start_soon(carry, run)

        try:
            yield Store(address, options, spawn, notify)
        except Exception as error:  # noqa: BLE001 - raised below, outside of the group's wrapping
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def ambient_store(
    address: Address, options: ConnectionOptions = DEFAULT, notify: Notify = log_change
) -> Store:
    """Return a store that needs no block: its tasks belong to the running event loop."""

    def spawn(run: Callable[[], Awaitable[None]]) -> None:
        async def carry() -> None:
            with suppress(ConnectionLost):  # whoever waited was told
                await run()

        backend.spawn(carry)

    return Store(address, options, spawn, notify)


def _for_address(options: ConnectionOptions, address: Address) -> ConnectionOptions:
    return structs.replace(
        options,
        credentials=address.credentials,
        where=str(address),
        name=address.client_name,
        connect_timeout=address.connect_timeout or options.connect_timeout,
        response_timeout=address.response_timeout or options.response_timeout,
        db=address.db,
        tls=address.tls.context() if address.tls else None,
        primary_only=address.primary_only,
        insist=not address.clustered,
    )

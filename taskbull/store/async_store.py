"""The store for asyncio and trio, which runs calls and retries them safely.

A `Topology` finds the connection for a key, `AsyncCall` runs a call that needs more than one step,
`Store` runs calls and operations, and `PendingOperation` is an operation in flight.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from anyio import (
    CapacityLimiter,
    Event,
    create_task_group,
    current_time,
    move_on_after,
    sleep,
    to_thread,
)
from msgspec import Struct, structs

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerUnavailable, TaskbullError
from taskbull.scripts.call import (
    ONE_CALL,
    AnyRequest,
    AnySteps,
    Call,
    Command,
    Pending,
    Request,
    Script,
    Steps,
    none_failed,
)
from taskbull.store import backend, cluster
from taskbull.store.address import Address, Endpoint
from taskbull.store.backend import Waiter, waiters
from taskbull.store.connection import (
    BlockingConnection,
    Connected,
    Connection,
    ConnectionOptions,
    DialFailed,
    Notify,
    log_change,
    time_for,
)
from taskbull.store.protocol import (
    Deadline,
    Drive,
    Leave,
    Load,
    Moved,
    Note,
    Pause,
    Replied,
    Reply,
    ReplyError,
    Send,
    Step,
    loading,
    pack,
    read_replies,
    read_reply,
    redeliver,
    time_to_finish,
    unreachable,
)
from taskbull.store.sync_store import EMBEDDED_TIMEOUT, locate

# Topologies: one connection for all keys, or one per node of a Cluster.


Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]
"""Function that starts a task for the lifetime of the store."""


class OneServer:
    """A single server, the primary that Sentinel names, or the embedded server."""

    single = True  # No other server can replace it while it is down.

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        self._locate = locate(address)
        self._in_thread = address.topology != "single"
        # A separate limiter. If tasks that wait for Redis held all of anyio's threads, the server
        # could never be located.
        self._threads = CapacityLimiter(inf)
        self.only = Connection(self._resolve, options, notify)
        spawn(self.only.run)

    async def find(self, key: str) -> Connection:
        return self.only

    def known_connection(self, key: str) -> Connection:
        return self.only

    def node(self, endpoint: Endpoint) -> Connection:
        return self.only

    async def servers(self) -> list[Endpoint]:
        return [await self._resolve()]

    def moved(self, key: str, endpoint: Endpoint) -> None:
        raise cluster.is_clustered(self.only.endpoint)

    def mark_stale(self) -> None:
        pass  # the server is located before each connection anyway

    def part(self, key: str) -> str:
        return ""

    async def endpoint(self, key: str) -> Endpoint:
        return await self._resolve()

    async def _resolve(self) -> Endpoint:
        if self._in_thread:
            limit = EMBEDDED_TIMEOUT  # the dialer has its own limit, usually shorter
            return await to_thread.run_sync(
                self._locate, limit, abandon_on_cancel=True, limiter=self._threads
            )
        return self._locate(0)


class ClusterNodes(cluster.SlotMap):
    """The masters of a Redis Cluster, with one connection each, created on first use."""

    single = False
    only: Connection | None = None

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        super().__init__(address.endpoints)
        self._options = options
        self._spawn = spawn
        self._notify = notify
        self._connections: dict[Endpoint, Connection] = {}

    async def find(self, key: str) -> Connection:
        """Return the connection to the server that holds `key`."""
        return self.node(await self.endpoint(key))

    def known_connection(self, key: str) -> Connection | None:
        """Return the connection for `key`, or None if finding it needs I/O."""
        endpoint = self.known(key)
        return None if endpoint is None else self.node(endpoint)

    def node(self, endpoint: Endpoint) -> Connection:
        """Return the connection to the server at `endpoint`."""
        if (connection := self._connections.get(endpoint)) is None:

            async def here() -> Endpoint:
                return endpoint

            options = structs.replace(self._options, part=str(endpoint))
            connection = self._connections[endpoint] = Connection(here, options, self._notify)
            self._spawn(connection.run)
        return connection

    async def servers(self) -> list[Endpoint]:
        """Return the servers that hold the data."""
        await self.endpoint("")  # any key will do, because this reads all slots
        return self.masters

    def part(self, key: str) -> str:
        """Return the name of the Cluster part that holds `key`, for outage reports."""
        return f"slot {cluster.key_slot(key)}"

    async def endpoint(self, key: str) -> Endpoint:
        """Return the endpoint of the server that holds `key`, for a separate connection."""
        if (node := self.known(key)) is not None:
            return node
        await self._draw_map()
        return self.node_of(key)

    async def _draw_map(self) -> None:
        """Ask the nodes for the slots, one after the other, until one answers."""
        reasons: list[str] = []
        for endpoint in self.nodes_to_ask():
            soon = Deadline(cluster.GUIDE_TIMEOUT, monotonic)
            try:
                reply = await self.node(endpoint).execute(cluster.READ_SLOTS, soon)
                return self.draw(reply, endpoint)
            except (ConnectionLost, MaybeExecuted) as error:
                reasons.append(str(error))
        raise cluster.no_node_answers(reasons)


Topology: TypeAlias = OneServer | ClusterNodes
"""The connections to the servers at an address."""


# A call that needs more than one step, for example because of an error reply.


NOWHERE = Endpoint()


class ScriptLoader:
    """Loader of scripts. Concurrent calls that need the same script share one load."""

    def __init__(self) -> None:
        self._loading: dict[tuple[Endpoint, str], Event] = {}
        self._loaded: set[tuple[Endpoint, str]] = set()

    async def load(
        self, connection: Connection, script: Script, deadline: Deadline, *, again: bool
    ) -> Reply | None:
        """Load a script, or wait while another call loads it; return the reply if it is an error.

        A script that was loaded before is loaded again only with `again`. Without it, the call was
        probably sent before the script was loaded, and only needs to be resent.
        """
        what = (connection.endpoint, script.sha)
        if what in self._loaded and not again:
            return None
        if (loading := self._loading.get(what)) is not None:
            with move_on_after(deadline.timeout):
                await loading.wait()
            return None
        self._loading[what] = loaded = Event()
        try:
            load = pack(("SCRIPT", "LOAD", script.source))
            reply = await connection.execute(load, deadline)
            if isinstance(reply, ReplyError):
                return reply
            self._loaded.add(what)
            return None
        except ConnectionLost as error:
            return error
        except MaybeExecuted:
            return None  # if the script is still missing, the call gets NOSCRIPT again
        finally:
            del self._loading[what]
            loaded.set()


class Outage:
    """A part of a Cluster that one call cannot reach. It is reported at growing intervals."""

    def __init__(self, notify: Notify, patience: float, part: str) -> None:
        self._notify = notify
        self._part = part
        self._until = current_time() + patience
        self._failures = 0
        self._reason = ""

    def go_on(self, error: ConnectionLost) -> None:
        """Count a failed attempt; raise its error if the patience is used up."""
        self._failures += 1
        self._reason = str(error)
        if current_time() > self._until:
            raise error

    def wait(self, delay: float) -> None:
        """Report the pause before the next attempt, for the 1st, 2nd, 4th, 8th failure."""
        if self._failures.bit_count() == 1:
            self._notify(DialFailed(self._reason, self._failures, delay, self._part))

    def end(self, node: Endpoint) -> None:
        """Report that a node answers again."""
        self._notify(Connected(str(node), self._failures, self._part))


class AsyncCall:
    """One call, with its deadline, retries and redirections."""

    def __init__(
        self,
        call: Request[Any],
        topology: Topology,
        loader: ScriptLoader,
        new_outage: Callable[[str], Outage],
        deadline: Deadline,
    ) -> None:
        self._call = call
        self._topology = topology
        self._loader = loader
        self._new_outage = new_outage
        self._command = pack(call.words if topology.single else call.cluster_words)
        self._deadline = deadline
        self._generation = 0
        self._unknown = False  # True after the first NOSCRIPT reply
        self._outage: Outage | None = None

    async def run(self) -> Reply:
        """Send the call and return its reply."""
        return await self._finish_call(await self._send(Send()))

    async def go_on(self, connection: Connection, generation: int, reply: Reply) -> Reply:
        """Continue after an error reply that came on this generation of the link."""
        self._generation = generation
        return await self._finish_call((connection.endpoint, reply))

    async def _finish_call(self, replied: Replied) -> Reply:
        redelivery = redeliver(replied, self._deadline)
        try:
            step = next(redelivery)
            while True:
                step = redelivery.send(await self._perform(step))
        except StopIteration as end:
            return end.value

    async def _perform(self, step: Step) -> Any:
        match step:
            case Send():
                return await self._send(step)
            case Load(node):
                if self._call.script is not None:
                    again, self._unknown = self._unknown, True
                    connection = self._topology.node(node)
                    script = self._call.script
                    return await self._loader.load(connection, script, self._deadline, again=again)
            case Moved(node):
                self._topology.moved(self._call.key, node)
            case Leave(node, reason):
                if node != NOWHERE:
                    self._topology.node(node).leave(self._generation, reason)
                self._topology.mark_stale()
            case Pause(seconds):
                if self._outage is not None:
                    self._outage.wait(seconds)
                await sleep(seconds)
        return None

    async def _find(self, node: Endpoint | None) -> Connection:
        if node is not None:
            return self._topology.node(node)
        with move_on_after(self._deadline.timeout):
            return await self._topology.find(self._call.key)
        raise ConnectionLost(f"no node of the cluster was found{self._deadline}")

    async def _send(self, step: Send) -> Replied:
        node = step.node or NOWHERE
        try:
            connection = await self._find(step.node)
            self._generation = connection.generation
            reply = await connection.execute(self._command, self._deadline, asking=step.asking)
            node = connection.endpoint
        except ConnectionLost as error:
            if self._topology.single:  # the connection has already waited for the server
                raise
            self._note_failure(error)
            reply = error  # another node may have taken over
        else:
            if self._outage is not None:
                self._outage.end(node)
                self._outage = None
        return node, reply

    def _note_failure(self, error: ConnectionLost) -> None:
        if self._deadline.seconds is not None:
            return  # the deadline limits the attempts
        if self._outage is None:
            self._outage = self._new_outage(self._topology.part(self._call.key))
        self._outage.go_on(error)


# The store.


T = TypeVar("T")

SentOn: TypeAlias = tuple[Connection, int]
"""The link that a call was sent on: the connection and the link's generation."""

DEFAULT = ConnectionOptions()

_DIALS = 32
"""Maximum number of blocking connections that are opened concurrently.

If a worker opened those of 1,000 queues together, none might be ready within its time limit.
"""


class _Sent(Struct, frozen=True):
    """A call that was sent by `run_each`, and the waiter for its reply."""

    connection: Connection
    waiter: backend.Waiter
    note: Note


class Store:
    """Store that runs calls against the Redis at an address, from one event loop.

    `open_store` opens one for a block. `ambient_store` returns one that lives as long as the event
    loop.
    """

    def __init__(
        self, address: Address, options: ConnectionOptions, spawn: Spawn, notify: Notify
    ) -> None:
        self.address = address
        self._options = options = _for_address(options, address)
        self._notify = notify
        self._loader = ScriptLoader()
        patience = time_for(options.max_reconnect_attempts, options.longest_delay)
        self._new_outage = partial(Outage, notify, patience)
        kind = ClusterNodes if address.clustered else OneServer
        self._topology: Topology = kind(address, options, spawn, notify)
        self._only = self._topology.only
        self._dials = CapacityLimiter(_DIALS)

    async def run(
        self,
        operation: Request[T] | AnySteps[T],
        *,
        timeout: float | None = None,
        total: float | None = None,
    ) -> T:
        """Run a call, or an operation of several calls, and return the result.

        `timeout` limits each call, including its retries, so an operation that works in chunks may
        take longer. `total` limits the whole operation. Without either, this waits until Redis is
        reachable again or the reconnect attempts are used up. A server that is reachable but cannot
        serve is retried for `delivery.PATIENCE` seconds.

        Raises `ConnectionLost` (not executed), `MaybeExecuted` or `ServerRefused`.
        """
        deadline = Deadline(timeout if total is None else total, monotonic)
        if isinstance(operation, Call | Command):
            return await self.run_within(operation, deadline)
        return await self.complete(Drive(operation, deadline, renew=total is None))

    def start(
        self, call: Request[Any], waiter: backend.Recipient, note: Note | None = None
    ) -> SentOn | None:
        """Send a call before this returns. Its raw reply goes to `waiter`.

        Returns None if the call cannot be sent without waiting. Pass such a call, or an error
        reply, to `finish`.
        """
        only = self._only
        connection = self._topology.known_connection(call.key) if only is None else only
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
        """Return the result of a call that was started, retrying it if necessary."""
        if sent_on is None:
            return await self.run_within(call, Deadline(None, monotonic))
        if isinstance(reply, ReplyError) or self._may_try_next_node(reply):
            reply = await self._calling(call, deadline).go_on(*sent_on, reply)
        elif isinstance(reply, BaseException):
            raise reply
        return read_reply(call, reply, self.address)

    def _may_try_next_node(self, error: object) -> bool:
        """Return True if another node may run a call that was not executed."""
        return self._only is None and isinstance(error, ConnectionLost)

    async def run_all(
        self, calls: Sequence[Request[T]], *, timeout: float | None = None
    ) -> list[T]:
        """Run several calls in one round trip, and return the results in order.

        If calls fail, the first error is raised after all have finished. `timeout` limits all calls
        together.
        """
        return none_failed(await self.run_each(calls, timeout=timeout))

    async def run_each(
        self, calls: Sequence[Request[T]], *, timeout: float | None = None
    ) -> list[T | TaskbullError]:
        """Run several calls in one round trip, and return the results in order.

        A failed call has its error as its result. `timeout` limits all calls together.
        """
        deadline = Deadline(timeout, monotonic)
        sent: list[_Sent | None] = []
        results: dict[int, T | TaskbullError] = {}
        try:
            for call in calls:
                sent.append(await self._submit(call, deadline))  # noqa: PERF401 - `finally` needs a partial list
            # Handle unreachable nodes last, because they use all the time that is left.
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
        """Send a call; return None if no Cluster node can be found for it now."""
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
        """Continue an operation whose first call has already failed."""
        drive = Drive(steps, deadline)
        drive.fail(failed)
        return await self.complete(drive)

    async def complete(self, drive: Drive[T]) -> T:
        """Run the remaining calls of an operation, and return its result."""
        while drive.asks:
            with drive:
                request: AnyRequest = drive.request()
                if not isinstance(request, ONE_CALL):
                    drive.answer = await request.serve(self, drive.deadline.seconds)
                else:
                    drive.answer = await self.run_within(request, drive.deadline)
        return drive.result

    async def begin(
        self, steps: Steps[T], behind: Pending | None = None, *, timeout: float | None = None
    ) -> PendingOperation[T]:
        """Send the first call of an operation if possible, after all calls in flight.

        `behind` and `timeout` are for `SyncStore`: here, each call follows the earlier ones.
        """
        return PendingOperation(self, steps)

    async def read_many(
        self, calls: Sequence[Request[Any]], *, each: bool, timeout: float | None
    ) -> list[Any]:
        """Run the calls of a `Many` request, and repeat those that may be unanswered."""
        deadline = Deadline(timeout, monotonic)
        answers: list[Any] = [None] * len(calls)
        places = list(range(len(calls)))
        while places:
            found = await self.run_each(
                [calls[place] for place in places], timeout=deadline.timeout
            )
            unanswered: list[int] = []
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
                if isinstance(answer, MaybeExecuted | ServerUnavailable):
                    if deadline.too_late_after(answer):
                        answers[place] = ConnectionLost(str(answer))
                    else:
                        unanswered.append(place)
            places = unanswered
        return answers if each else none_failed(answers)

    async def run_within(self, call: Request[T], deadline: Deadline) -> T:
        """Run one call and return its result, with a deadline that calls can share.

        Raises the same errors as `run`.
        """
        only = self._only
        if only is None:
            return read_reply(call, await self._calling(call, deadline).run(), self.address)
        generation = only.generation
        reply = await only.execute(pack(call.words), deadline)
        if isinstance(reply, ReplyError):
            reply = await self._calling(call, deadline).go_on(only, generation, reply)
        return read_reply(call, reply, self.address)

    async def servers(self, *, timeout: float | None = None) -> list[Endpoint]:
        """Return the servers that hold the data: one server, or the masters of a Cluster."""
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
        """Run one call on one server, without retries or redirections."""
        connection, deadline = self._topology.node(server), Deadline(timeout, monotonic)
        commands = (*loading(call), call.words)
        replies = [await connection.execute(pack(each), deadline) for each in commands]
        return read_replies(call, replies, server)

    def _not_found(self, timeout: float | None) -> ConnectionLost:
        within = Deadline(timeout, monotonic)
        return unreachable(f"Redis at {self.address}", within, "")

    async def _reply(self, call: Request[Any], sent: _Sent, deadline: Deadline) -> Reply:
        connection, generation = sent.connection, sent.connection.generation
        try:
            reply = await connection.reply(sent.waiter, sent.note, deadline)
        except ConnectionLost as error:
            if not self._may_try_next_node(error):
                raise
            reply = error
        if isinstance(reply, ReplyError | ConnectionLost):
            return await self._calling(call, deadline).go_on(connection, generation, reply)
        return reply

    def _calling(self, call: Request[Any], deadline: Deadline | None = None) -> AsyncCall:
        deadline = Deadline(None, monotonic) if deadline is None else deadline
        return AsyncCall(call, self._topology, self._loader, self._new_outage, deadline)

    def blocking(self, key: str, name: str = "") -> BlockingConnection:
        """Return a connection for blocking commands on `key`. CLIENT LIST shows its `name`."""

        async def resolve() -> Endpoint:
            return await self._topology.endpoint(key)

        part, name = self._topology.part(key), name or self.address.client_name
        options = structs.replace(self._options, name=name, keep_trying=True, part=part)
        return BlockingConnection(
            resolve, self._topology.mark_stale, options, self._notify, self._dials
        )


@asynccontextmanager
async def open_store(
    address: Address, options: ConnectionOptions = DEFAULT, notify: Notify = log_change
) -> AsyncGenerator[Store, None]:
    """Open a store for the duration of an `async with` block.

    When the reconnect attempts are used up, the block is cancelled and `ConnectionLost` is raised.
    """
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
        except Exception as error:  # noqa: BLE001 - raised below, not in an ExceptionGroup
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def ambient_store(address: Address, options: ConnectionOptions = DEFAULT) -> Store:
    """Return a store that needs no block, because its tasks belong to the running event loop."""

    def spawn(run: Callable[[], Awaitable[None]]) -> None:
        async def carry() -> None:
            with suppress(ConnectionLost):  # the waiting callers got the error
                await run()

        backend.spawn(carry)

    return Store(address, options, spawn, log_change)


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
        keep_trying=not address.clustered,
    )


# Operations that run concurrently.


class PendingOperation(Generic[T]):
    """An operation whose first call was sent, if that was possible without waiting.

    The call follows all earlier calls to the same server. Its reply is kept until `finish`.
    """

    def __init__(self, store: Store, steps: Steps[T]) -> None:
        self._store = store
        self._drive = drive = Drive(steps, Deadline(None, monotonic))
        self._note = Note()
        self._arrived: list[Reply] = []
        self._waiter: Waiter | None = None
        self._is_left = False
        self._sent_on = store.start(drive.request(), self, self._note) if drive.asks else None
        self.is_smooth = self._sent_on is not None
        """True if the first call was sent immediately and, if answered, gave the result."""

    async def finish(self, *, timeout: float | None = None, given_up: bool = False) -> T:
        """Return the result of the operation, retrying its calls if necessary.

        With `given_up`, no further calls are made, and the first call has only a short time to
        finish.
        """
        drive = self._drive
        answer_by, drive.deadline = time_to_finish(timeout, given_up=given_up)
        try:
            if self._sent_on is not None:
                with drive:
                    call, reply = drive.request(), await self._reply(answer_by)
                    self.is_smooth = not isinstance(reply, Exception)
                    drive.answer = await self._store.finish(call, self._sent_on, reply, answer_by)
                self.is_smooth = self.is_smooth and not drive.asks
            return await self._store.complete(drive)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Abandon the operation. A queued call that was not sent is dropped."""
        self._is_left = True
        self._drive.close()

    async def _reply(self, deadline: Deadline) -> Reply:
        if self._arrived or self._sent_on is None:
            return self._arrived[0]
        self._waiter = waiters()()
        connection, _ = self._sent_on
        try:
            return await connection.reply(self._waiter, self._note, deadline)
        except ConnectionLost as error:  # not executed, so another node may run it
            return error

    def done(self) -> bool:
        """Return True if the reply is no longer needed."""
        return self._is_left or (self._waiter is not None and self._waiter.done())

    def set_result(self, reply: Reply, /) -> None:
        """Store the reply, or pass it to the waiting task."""
        if self._waiter is None:
            self._arrived.append(reply)
        else:
            self._waiter.set_result(reply)

    def set_exception(self, error: BaseException, /) -> None:
        """Store the error, or pass it to the waiting task."""
        if self._waiter is None:
            self._arrived.append(error)
        else:
            self._waiter.set_exception(error)

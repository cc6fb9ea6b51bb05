"""The store for code without an event loop, its connections, and locating the server."""

from __future__ import annotations

import os
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Generic, TypeAlias, TypeVar, assert_never, cast

from hiredis import Reader
from msgspec import Struct

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused, TaskbullError
from taskbull.scripts.call import (
    ONE_CALL,
    AnyRequest,
    AnySteps,
    Call,
    Command,
    Request,
    Script,
    Steps,
    none_failed,
)
from taskbull.store import cluster
from taskbull.store.address import Address, Endpoint
from taskbull.store.protocol import (
    ASKING,
    BROKEN,
    CLOSED,
    FORGOTTEN,
    GRACE,
    PROBE_TIMEOUT,
    SUSPICIOUS,
    Deadline,
    Drive,
    Handshake,
    Leave,
    Load,
    Moved,
    Pause,
    PlainSocket,
    ProtocolError,
    Replied,
    Reply,
    ReplyError,
    Send,
    Step,
    SyncSocket,
    allowance,
    dial_error,
    explain,
    keep_alive,
    loading,
    pack,
    read_replies,
    read_reply,
    redeliver,
    replies_before_close,
    time_to_finish,
)

# Connections for code without an event loop: sockets, a connection pool, pipelining.
#
# A command that may have been executed is never resent. Its caller gets `MaybeExecuted`.


# Connections and their pool.
#
# redis-py's client took 1.6 times as long for a script call (8.9k against 14.4k per second in one
# run). Its errors do not show whether a command was sent.


CONNECT_TIMEOUT = 5.0
RESPONSE_TIMEOUT = 10.0
"""Seconds without a byte, in either direction, before a connection is abandoned."""

MOST_IDLE = 16
"""Maximum number of idle connections per server. A burst of threads may have opened more."""

AnswersOthers = Callable[[], bool]
"""Function that returns True if the server answers on another connection."""


class SyncConnection:
    """A connection that one thread uses at a time."""

    def __init__(self, endpoint: Endpoint, address: Address, timeout: float) -> None:
        """Connect and log in.

        Raises `ConnectionLost` if a later attempt may succeed, otherwise `ServerRefused`.

        The timeout is checked here and not by callers, because a thread may be suspended between
        such a check and this call.
        """
        if timeout <= 0:
            raise ConnectionLost(f"no time left to connect to Redis at {endpoint}")
        self._endpoint = endpoint
        self._reader = Reader()
        self._quiet = address.response_timeout or RESPONSE_TIMEOUT
        within = Deadline(timeout, monotonic)
        handshake = Handshake(
            address.credentials.within(timeout),
            address.db,
            address.client_name,
            primary_only=address.primary_only,
        )
        if address.credentials.provider and (timeout := within.left) <= 0:
            raise ConnectionLost(f"{address.credentials.provider}() left no time to connect")
        try:
            self._socket = _connect(endpoint, address, timeout)
            try:
                replies = self._converse(handshake.commands(), within)
                handshake.check(endpoint, replies)
            except BaseException:
                self._socket.close()
                raise
        except (ProtocolError, *BROKEN) as error:
            raise dial_error(endpoint, error, timeout, tls=address.tls is not None) from error

    @property
    def stale(self) -> bool:
        """True if the server closed the idle connection, or sent data that no command asked for."""
        return self._reader.has_data() or self._socket.readable()

    def exchange(
        self,
        commands: list[bytes],
        deadline: Deadline,
        held: float = 0.0,
        answers_others: AnswersOthers = lambda: False,
    ) -> list[Reply]:
        """Send packed commands and return their replies.

        `held` is the number of seconds that the server may block before it answers. If a reply is
        missing, the connection is closed and `MaybeExecuted` is raised.
        """
        try:
            replies = self._converse(commands, deadline, held, answers_others)
            if len(replies) < len(commands):
                raise ConnectionResetError(CLOSED)
            return replies
        except (ProtocolError, MemoryError, *BROKEN) as error:
            self.close()
            raise self.unanswered(error, deadline) from error
        except BaseException:  # KeyboardInterrupt: a reply is still in flight
            self.close()
            raise

    def unanswered(self, error: Exception, deadline: Deadline) -> MaybeExecuted:
        """Return the error for a command whose reply was lost."""
        if deadline.left <= 0:
            return MaybeExecuted(f"No reply from Redis at {self._endpoint}{deadline}")
        return MaybeExecuted(f"Redis at {self._endpoint}: {explain(error)} before the reply came")

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        # Producers are rarely closed explicitly. This avoids a ResourceWarning for idle sockets.
        if hasattr(self, "_socket"):
            self.close()

    def _converse(
        self,
        commands: list[bytes],
        deadline: Deadline,
        held: float = 0.0,
        answers_others: AnswersOthers = lambda: False,
    ) -> list[Reply]:
        replies: list[Reply] = []
        feed, gets = self._reader.feed, self._reader.gets
        try:
            size = self.send(b"".join(commands), deadline)
            patience = held + SUSPICIOUS + allowance(size)
            while len(replies) < len(commands):
                feed(self._receive(deadline, patience, answers_others))
                while (reply := gets()) is not False:
                    replies.append(reply)
        except OSError as error:
            return replies_before_close(replies, error)
        if len(replies) > len(commands):
            raise ProtocolError("a reply that no command asked for")
        return replies

    def send(self, data: bytes, deadline: Deadline) -> int:
        """Send packed commands, and return the number of bytes.

        Replies are read while sending is blocked. A peer may accept no more data until its replies
        are received.
        """
        size = len(data)
        sent = self._socket.send(data, min(deadline.left, self._quiet))
        if sent < size:
            rest = memoryview(data)[sent:]
            while rest:  # not `sendall`, because partial sends count as progress
                sent = self._socket.send(rest, min(deadline.left, self._quiet))
                rest = rest[sent:]
                if not sent and self._socket.readable():
                    self._reader.feed(self._receive(deadline, SUSPICIOUS))
        return size

    def next_reply(
        self, size: int, deadline: Deadline, answers_others: AnswersOthers = lambda: False
    ) -> Reply:
        """Return the reply to the oldest unanswered command.

        `size` is the number of bytes in flight.
        """
        patience = SUSPICIOUS + allowance(size)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._receive(deadline, patience, answers_others))
        return reply

    def _receive(
        self,
        deadline: Deadline,
        patience: float,
        answers_others: AnswersOthers = lambda: False,
    ) -> bytes:
        quiet = monotonic() + patience + self._quiet
        while True:
            try:
                data = self._socket.receive(min(deadline.left, quiet - monotonic(), patience))
                break
            except TimeoutError:
                if deadline.left <= 0 or monotonic() >= quiet:
                    raise
                if answers_others() and not self._socket.readable(GRACE):
                    raise TimeoutError(FORGOTTEN) from None
                patience = SUSPICIOUS
        if not data:
            raise ConnectionResetError(CLOSED)
        return data


class ConnectionPool:
    """Pool of idle connections, by server. Threads share it without a lock."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: defaultdict[Endpoint, deque[SyncConnection]] = defaultdict(deque)
        self._process = os.getpid()

    def exchange(
        self, endpoint: Endpoint, commands: list[bytes], deadline: Deadline, held: float = 0.0
    ) -> list[Reply]:
        """Send packed commands to a server, and return their replies.

        See `SyncConnection.exchange`.
        """
        connection = self.take(endpoint, deadline)
        answers_others = partial(self.answers, endpoint, deadline)
        replies = connection.exchange(commands, deadline, held, answers_others)
        self.keep(endpoint, connection)
        return replies

    def take(self, endpoint: Endpoint, deadline: Deadline) -> SyncConnection:
        """Return a connection for exclusive use, until it is passed to `keep`.

        Raises `ConnectionLost` if no time is left or the server cannot be reached.
        """
        if deadline.left <= 0:  # an idle connection would still send the command
            raise ConnectionLost(f"no time left to send a command to Redis at {endpoint}")
        if self._process != os.getpid():  # after a fork, the sockets belong to the parent
            self._idle, self._process = defaultdict(deque), os.getpid()
        idle = self._idle[endpoint]
        try:
            while (connection := idle.pop()).stale:
                connection.close()
            return connection
        except IndexError:
            pass  # none is idle
        connecting = self._address.connect_timeout or CONNECT_TIMEOUT
        return SyncConnection(endpoint, self._address, min(deadline.left, connecting))

    def keep(self, endpoint: Endpoint, connection: SyncConnection) -> None:
        """Put a connection back into the pool. It must have no unanswered commands."""
        idle = self._idle[endpoint]
        if len(idle) < MOST_IDLE:
            idle.append(connection)
        else:
            connection.close()

    def answers(self, endpoint: Endpoint, deadline: Deadline) -> bool:
        """Return True if a server answers on a new connection, which is kept."""
        with suppress(TaskbullError):
            another = SyncConnection(endpoint, self._address, min(deadline.left, PROBE_TIMEOUT))
            # The network has probably dropped the idle connections as well as the silent one.
            self.discard(endpoint)
            self._idle[endpoint].append(another)
            return True
        return False

    def discard(self, endpoint: Endpoint) -> None:
        """Close the idle connections to a server."""
        idle = self._idle[endpoint]  # keep the deque, because another thread may be adding to it
        with suppress(IndexError):
            while True:
                idle.pop().close()

    def close_stale(self) -> None:
        """Close the stale idle connections, such as those closed by their servers."""
        for idle in list(self._idle.values()):
            with suppress(IndexError):
                for _ in range(len(idle)):
                    connection = idle.popleft()  # no other thread can take it now
                    if connection.stale:
                        connection.close()
                    else:
                        idle.append(connection)

    def close(self) -> None:
        for endpoint in list(self._idle):
            self.discard(endpoint)


def _connect(endpoint: Endpoint, address: Address, timeout: float) -> SyncSocket:
    if endpoint.path:
        plain = socket.socket(socket.AF_UNIX)
        try:
            plain.settimeout(timeout)
            plain.connect(endpoint.path)
        except BaseException:
            plain.close()
            raise
        return PlainSocket(plain)
    plain = socket.create_connection((endpoint.host, endpoint.port), timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(plain)
        if address.tls is None:
            return PlainSocket(plain)
        context = address.tls.context()
        return SyncSocket(context.wrap_socket(plain, server_hostname=endpoint.host))
    except BaseException:
        plain.close()
        raise


# Pipelining.


class SyncPipeline:
    """Commands of one thread on one connection, sent without waiting for earlier replies.

    The connection returns to its pool when all commands are answered. If a reply is lost, `receive`
    raises `MaybeExecuted`.
    """

    def __init__(self, pool: ConnectionPool, endpoint: Endpoint, deadline: Deadline) -> None:
        self.endpoint = endpoint
        self._pool = pool
        self._connection = pool.take(endpoint, deadline)
        self._unanswered: deque[int] = deque()  # sizes of the commands
        self._error: Exception | None = None  # set if nothing more can be sent
        self._is_back = False  # in the pool, where another thread may use the connection

    @property
    def usable(self) -> bool:
        """True if another command may be sent after the unanswered ones."""
        return bool(self._unanswered) and self._error is None

    def send(self, command: bytes, deadline: Deadline) -> None:
        """Send a packed command. If that fails, `receive` raises `MaybeExecuted`."""
        self._unanswered.append(len(command))
        try:
            self._connection.send(command, deadline)
        except (ProtocolError, *BROKEN) as error:
            self._error = error
            self._unanswered[-1] = 0  # the server did not get all of it, so no reply will come
        except BaseException:
            self.close()
            raise

    def receive(self, deadline: Deadline) -> Reply:
        """Return the reply to the oldest unanswered command.

        Raises `MaybeExecuted` if there is none.
        """
        connection, size = self._connection, self._unanswered.popleft()
        try:
            if self._error is not None and not size:
                raise self._error
            answers = partial(self._pool.answers, self.endpoint, deadline)
            reply = connection.next_reply(size + sum(self._unanswered), deadline, answers)
        except (ProtocolError, MemoryError, *BROKEN) as error:
            self._break(error)
            raise connection.unanswered(error, deadline) from error
        except BaseException:
            self.close()
            raise
        if not self._unanswered and self._error is None:
            self._is_back = True
            self._pool.keep(self.endpoint, connection)
        return reply

    def _break(self, error: Exception) -> None:
        self._error = error
        self._unanswered = deque(0 for _ in self._unanswered)
        if not self._is_back:
            self._connection.close()

    def close(self) -> None:
        """Abandon the unanswered commands, and close the connection."""
        self._break(ConnectionAbortedError("it was left"))


# Locating the server before each connection.


Locate: TypeAlias = Callable[[float], Endpoint]
"""Function that locates the server within a number of seconds, or raises `ConnectionLost`."""


SENTINEL_TIMEOUT = 1.0


EMBEDDED_TIMEOUT = 30.0


def locate(address: Address) -> Locate:
    """Return a function that locates the server. For a Cluster, it returns the first node."""
    match address.topology:
        case "sentinel":
            return lambda timeout: _primary(address, timeout)
        case "embedded":
            return lambda timeout: _embedded(address, timeout)
        case "single" | "cluster":
            first = address.endpoints[0]
            return lambda _limit: first
        case _:
            assert_never(address.topology)


def _embedded(address: Address, timeout: float) -> Endpoint:
    # This import, with subprocess, takes half as long as `python -c pass`.
    from taskbull.store.embedded import start_or_join  # noqa: PLC0415

    timeout = min(timeout, EMBEDDED_TIMEOUT)
    return Endpoint(path=str(start_or_join(Path(address.folder), timeout, address.idle)))


def _primary(address: Address, timeout: float) -> Endpoint:
    """Ask the sentinels, one after the other, for the primary of the service."""
    ask = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service))
    login = Address("single", credentials=address.sentinel_credentials, tls=address.tls)
    deadline = monotonic() + timeout
    reasons: list[str] = []
    for sentinel in address.endpoints:
        left = min(deadline - monotonic(), SENTINEL_TIMEOUT)
        if left <= 0:
            reasons.append("time is up")
            break
        try:
            connection = SyncConnection(sentinel, login, left)
            [reply] = connection.exchange([ask], Deadline(left, monotonic))
            connection.close()
        except (ConnectionLost, MaybeExecuted, ServerRefused) as error:
            reasons.append(str(error))
            continue
        if isinstance(reply, list):
            host, port = cast("list[bytes]", reply)
            return Endpoint(host.decode(), int(port))
        reasons.append(f"{sentinel} says {reply if isinstance(reply, ReplyError) else 'no'}")
    why = "; ".join(reasons)
    raise ConnectionLost(f"no sentinel knows a primary of {address.service!r}: {why}")


# The store for code without an event loop. It can be used from any thread, and after a fork.
#
# It runs the same calls as the async store. `SyncOneServer` or `SyncClusterNodes` finds the server
# for a key.


# Topologies: one server for all keys, or the nodes of a Cluster.


class SyncOneServer:
    """A single server, the primary that Sentinel names, or the embedded server."""

    single = True  # No other server can replace it while it is down.

    def __init__(self, address: Address) -> None:
        self._locate = locate(address)
        self.only: Endpoint | None = None
        """The server, or None if it must be located first."""

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        server = self.only
        if server is None:
            server = self.only = self._locate(deadline.left)
        return server

    def known(self, key: str) -> Endpoint | None:
        return self.only

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        return [self.find("", deadline)]

    def moved(self, key: str, endpoint: Endpoint) -> None:
        raise cluster.is_clustered(self.only or endpoint)

    def mark_stale(self) -> None:
        self.only = None


class SyncClusterNodes(cluster.SlotMap):
    """The masters of a Redis Cluster."""

    single = False
    only: Endpoint | None = None

    def __init__(self, address: Address, pool: ConnectionPool) -> None:
        super().__init__(address.endpoints)
        self._pool = pool

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        """Return the server that holds `key`.

        Raises `ConnectionLost` if none can be found now.
        """
        if (node := self.known(key)) is not None:
            return node
        self._draw_map(deadline)
        return self.node_of(key)

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        """Return the servers that hold the data."""
        self.find("", deadline)  # any key will do, because this reads all slots
        return self.masters

    def _draw_map(self, deadline: Deadline) -> None:
        """Ask the nodes for the slots, one after the other, until one answers."""
        reasons: list[str] = []
        for node in self.nodes_to_ask():
            soon = Deadline(min(deadline.left, cluster.GUIDE_TIMEOUT), monotonic)
            try:
                [reply] = self._pool.exchange(node, [cluster.READ_SLOTS], soon)
                return self.draw(reply, node)
            except (ConnectionLost, MaybeExecuted) as error:
                reasons.append(str(error))
        raise cluster.no_node_answers(reasons)


# The store.


T = TypeVar("T")

_TROUBLE = (ReplyError, ConnectionLost)


class SyncPendingOperation(Struct, Generic[T], eq=False):
    """An operation whose first call was sent, if that was possible."""

    store: SyncStore
    drive: Drive[T]
    pipeline: SyncPipeline | None = None
    """Pipeline that receives the reply, or None if the call was not sent."""
    not_sent: ConnectionLost | None = None
    """Error of the first attempt, if the call was not sent and nothing else was in flight."""
    is_smooth: bool = False
    """True if the first call was sent immediately and, if answered, gave the result."""

    def finish(self, *, timeout: float | None = None, given_up: bool = False) -> T:
        """Return the result of the operation, as `SyncStore.finish` does."""
        return self.store.finish(self, timeout=timeout, given_up=given_up)

    def leave(self) -> None:
        """Abandon the operation, and close its connection."""
        self.drive.close()
        if self.pipeline is not None:
            self.pipeline.close()


class SyncStore:
    """Store that runs calls against the Redis at an address, from any thread.

    Threads never use a connection concurrently.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = ConnectionPool(address)
        self._topology: SyncOneServer | SyncClusterNodes = (
            SyncClusterNodes(address, self._pool) if address.clustered else SyncOneServer(address)
        )

    def run(
        self,
        operation: Request[T] | AnySteps[T],
        *,
        timeout: float | None = None,
        total: float | None = None,
        keep_trying: bool = True,
    ) -> T:
        """Run a call, or an operation of several calls, and return the result.

        `timeout` limits each call, including its retries, so an operation that works in chunks may
        take longer. `total` limits the whole operation. Without either, this waits until Redis is
        reachable again. A server that is reachable but cannot serve is retried for
        `delivery.PATIENCE` seconds. A single call with `keep_trying=False` fails immediately if
        Redis cannot serve it now.

        Raises `ConnectionLost` (not executed), `MaybeExecuted` or `ServerRefused`.
        """
        deadline = Deadline(timeout if total is None else total, monotonic)
        if isinstance(operation, Call | Command):
            return self.run_within(operation, deadline, keep_trying=keep_trying)
        return self._complete(Drive(operation, deadline, renew=total is None))

    def run_within(self, call: Request[T], deadline: Deadline, *, keep_trying: bool = True) -> T:
        """Run one call and return its result, with a deadline that calls can share.

        Raises the same errors as `run`.
        """
        node = self._topology.only
        if node is None:
            node, reply = self._send(call, Send(), deadline)
        else:  # the common case, at half the cost
            try:
                [reply] = self._pool.exchange(node, [pack(call.words)], deadline, call.held)
            except ConnectionLost as error:
                reply = error
        if isinstance(reply, _TROUBLE):
            reply = self._finish_call(call, (node, reply), deadline, keep_trying=keep_trying)
        return read_reply(call, reply, self.address)

    def run_all(self, calls: Sequence[Request[T]], *, timeout: float | None = None) -> list[T]:
        """Run several calls in one round trip per server, and return the results in order.

        If calls fail, the first error is raised after all have finished. `timeout` limits all calls
        together.
        """
        return none_failed(self.run_each(calls, timeout=timeout))

    def run_each(
        self, calls: Sequence[Request[T]], *, timeout: float | None = None
    ) -> list[T | TaskbullError]:
        """Run several calls in one round trip per server, and return the results in order.

        A failed call has its error as its result. `timeout` limits all calls together.
        """
        deadline = Deadline(timeout, monotonic)
        results: list[T | TaskbullError] = []
        for call, replied in zip(calls, self._send_all(calls, deadline), strict=True):
            try:
                if isinstance(replied[1], MaybeExecuted):
                    raise replied[1]
                reply = self._finish_call(call, replied, deadline)
                results.append(read_reply(call, reply, self.address))
            except TaskbullError as error:
                results.append(error)
        return results

    def read_many(
        self, calls: Sequence[Request[Any]], *, each: bool, timeout: float | None
    ) -> list[Any]:
        """Run the calls of a `Many` request."""
        return (self.run_each if each else self.run_all)(calls, timeout=timeout)

    def go_on(self, steps: Steps[T], deadline: Deadline, failed: TaskbullError) -> T:
        """Continue an operation whose first call has already failed."""
        drive = Drive(steps, deadline)
        drive.fail(failed)
        return self._complete(drive)

    def begin(
        self,
        steps: Steps[T],
        behind: SyncPendingOperation[Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> SyncPendingOperation[T]:
        """Send the first call of an operation if possible. Pass the result to `finish`.

        The call uses the connection of the unfinished operation `behind`, if that is possible.
        """
        begun = SyncPendingOperation(self, Drive(steps, Deadline(timeout, monotonic)))
        if begun.drive.asks and (behind is None or behind.not_sent is None):
            try:
                self._send_first(begun, None if behind is None else behind.pipeline)
            except ConnectionLost as error:
                begun.not_sent = error if behind is None else None
        return begun

    def _send_first(self, begun: SyncPendingOperation[Any], previous: SyncPipeline | None) -> None:
        call, deadline = begun.drive.request(), begun.drive.deadline
        node = self._topology.find(call.key, deadline)
        if previous is None or previous.endpoint != node or not previous.usable:
            previous = SyncPipeline(self._pool, node, deadline)
        begun.pipeline, begun.is_smooth = previous, True
        previous.send(self._pack(call), deadline)

    def finish(
        self,
        begun: SyncPendingOperation[T],
        *,
        timeout: float | None = None,
        given_up: bool = False,
    ) -> T:
        """Return the result of an operation that was started, retrying its calls if necessary.

        With `given_up`, no further calls are made, and the first call has only a short time to
        finish.
        """
        drive, started = begun.drive, begun.drive.deadline
        answer_by, drive.deadline = time_to_finish(timeout, given_up=given_up)
        try:
            if begun.not_sent is not None and not given_up:
                drive.deadline = started  # The first attempt has taken some of the time.
                with drive:
                    call = drive.request()
                    node = self.known_node(call.key) or Endpoint()
                    reply = self._finish_call(call, (node, begun.not_sent), drive.deadline)
                    drive.answer = read_reply(call, reply, self.address)
            elif begun.pipeline is not None:
                with drive:
                    drive.answer = self._answer(begun, begun.pipeline, answer_by)
                begun.is_smooth = begun.is_smooth and not drive.asks
            return self._complete(drive)
        except BaseException:
            begun.leave()
            raise

    def _answer(
        self, begun: SyncPendingOperation[Any], pipeline: SyncPipeline, deadline: Deadline
    ) -> Any:
        call, reply = begun.drive.request(), pipeline.receive(deadline)
        begun.is_smooth = not isinstance(reply, _TROUBLE)
        reply = self._finish_call(call, (pipeline.endpoint, reply), deadline)
        return read_reply(call, reply, self.address)

    def _complete(self, drive: Drive[T]) -> T:
        while drive.asks:
            with drive:
                request: AnyRequest = drive.request()
                if isinstance(request, ONE_CALL):
                    drive.answer = self.run_within(request, drive.deadline)
                else:
                    drive.answer = request.serve(self, drive.deadline.seconds)
        return drive.result

    def servers(self, *, timeout: float | None = None) -> list[Endpoint]:
        """Return the servers that hold the data: one server, or the masters of a Cluster."""
        return self._topology.servers(Deadline(timeout, monotonic))

    def server_of(self, key: str, *, timeout: float | None = None) -> Endpoint:
        """Return the server that holds a key."""
        return self._topology.find(key, Deadline(timeout, monotonic))

    def run_on(self, server: Endpoint, call: Request[T], *, timeout: float | None = None) -> T:
        """Run one call on one server, without retries or redirections."""
        commands = [*map(pack, loading(call)), pack(call.words)]
        try:
            replies = self._pool.exchange(server, commands, Deadline(timeout, monotonic), call.held)
        except (ConnectionLost, MaybeExecuted):
            self._leave(server)  # another server may take over
            raise
        return read_replies(call, replies, server)

    def known_node(self, key: str) -> Endpoint | None:
        """Return the server where `key` was last found, or None if unknown. Does no I/O."""
        return self._topology.known(key)

    def close_stale(self) -> None:
        """Close the stale connections among those that are not in use."""
        self._pool.close_stale()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()

    def _finish_call(
        self, call: Request[Any], replied: Replied, deadline: Deadline, *, keep_trying: bool = True
    ) -> Reply:
        if not isinstance(replied[1], _TROUBLE):
            return replied[1]
        redelivery = redeliver(replied, deadline, keep_trying=keep_trying)
        try:
            step = next(redelivery)
            while True:
                step = redelivery.send(self._perform(call, step, deadline))
        except StopIteration as end:
            return end.value

    def _perform(self, call: Request[Any], step: Step, deadline: Deadline) -> Any:
        match step:
            case Send():
                return self._send(call, step, deadline)
            case Load(node):
                if call.script is not None:
                    return self._load(node, call.script, deadline)
            case Moved(node):
                self._topology.moved(call.key, node)
            case Leave(node, _):
                self._leave(node)
            case Pause(seconds):
                sleep(seconds)
        return None

    def _leave(self, node: Endpoint) -> None:
        self._pool.discard(node)
        self._topology.mark_stale()

    def _load(self, node: Endpoint, script: Script, deadline: Deadline) -> Reply | None:
        load = pack(("SCRIPT", "LOAD", script.source))
        try:
            [reply] = self._pool.exchange(node, [load], deadline)
        except ConnectionLost as error:
            return error
        except MaybeExecuted:
            return None  # if the script is still missing, the call gets NOSCRIPT again
        return reply if isinstance(reply, ReplyError) else None

    def _send(self, call: Request[Any], step: Send, deadline: Deadline) -> Replied:
        """Send the call and return the reply, or the error if no connection could be made."""
        node = step.node or Endpoint()
        commands = [ASKING, self._pack(call)] if step.asking else [self._pack(call)]
        try:
            node = step.node or self._topology.find(call.key, deadline)
            reply = self._pool.exchange(node, commands, deadline, call.held)[-1]
        except ConnectionLost as error:
            reply = error
        return node, reply

    def _send_all(self, calls: Sequence[Request[Any]], deadline: Deadline) -> list[Replied]:
        replies: list[Replied] = []
        by_node: dict[Endpoint, list[int]] = {}
        for place, call in enumerate(calls):
            try:
                node = self._topology.find(call.key, deadline)
            except ConnectionLost as error:
                replies.append((Endpoint(), error))
            else:
                replies.append((node, None))
                by_node.setdefault(node, []).append(place)
        for asked, (node, places) in enumerate(by_node.items()):
            # Divide the time, so that a node that does not answer leaves some for the rest.
            within = deadline
            if deadline.seconds is not None:
                within = Deadline(deadline.left / (len(by_node) - asked), monotonic)
            commands = [self._pack(calls[place]) for place in places]
            answers: list[Reply]
            try:
                answers = self._pool.exchange(node, commands, within)
            except (ConnectionLost, MaybeExecuted) as error:
                answers = [error] * len(places)
            for place, answer in zip(places, answers, strict=True):
                replies[place] = (node, answer)
        return replies

    def _pack(self, call: Request[Any]) -> bytes:
        return pack(call.words if self._topology.single else call.cluster_words)

"""Connections for code without an event loop: sockets, a connection pool, pipelining.

A command that may have been executed is never resent. Its caller gets `MaybeExecuted`.
"""

from __future__ import annotations

import os
import select
import socket
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from hiredis import Reader

from taskbull.errors import ConnectionLost, MaybeExecuted, TaskbullError
from taskbull.store.address import Address, Endpoint
from taskbull.store.delivery import Deadline
from taskbull.store.handshake import Handshake, dial_error
from taskbull.store.protocol import ProtocolError, Reply
from taskbull.store.sockets import (
    BROKEN,
    CLOSED,
    FORGOTTEN,
    GRACE,
    PROBE_TIMEOUT,
    RECEIVE,
    SUSPICIOUS,
    allowance,
    explain,
    keep_alive,
    last_words,
)

# Blocking sockets with a timeout per operation.
#
# `settimeout` takes a system call, and then `send` and `recv` poll first: 3 system calls each.
# `PlainSocket` needs 1 for `send` and 2 for `recv`. `EncryptedSocket` uses `settimeout`, because
# TLS reads ahead and `poll` does not see the bytes that it holds.


_SHORTEST = 0.001
"""Minimum timeout in seconds. 0 and less have other meanings for `settimeout` and `poll`."""


class SyncSocket(ABC):
    """Connected socket. `send` and `receive` raise `TimeoutError` after a number of seconds."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._input = select.poll()
        self._input.register(raw, select.POLLIN)

    @abstractmethod
    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send as much as the system accepts; return the number of bytes."""

    @abstractmethod
    def receive(self, seconds: float) -> bytes:
        """Return the bytes that have arrived, or `b""` if the peer has closed."""

    def readable(self, seconds: float = 0.0) -> bool:
        """Return True if there is data to receive, or the peer has closed."""
        return bool(self._input.poll(seconds * 1000))

    def close(self) -> None:
        """Close the socket immediately."""
        self._raw.close()


class PlainSocket(SyncSocket):
    """Socket without TLS, in non-blocking mode."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        raw.setblocking(False)

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send as much as the system accepts; return the number of bytes.

        If it accepts nothing, wait until the socket is writable or readable, and return 0. The peer
        may be waiting until its data is received.
        """
        try:
            return self._raw.send(data)
        except BlockingIOError:
            room = select.poll()
            room.register(self._raw, select.POLLOUT | select.POLLIN)
            if not room.poll(max(seconds, _SHORTEST) * 1000):
                raise TimeoutError("timed out") from None
            return 0

    def receive(self, seconds: float) -> bytes:
        """Wait for data and return it."""
        while self._input.poll(max(seconds, _SHORTEST) * 1000):
            try:
                return self._raw.recv(RECEIVE)
            except BlockingIOError:  # spurious wake-up
                continue
        raise TimeoutError("timed out")


class EncryptedSocket(SyncSocket):
    """Socket with TLS."""

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send as much as the system accepts; return the number of bytes."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.send(data)

    def receive(self, seconds: float) -> bytes:
        """Wait for data and return it."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.recv(RECEIVE)


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
        handshake = Handshake(
            address.credentials,
            address.db,
            address.client_name,
            primary_only=address.primary_only,
        )
        within = Deadline(timeout, monotonic)
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
            return last_words(replies, error)
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
        connection = self._usable(self._idle[endpoint])
        if connection is None:
            connecting = self._address.connect_timeout or CONNECT_TIMEOUT
            connection = SyncConnection(endpoint, self._address, min(deadline.left, connecting))
        return connection

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

    @staticmethod
    def _usable(idle: deque[SyncConnection]) -> SyncConnection | None:
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return None
            if not connection.stale:
                return connection
            connection.close()


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
        return EncryptedSocket(context.wrap_socket(plain, server_hostname=endpoint.host))
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

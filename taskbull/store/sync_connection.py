"""A connected socket for blocking code: each wait is as long as its caller says, and no longer.

`settimeout` takes a system call of its own, and lets each `send` and `recv` ask first whether they
would block: 3 system calls for each of the two. A plain socket needs 1 and 2 here. Encrypted ones
keep it: they read more than was asked for, and `poll` does not see what they hold.
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

# A connected socket for blocking code: each wait is as long as its caller says, and no longer.
#
# `settimeout` takes a system call of its own, and lets each `send` and `recv` ask first whether
# they would block: 3 system calls for each of the two. A plain socket needs 1 and 2 here.
# Encrypted ones keep it: they read more than was asked for, and `poll` does not see what they
# hold.


_SHORTEST = 0.001
"""Seconds: 0, or less, would mean something else to `settimeout` and to `poll`."""


class SyncSocket(ABC):
    """Sends and receives, or raises `TimeoutError` when that took too long."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._input = select.poll()
        self._input.register(raw, select.POLLIN)

    @abstractmethod
    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send what the system takes; return the number of bytes."""

    @abstractmethod
    def receive(self, seconds: float) -> bytes:
        """Return what has come; empty if the peer has closed."""

    def readable(self, seconds: float = 0.0) -> bool:
        """Return whether there is something to receive, be it the end."""
        return bool(self._input.poll(seconds * 1000))

    def close(self) -> None:
        """Close it at once."""
        self._raw.close()


class PlainSocket(SyncSocket):
    """One that never blocks by itself."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw)
        raw.setblocking(False)

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send what the system takes; if that is nothing, wait until that changes.

        Or until something has come: the peer may wait for us to receive it.
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
        """Wait until something has come, and return it."""
        while self._input.poll(max(seconds, _SHORTEST) * 1000):
            try:
                return self._raw.recv(RECEIVE)
            except BlockingIOError:  # woken for nothing
                continue
        raise TimeoutError("timed out")


class EncryptedSocket(SyncSocket):
    """One with TLS."""

    def send(self, data: memoryview | bytes, seconds: float) -> int:
        """Send what the system takes."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.send(data)

    def receive(self, seconds: float) -> bytes:
        """Wait until something has come, and return it."""
        self._raw.settimeout(max(seconds, _SHORTEST))
        return self._raw.recv(RECEIVE)


# One synchronous connection: a socket, hiredis, and our rules about what may have been executed.
#
# redis-py's client took 1.6 times as long for a script call (8.9k against 14.4k per second in one
# run), and its errors do not tell what was sent from what was not.


CONNECT_TIMEOUT = 5.0
RESPONSE_TIMEOUT = 10.0
"""Seconds without a byte, either way, after which a connection is given up."""

MOST_IDLE = 16
"""Connections to one server that are kept for later; a burst of threads may have needed more."""

AnswersOthers = Callable[[], bool]
"""Returns whether the server answers on another connection."""


class SyncConnection:
    """A connected socket that one thread uses at a time."""

    def __init__(self, endpoint: Endpoint, address: Address, timeout: float) -> None:
        """Connect and log in; raise `ConnectionLost` if it may work later, else `ServerRefused`.

        That no time is left is found out here, and not by callers: between their look at a deadline
        and this, their thread may have had to wait.
        """
        if timeout <= 0:
            raise ConnectionLost(f"No time was left to connect to Redis at {endpoint}")
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
        """Whether the server has closed it, or said something unasked, while it was idle."""
        return self._reader.has_data() or self._socket.readable()

    def exchange(
        self,
        commands: list[bytes],
        deadline: Deadline,
        held: float = 0.0,
        answers_others: AnswersOthers = lambda: False,
    ) -> list[Reply]:
        """Send packed commands and return their replies; else close it and raise `MaybeExecuted`.

        `held` is the number of seconds for which the server may hold them before it answers.
        """
        try:
            replies = self._converse(commands, deadline, held, answers_others)
            if len(replies) < len(commands):
                raise ConnectionResetError(CLOSED)
            return replies
        except (ProtocolError, MemoryError, *BROKEN) as error:
            self.close()
            raise self.unanswered(error, deadline) from error
        except BaseException:  # KeyboardInterrupt: a reply that nobody reads is on its way
            self.close()
            raise

    def unanswered(self, error: Exception, deadline: Deadline) -> MaybeExecuted:
        """Return what the caller of a command is told whose reply will not come."""
        if deadline.left <= 0:
            return MaybeExecuted(f"No reply from Redis at {self._endpoint}{deadline}")
        return MaybeExecuted(f"Redis at {self._endpoint}: {explain(error)} before the reply came")

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        # A producer is rarely closed by hand: its idle connections end with it, in silence.
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
        """Send packed commands, and take in what comes meanwhile; return how many bytes it were.

        Whoever is between us and the server may take no more while we do not take its replies.
        """
        size = len(data)
        sent = self._socket.send(data, min(deadline.left, self._quiet))
        if sent < size:
            rest = memoryview(data)[sent:]
            while rest:  # not `sendall`: what the socket accepts is progress
                sent = self._socket.send(rest, min(deadline.left, self._quiet))
                rest = rest[sent:]
                if not sent and self._socket.readable():
                    self._reader.feed(self._receive(deadline, SUSPICIOUS))
        return size

    def next_reply(
        self, size: int, deadline: Deadline, answers_others: AnswersOthers = lambda: False
    ) -> Reply:
        """Return the reply to the oldest command that was sent; `size` bytes may be under way."""
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
    """The connections that wait to be used again, by server. Threads share it without a lock."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: defaultdict[Endpoint, deque[SyncConnection]] = defaultdict(deque)
        self._process = os.getpid()

    def exchange(
        self, endpoint: Endpoint, commands: list[bytes], deadline: Deadline, held: float = 0.0
    ) -> list[Reply]:
        """Send packed commands to a server and return their replies; see `SyncConnection`."""
        connection = self.take(endpoint, deadline)
        answers_others = partial(self.answers, endpoint, deadline)
        replies = connection.exchange(commands, deadline, held, answers_others)
        self.keep(endpoint, connection)
        return replies

    def take(self, endpoint: Endpoint, deadline: Deadline) -> SyncConnection:
        """Return a connection that nobody else uses until it is given to `keep`."""
        if deadline.left <= 0:  # an idle connection would take the command
            raise ConnectionLost(f"No time was left to send a command to Redis at {endpoint}")
        if self._process != os.getpid():  # forked: the sockets are the parent's
            self._idle, self._process = defaultdict(deque), os.getpid()
        connection = self._usable(self._idle[endpoint])
        if connection is None:
            connecting = self._address.connect_timeout or CONNECT_TIMEOUT
            connection = SyncConnection(endpoint, self._address, min(deadline.left, connecting))
        return connection

    def keep(self, endpoint: Endpoint, connection: SyncConnection) -> None:
        """Keep a connection, on which every command was answered, for later."""
        idle = self._idle[endpoint]
        if len(idle) < MOST_IDLE:
            idle.append(connection)
        else:
            connection.close()

    def answers(self, endpoint: Endpoint, deadline: Deadline) -> bool:
        """Return whether a server answers on a new connection."""
        with suppress(TaskbullError):
            another = SyncConnection(endpoint, self._address, min(deadline.left, PROBE_TIMEOUT))
            # The idle ones are as old as the one that is silent: the network has forgotten them.
            self.discard(endpoint)
            self._idle[endpoint].append(another)
            return True
        return False

    def discard(self, endpoint: Endpoint) -> None:
        """Close the idle connections to a server."""
        idle = self._idle[endpoint]  # it stays: another thread may be about to add to it
        with suppress(IndexError):
            while True:
                idle.pop().close()

    def close_stale(self) -> None:
        """Close the idle connections that their servers have closed."""
        for idle in list(self._idle.values()):
            with suppress(IndexError):
                for _ in range(len(idle)):
                    connection = idle.popleft()  # no other thread can use it now
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


# Commands of one thread on one connection, each sent before those ahead of it are answered.


class SyncPipeline:
    """Holds a connection while a command on it is unanswered, and returns it to its pool then.

    What may have been executed is not sent again: whoever asks for its reply gets `MaybeExecuted`.
    """

    def __init__(self, pool: ConnectionPool, endpoint: Endpoint, deadline: Deadline) -> None:
        self.endpoint = endpoint
        self._pool = pool
        self._connection = pool.take(endpoint, deadline)
        self._unanswered: deque[int] = deque()  # their sizes
        self._error: Exception | None = None  # why nothing more can be sent

    @property
    def usable(self) -> bool:
        """Whether another command may be sent behind those that are unanswered."""
        return bool(self._unanswered) and self._error is None

    def send(self, command: bytes, deadline: Deadline) -> None:
        """Send a packed command; what goes wrong is told to whoever asks for its reply."""
        self._unanswered.append(len(command))
        try:
            self._connection.send(command, deadline)
        except (ProtocolError, *BROKEN) as error:
            self._error = error
            self._unanswered[-1] = 0  # no reply will come: the server never had all of it
        except BaseException:
            self.close()
            raise

    def receive(self, deadline: Deadline) -> Reply:
        """Return the reply to the oldest command that is unanswered."""
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
            self._pool.keep(self.endpoint, connection)
        return reply

    def _break(self, error: Exception) -> None:
        """Close the connection: no reply comes on it any more."""
        self._error = error
        self._unanswered = deque(0 for _ in self._unanswered)
        self._connection.close()

    def close(self) -> None:
        """Leave what is unanswered; its connection is of no use to anybody else."""
        self._break(ConnectionAbortedError("it was left"))

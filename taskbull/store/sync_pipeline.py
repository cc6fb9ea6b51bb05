"""Commands of one thread on one connection, each sent before those ahead of it are answered."""

from __future__ import annotations

from collections import deque
from functools import partial

from taskbull.store.address import Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.pipeline import ProtocolError, Reply
from taskbull.store.sockets import BROKEN
from taskbull.store.sync_connection import ConnectionPool


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

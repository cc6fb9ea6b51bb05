"""Helpers for sockets: timeouts of silent links, keep-alive, error texts.

Code without an event loop uses this module, so it imports neither anyio nor asyncio. Together they
are a third of the time that `import taskbull` would take a sync producer.
"""

from __future__ import annotations

import os
import socket

from taskbull.store.protocol import ProtocolError, Reply, ReplyError

# Detecting dead links.
#
# A NAT, a load balancer or a lost host may drop a connection without notifying either end, while
# new connections work immediately. A silent link may also mean that the server is busy, so it is
# not closed yet. A second link is opened instead. If the server answers on that one while the
# first stays silent, the first is dead.


SUSPICIOUS = 1.0
"""Seconds of silence before the server is probed on another link."""

PROBE_TIMEOUT = 2.0
"""Seconds that the server has to answer on the other link."""

GRACE = 0.1
"""Seconds that a silent link has left after the other one answered: a reply may be in flight."""

FORGOTTEN = "no answer on this connection, while the server answers on another"

_SLOWEST = 512 * 1024  # bytes per second of the slowest link that counts as alive
_HIDDEN = 8 << 20  # bytes that network buffers may hold without visible progress


def allowance(size: int) -> float:
    """Return how many seconds `size` bytes in flight may delay a reply."""
    return min(size, _HIDDEN) / _SLOWEST


# Options and errors of sockets, blocking or not.


BROKEN = (OSError, UnicodeError)  # UnicodeError: an invalid host name

CLOSED = "the connection was closed by the server"

# Bytes per `recv`. Python allocates all of them first, and then frees the unused part. From 128 kB
# on, each allocation is a system call, which takes 18 µs per reply.
RECEIVE = 1 << 16
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,  # ms that sent data may remain unacknowledged
}


def keep_alive(raw: socket.socket) -> None:
    """Enable TCP keep-alive, so that the kernel detects a vanished peer without any command."""
    if raw.family == socket.AF_UNIX:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # macOS lacks TCP_KEEPIDLE and TCP_USER_TIMEOUT
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def last_words(replies: list[Reply], error: Exception) -> list[Reply]:
    """Return the replies sent before the server closed, if the last is an error.

    Otherwise raise `error`.
    """
    if replies and isinstance(replies[-1], ReplyError):
        return replies
    raise error


def explain(error: Exception) -> str:
    """Return a short reason why a connection failed or was lost."""
    match error:
        case ProtocolError():
            return "the peer does not speak the Redis protocol"
        case _ if type(error).__module__.partition(".")[0] == "anyio":  # anyio is not imported here
            return CLOSED
        case OSError(errno=int(number)) if number > 0:  # asyncio has its own messages
            return os.strerror(number)
        case OSError(__cause__=OSError() as cause):  # from anyio, if all connection attempts failed
            return explain(cause)
        case OSError(__cause__=BaseExceptionGroup(exceptions=[OSError() as first, *_])):
            return explain(first)
        case _:
            return str(error)

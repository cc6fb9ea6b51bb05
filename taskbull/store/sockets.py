"""What sockets have in common, be they blocking or an event loop's: how they break, and why.

Code without an event loop uses it, so neither anyio nor asyncio are imported here: together they
are a third of what a sync producer would spend on `import taskbull`.
"""

from __future__ import annotations

import os
import socket

from taskbull.store.pipeline import ProtocolError, Reply, ReplyError

BROKEN = (OSError, UnicodeError)  # the latter for a name that cannot be a host

CLOSED = "the connection was closed by the server"

# Bytes received at once. Python makes room for them all, and gives back what was not needed; of
# 128 kB and more the allocator asks the system each time, which takes 18 µs per reply.
RECEIVE = 1 << 16
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,  # ms for which the peer may leave what was sent unacknowledged
}


def keep_alive(raw: socket.socket) -> None:
    """Have the kernel find out about a peer that vanished: it costs no command."""
    if raw.family == socket.AF_UNIX:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # macOS lacks the first and the last
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def last_words(replies: list[Reply], error: Exception) -> list[Reply]:
    """Return the replies before a server closed if they say why; else raise the error."""
    if replies and isinstance(replies[-1], ReplyError):
        return replies
    raise error


def explain(error: Exception) -> str:
    """Return in a few words why there is no connection (any more)."""
    match error:
        case ProtocolError():
            return "the peer does not speak the Redis protocol"
        case _ if type(error).__module__.partition(".")[0] == "anyio":  # not imported: see above
            return CLOSED
        case OSError(errno=int(number)) if number > 0:  # asyncio words them in its own way
            return os.strerror(number)
        case OSError(__cause__=OSError() as cause):  # anyio: all connection attempts failed
            return explain(cause)
        case OSError(__cause__=BaseExceptionGroup(exceptions=[OSError() as first, *_])):
            return explain(first)
        case _:
            return str(error)

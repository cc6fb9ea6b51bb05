"""Finding out what the other side speaks, when a connection to it came to nothing."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Literal, TypeAlias

from taskbull.store.address import Address, Endpoint
from taskbull.store.protocol import ProtocolError, Reply, ReplyError

# Finding out what the other side speaks, when a connection to it came to nothing.


Protocol: TypeAlias = Literal["tls", "plain"]

_PATIENCE = 2.0
"""Seconds for each attempt to find out."""


def wrong_protocol(address: Address) -> Protocol | None:
    """Return what the other side speaks, if that is not what the address says."""
    endpoint = address.endpoints[0] if address.endpoints else None
    if endpoint is None or endpoint.path:
        return None
    if address.tls is None and _speaks_tls(endpoint):
        return "tls"
    if address.tls is not None and _speaks_plainly(endpoint):
        return "plain"
    return None


def _speaks_tls(endpoint: Endpoint) -> bool:
    import ssl  # noqa: PLC0415 - see `Tls.context`

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is only asked whether it speaks TLS at all
    with (
        suppress(OSError),
        socket.create_connection((endpoint.host, endpoint.port), _PATIENCE) as s,
    ):
        try:
            context.wrap_socket(s).close()
        except ssl.SSLError as error:  # an alert is TLS, too: it may want a certificate of ours
            return "ALERT" in str(error)
        return True
    return False


def _speaks_plainly(endpoint: Endpoint) -> bool:
    with (
        suppress(OSError),
        socket.create_connection((endpoint.host, endpoint.port), _PATIENCE) as s,
    ):
        s.sendall(b"PING\r\n")
        return s.recv(64)[:1] in {b"+", b"-"}
    return False


# When silence means that a link is dead.
#
# A network may forget a connection without a word to either end (a NAT, a load balancer, a host
# that is gone), and new ones work at once. So a link that is silent for a moment is not given up,
# for the server may be busy; but another one is made, and if the server answers on that while the
# first stays silent, the first is dead.


SUSPICIOUS = 1.0
"""Seconds of silence after which the server is asked on another link."""

PROBE_TIMEOUT = 2.0
"""Seconds within which that other link must be answered on."""

GRACE = 0.1
"""Seconds for which a link may still answer when another one has: its reply may be on its way."""

FORGOTTEN = "no answer on this connection, while the server answers on another"

_SLOWEST = 512 * 1024  # bytes per second of a link that is slow, not dead
_HIDDEN = 8 << 20  # bytes that buffers on the way may hold, where nobody sees them move


def allowance(size: int) -> float:
    """Return the seconds by which so many bytes on their way may delay an answer."""
    return min(size, _HIDDEN) / _SLOWEST


# What sockets have in common, be they blocking or an event loop's: how they break, and why.
#
# Code without an event loop uses it, so neither anyio nor asyncio are imported here: together they
# are a third of what a sync producer would spend on `import taskbull`.


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

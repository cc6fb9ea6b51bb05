"""Connecting an async socket to a server, trying each address of its host.

Host names are resolved in separate threads. The event loop's threads are few and shared with tasks.
If tasks that wait for Redis held all of them, the name could never be resolved.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from ipaddress import ip_address

from anyio import CapacityLimiter, move_on_after, to_thread

from taskbull.store.address import Endpoint
from taskbull.store.asyncio_link import Link, open_asyncio_link
from taskbull.store.backend import on_trio
from taskbull.store.protocol import Pipeline

NEXT_ADDRESS = 1.0
"""Seconds before the next address of a host is tried."""


async def open_link(endpoint: Endpoint, tls: ssl.SSLContext | None, pipeline: Pipeline) -> Link:
    """Open a link to `endpoint`.

    Raises `OSError` if no address of the host accepts the connection.
    """
    if on_trio():
        from taskbull.store.trio_link import open_trio_link as open_one  # noqa: PLC0415 - optional
    else:
        open_one = open_asyncio_link
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

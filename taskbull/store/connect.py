"""Connecting a socket to a server, at whichever address of its host answers.

Names are looked up in threads of our own. Event loops share few threads with tasks: tasks that
wait for Redis in all of them would keep us from finding it.
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
"""Seconds after which the next address of a host is tried."""


async def open_link(endpoint: Endpoint, tls: ssl.SSLContext | None, pipeline: Pipeline) -> Link:
    """Connect a socket to `endpoint`; raises `OSError` if that cannot be done."""
    if on_trio():
        from taskbull.store.trio_link import open_trio_link as open_one  # noqa: PLC0415 - optional
    else:
        open_one = open_asyncio_link
    if endpoint.path:
        return await open_one(endpoint, "", tls, pipeline)
    *others, last = await addresses_of(endpoint.host, endpoint.port)
    for address in others:  # such as ::1, where a server listens at 127.0.0.1 only
        with suppress(OSError), move_on_after(NEXT_ADDRESS):
            return await open_one(endpoint, address, tls, pipeline)
    return await open_one(endpoint, last, tls, pipeline)


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of `host`, at least one, the best first; raises `OSError` if none."""
    try:
        ip_address(host)
    except ValueError:
        own = CapacityLimiter(1)
        return await to_thread.run_sync(_look_up, host, port, abandon_on_cancel=True, limiter=own)
    return [host]


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

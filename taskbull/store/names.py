"""The addresses of a host, looked up in threads of our own.

Event loops share few threads with tasks: whoever waits for Redis in all of them would keep us from
finding it.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from anyio import CapacityLimiter, to_thread


async def addresses_of(host: str, port: int) -> list[str]:
    """Give the addresses of `host`, at least one, the best first; raises `OSError` if none."""
    try:
        ip_address(host)
    except ValueError:
        own = CapacityLimiter(1)
        return await to_thread.run_sync(_look_up, host, port, abandon_on_cancel=True, limiter=own)
    return [host]


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

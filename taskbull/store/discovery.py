"""Finding the server's socket: what is done before each connection, the same for both stores.

It is synchronous, and rare: the async store does it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from taskbull.errors import ConnectionLost
from taskbull.store.address import Address, Endpoint
from taskbull.store.embedded import start_or_join


def locate(address: Address) -> Callable[[], Endpoint]:
    """Give the function that finds a server; for a Cluster, one of those that were named."""
    match address.topology:
        case "sentinel":
            return lambda: _primary(address)
        case "embedded":
            return lambda: Endpoint(path=str(start_or_join(Path(address.folder))))
        case _:
            first = address.endpoints[0]
            return lambda: first


def _primary(address: Address) -> Endpoint:
    """Ask the sentinels, one after the other, for the primary of the service."""
    login = address.sentinel_credentials
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        [(endpoint.host, endpoint.port) for endpoint in address.endpoints],
        socket_timeout=1.0,
        socket_connect_timeout=1.0,
        retry=Retry(NoBackoff(), 0),
        username=login.username,
        password=login.password,
    )
    try:
        found = sentinels.discover_master(address.service)  # type: ignore[no-untyped-call]
    except RedisError as error:
        names = ", ".join(map(str, address.endpoints))
        raise ConnectionLost(
            f"no sentinel of {names} knows a primary of {address.service!r}: {error}"
        ) from error
    finally:
        for sentinel in sentinels.sentinels:
            sentinel.close()
    host, port = cast(tuple[str, int], found)
    return Endpoint(host, port)

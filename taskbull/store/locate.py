"""Finding the server's socket before each connection, the same way for both stores.

It is synchronous, and rare: the async store does it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TypeAlias, assert_never, cast

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused
from taskbull.store.address import Address, Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.pipeline import ReplyError, pack
from taskbull.store.sync_connection import SyncConnection

Locate: TypeAlias = Callable[[float], Endpoint]
"""Finds the server within so many seconds, or raises `ConnectionLost`."""

SENTINEL_TIMEOUT = 1.0
EMBEDDED_TIMEOUT = 30.0


def locate(address: Address) -> Locate:
    """Return the function that finds the server; for a Cluster, one of its nodes."""
    match address.topology:
        case "sentinel":
            return lambda timeout: _primary(address, timeout)
        case "embedded":
            return lambda timeout: _embedded(address, timeout)
        case "single" | "cluster":
            first = address.endpoints[0]
            return lambda _limit: first
        case _:
            assert_never(address.topology)


def _embedded(address: Address, timeout: float) -> Endpoint:
    # What starts a server, subprocess and all, is half as much again as `python -c pass`.
    from taskbull.store.embedded import start_or_join  # noqa: PLC0415

    timeout = min(timeout, EMBEDDED_TIMEOUT)
    return Endpoint(path=str(start_or_join(Path(address.folder), timeout, address.idle)))


def _primary(address: Address, timeout: float) -> Endpoint:
    """Return the primary of the service; the sentinels are asked one after the other."""
    ask = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service))
    login = Address("single", credentials=address.sentinel_credentials, tls=address.tls)
    deadline = monotonic() + timeout
    reasons: list[str] = []
    for sentinel in address.endpoints:
        left = min(deadline - monotonic(), SENTINEL_TIMEOUT)
        if left <= 0:
            reasons.append("time is up")
            break
        try:
            connection = SyncConnection(sentinel, login, left)
            [reply] = connection.exchange([ask], Deadline(left, monotonic))
            connection.close()
        except (ConnectionLost, MaybeExecuted, ServerRefused) as error:
            reasons.append(str(error))
            continue
        if isinstance(reply, list):
            host, port = cast("list[bytes]", reply)
            return Endpoint(host.decode(), int(port))
        reasons.append(f"{sentinel} says {reply if isinstance(reply, ReplyError) else 'no'}")
    why = "; ".join(reasons)
    raise ConnectionLost(f"no sentinel knows a primary of {address.service!r}: {why}")

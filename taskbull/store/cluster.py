"""Finding the server's socket before each connection, the same way for both stores.

It is synchronous, and rare: the async store does it in a thread.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TypeAlias, assert_never, cast

from taskbull.core.keys import QueueKeys
from taskbull.errors import ConfigurationError, ConnectionLost, MaybeExecuted, ServerRefused
from taskbull.store.address import Address, Endpoint
from taskbull.store.delivery import Deadline
from taskbull.store.protocol import Reply, ReplyError, pack
from taskbull.store.sync_connection import SyncConnection

# Finding the server's socket before each connection, the same way for both stores.
#
# It is synchronous, and rare: the async store does it in a thread.


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


# Which node of a Redis Cluster serves which slot, as far as the nodes have told; no IO.


READ_SLOTS = pack(("CLUSTER", "SLOTS"))

GUIDE_TIMEOUT = 2.0
"""Seconds in which a node must answer `READ_SLOTS`; then the next one is asked."""

_SLOTS = 16384


class SlotMap:
    """The node of each slot; both stores ask it, and fill it when it does not know.

    Threads share it without a lock: a map is replaced by the next one, never emptied.
    """

    def __init__(self, seeds: tuple[Endpoint, ...]) -> None:
        self._seeds = seeds
        self._known: tuple[Endpoint, ...] = ()  # who drew the last map, and all that are in it
        self._nodes: dict[int, Endpoint] = {}

    def find(self, key: str) -> Endpoint | None:
        """Return the node of a key, if it is known."""
        return self._nodes.get(key_slot(key))

    def node_of(self, key: str) -> Endpoint:
        """Return the node of a key; raise `ConnectionLost` if no node serves its slot."""
        slot = key_slot(key)
        if (node := self._nodes.get(slot)) is None:
            raise ConnectionLost(f"no node of the cluster serves slot {slot} now")
        return node

    @property
    def masters(self) -> list[Endpoint]:
        """The nodes that serve slots."""
        return list(dict.fromkeys(self._nodes.values()))

    def guides(self) -> list[Endpoint]:
        """Return the nodes that can be asked for `READ_SLOTS`, the most promising first."""
        return list(dict.fromkeys((*self._known, *self._nodes.values(), *self._seeds)))

    def draw(self, reply: Reply, asked: Endpoint) -> None:
        """Take over what a node has answered to `READ_SLOTS`.

        Raises `ConnectionLost` if it cannot tell now, `ConfigurationError` if it is not a node.
        """
        self._nodes = read_slots(reply, asked)
        self._known = (asked, *self.masters)

    def move(self, key: str, node: Endpoint) -> None:
        """Note that another node serves the slot of a key now."""
        self._nodes[key_slot(key)] = node

    def forget(self) -> None:
        """Forget where the slots are, but not who can be asked."""
        self._nodes = {}


def key_slot(key: str) -> int:
    """Return the slot of a key: the CRC16 of the key, or of the part in its first braces."""
    raw = key.encode()
    start = raw.find(b"{") + 1
    if start and (end := raw.find(b"}", start)) > start:
        raw = raw[start:end]
    return crc_hqx(raw, 0) % _SLOTS


def read_slots(reply: Reply, asked: Endpoint) -> dict[int, Endpoint]:
    """Read the reply to `READ_SLOTS`; a node without a host is where it was `asked`."""
    if isinstance(reply, ReplyError):
        if "cluster support disabled" in str(reply):
            raise ConfigurationError(
                f"{asked} is not a node of a Redis Cluster: use a redis:// URL"
            )
        raise ConnectionLost(f"{asked}: {reply}")
    return {
        slot: Endpoint(host.decode() if host else asked.host, port)
        for first, last, (host, port, *_), *_replicas in reply
        for slot in range(first, last + 1)
    }


def no_guide(reasons: Sequence[str]) -> ConnectionLost:
    """Return the error for a Cluster whose nodes do not tell their slots."""
    return ConnectionLost(f"no node of the cluster answers ({'; '.join(reasons)})")


def is_clustered(asked: Endpoint) -> ServerRefused:
    """Return the error for a node of a Cluster that was taken for a single server."""
    return ServerRefused(
        "MOVED", f"{asked} is a node of a Redis Cluster: use a redis+cluster:// URL"
    )


def check_slots(queues: Sequence[QueueKeys]) -> None:
    """Refuse queues of a Cluster that are not in one slot: no call could reach all of them."""
    if not any(queue.cluster for queue in queues):
        return
    first = queues[0]
    for queue in queues:
        if queue.base != first.base and key_slot(queue.base) != key_slot(first.base):
            raise ConfigurationError(
                f"queues {first.queue} and {queue.queue} of a flow are in different slots of the "
                "Cluster: give their names a common hash tag, such as "
                f"{{shop}}-{first.queue} and {{shop}}-{queue.queue}"
            )

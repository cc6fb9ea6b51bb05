"""Locating servers: Sentinel, the embedded server, and the slots of a Redis Cluster.

Both stores use this module. A `Locate` function is synchronous, and the async store runs it in a
thread if it does I/O. `SlotMap` does no I/O.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence

from taskbull.core.keys import QueueKeys
from taskbull.errors import ConfigurationError, ConnectionLost, ServerRefused
from taskbull.store.address import Endpoint
from taskbull.store.protocol import Reply, ReplyError, pack

# The slots of a Redis Cluster, and the nodes that serve them.


READ_SLOTS = pack(("CLUSTER", "SLOTS"))

GUIDE_TIMEOUT = 2.0
"""Seconds that a node has to answer `READ_SLOTS` before the next one is asked."""

_SLOTS = 16384


class SlotMap:
    """Map from slots to nodes, the base of both stores' `ClusterNodes`. They fill it.

    Threads share it without a lock. A new map replaces the old one, which is never cleared.
    """

    def __init__(self, seeds: tuple[Endpoint, ...]) -> None:
        self._seeds = seeds
        self._known: tuple[Endpoint, ...] = ()  # the node that sent the last map, and those in it
        self._slots: dict[int, Endpoint] = {}

    def known(self, key: str) -> Endpoint | None:
        """Return the node that serves a key, or None if finding it needs I/O."""
        return self._slots.get(key_slot(key))

    def node_of(self, key: str) -> Endpoint:
        """Return the node that serves a key.

        Raises `ConnectionLost` if no node serves its slot.
        """
        slot = key_slot(key)
        if (node := self._slots.get(slot)) is None:
            raise ConnectionLost(f"no node of the cluster serves slot {slot} now")
        return node

    @property
    def masters(self) -> list[Endpoint]:
        """Nodes that serve slots."""
        return list(dict.fromkeys(self._slots.values()))

    def nodes_to_ask(self) -> list[Endpoint]:
        """Return the nodes to send `READ_SLOTS` to, the most promising first."""
        return list(dict.fromkeys((*self._known, *self._slots.values(), *self._seeds)))

    def draw(self, reply: Reply, asked: Endpoint) -> None:
        """Replace the map with a node's reply to `READ_SLOTS`.

        Raises `ConnectionLost` if the reply is an error, and `ConfigurationError` if the server is
        not a Cluster node.
        """
        self._slots = read_slots(reply, asked)
        self._known = (asked, *self.masters)

    def moved(self, key: str, node: Endpoint) -> None:
        """Record that another node now serves the slot of a key."""
        self._slots[key_slot(key)] = node

    def mark_stale(self) -> None:
        """Forget the slots, but not the nodes that can be asked for them."""
        self._slots = {}


def key_slot(key: str) -> int:
    """Return the slot of a key: the CRC16 of its hash tag, or of the whole key without one."""
    raw = key.encode()
    start = raw.find(b"{") + 1
    if start and (end := raw.find(b"}", start)) > start:
        raw = raw[start:end]
    return crc_hqx(raw, 0) % _SLOTS


def read_slots(reply: Reply, asked: Endpoint) -> dict[int, Endpoint]:
    """Return the node of each slot from a reply to `READ_SLOTS`.

    A node without a host has the host of the node that was `asked`.
    """
    if isinstance(reply, ReplyError):
        if "cluster support disabled" in str(reply):
            raise ConfigurationError(
                f"{asked} is not a node of a Redis Cluster: use a redis:// URL"
            )
        raise ConnectionLost(f"{asked}: {reply}")
    nodes: dict[int, Endpoint] = {}
    for first, last, (host, port, *_), *_replicas in reply:
        node = Endpoint(host.decode() if host else asked.host, port)
        nodes.update(dict.fromkeys(range(first, last + 1), node))
    return nodes


def no_node_answers(reasons: Sequence[str]) -> ConnectionLost:
    """Return the error if no node of a Cluster reports its slots."""
    return ConnectionLost(f"no node of the cluster answers ({'; '.join(reasons)})")


def is_clustered(asked: Endpoint) -> ServerRefused:
    """Return the error for a Cluster node that was addressed as a single server."""
    return ServerRefused(
        "MOVED", f"{asked} is a node of a Redis Cluster: use a redis+cluster:// URL"
    )


def check_slots(queues: Sequence[QueueKeys]) -> None:
    """Raise `ConfigurationError` if the queues of a Cluster are in different slots.

    One call can reach only the keys of one slot.
    """
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

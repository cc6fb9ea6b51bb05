"""Which node of a Redis Cluster serves which slot, as far as the nodes have told; no IO."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence

from taskbull.core.keys import QueueKeys
from taskbull.errors import ConfigurationError, ConnectionLost, ServerRefused
from taskbull.store.address import Endpoint
from taskbull.store.pipeline import Reply, ReplyError, pack

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

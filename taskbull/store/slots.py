"""What a Redis Cluster says about itself: which node serves which slots."""

from __future__ import annotations

from binascii import crc_hqx

from taskbull.errors import ConfigurationError, ConnectionLost, ServerRefused
from taskbull.store.address import Endpoint
from taskbull.store.pipeline import Reply, ReplyError, pack

READ_SLOTS = pack(("CLUSTER", "SLOTS"))


_SLOTS = 16384


def key_slot(key: str) -> int:
    """Give the slot of a key: the CRC16 of it, or of what stands in its first braces."""
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


def is_clustered(asked: Endpoint) -> ServerRefused:
    """Make the error for a server that was taken for a single one."""
    return ServerRefused(
        "MOVED", f"{asked} is a node of a Redis Cluster: use a redis+cluster:// URL"
    )

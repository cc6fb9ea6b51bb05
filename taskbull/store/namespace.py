"""Where the queues of an app, a worker or a command are."""

from __future__ import annotations

from msgspec import Struct

from taskbull.core.keys import PREFIX, QueueKeys
from taskbull.store.address import Address


class Namespace(Struct, frozen=True):
    """The queues under one prefix of one Redis; a wrong prefix or hash tag is refused."""

    address: Address
    prefix: str = PREFIX
    hash_tag: bool | None = None
    """Whether names of queues stand in braces in keys; None: in a Cluster, which needs it."""

    def __post_init__(self) -> None:
        self.keys("any")

    def __str__(self) -> str:
        """Show where, never a password."""
        return f"{self.address}, prefix {self.prefix}"

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys of a queue; refuse a name that no queue can have."""
        return QueueKeys(queue, self.prefix, self.address.clustered, self.hash_tag)

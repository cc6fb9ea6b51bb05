"""Who is connected: the workers of each queue, Node's and ours."""

from __future__ import annotations

from taskbull.cli.site import Site
from taskbull.errors import ServerRefused
from taskbull.scripts.servers import ConnectedWorker, list_workers
from taskbull.store.address import Endpoint


class Crowd:
    """Knows the workers of all queues; each server is asked once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._clients: dict[Endpoint, bytes | None] = {}

    def of(self, queue: str) -> list[ConnectedWorker] | None:
        """Give the workers of a queue; None if the server does not say who is connected."""
        keys = self._site.keys(queue)
        server = self._site.redis.server_of(keys.base)
        if server not in self._clients:
            self._clients[server] = self._ask(server)
        clients = self._clients[server]
        return None if clients is None else list_workers(keys).parse(clients)

    def _ask(self, server: Endpoint) -> bytes | None:
        try:
            reply: bytes = self._site.redis.ask(server, "CLIENT", "LIST")
        except ServerRefused:  # an ACL rule, or a provider that forbids it
            return None
        return reply

"""Server methods that inspect the Redis servers and find the queues.

Each operation is a generator that yields questions and receives the answers. It does no I/O.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TypeAlias

from taskbull.errors import ServerRefused, TaskbullError
from taskbull.monitor.search import SearchPlace, all_queues, find_queues
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import (
    ask,
    ask_on,
    list_servers,
    lost_servers,
    server_of,
)
from taskbull.scripts import browse, servers
from taskbull.scripts.call import AnySteps
from taskbull.scripts.events import last_event_id
from taskbull.scripts.servers import probe_commands, try_plainly, try_shared_keys
from taskbull.store.address import Endpoint, Namespace

Node: TypeAlias = Endpoint
"""A Redis server that holds queues: the only one, or a master of a Cluster."""


class ServerOperations:
    """Methods that inspect all queues in a namespace."""

    namespace: Namespace
    _known: frozenset[str]

    # The servers

    @server_operation
    def servers(self) -> AnySteps[list[Node]]:
        """List the servers that hold the queues: a single one, or the masters of a Cluster."""
        return list_servers()

    @server_operation
    def ping(self, server: Node | None = None) -> AnySteps[None]:
        """Raise an error if Redis, or the given server, does not answer.

        A Cluster counts as available if one of its nodes answers.
        """
        if server is not None:
            yield from ask_on(server, servers.ping())
        else:
            yield from self._lost_servers()

    @server_operation
    def lost_servers(self) -> AnySteps[dict[Node, str]]:
        """Return the servers that do not answer, with the errors. Raise if none answers."""
        lost = yield from self._lost_servers()
        return {node: str(error) for node, error in lost.items()}

    def _lost_servers(self) -> AnySteps[dict[Node, TaskbullError]]:
        nodes = yield from list_servers()
        lost = yield from lost_servers(nodes)
        if len(lost) == len(nodes):
            raise lost[nodes[0]]
        return lost

    @server_operation
    def info(self, server: Node) -> AnySteps[dict[str, str]]:
        """Return the fields of a server's INFO."""
        return ask_on(server, servers.get_info())

    @server_operation
    def cluster_info(self, server: Node) -> AnySteps[dict[str, str]]:
        """Return the fields of a server's CLUSTER INFO."""
        return ask_on(server, servers.get_cluster_info())

    @server_operation
    def save_points(self, server: Node) -> AnySteps[str]:
        """Return a server's snapshot settings (`save`). Empty if it writes no snapshots."""
        return ask_on(server, servers.get_setting("save"))

    @server_operation
    def time(self, server: Node) -> AnySteps[float]:
        """Return the time by a server's clock, in seconds since 1970."""
        return ask_on(server, servers.get_time())

    @server_operation
    def server_of(self, queue: str) -> AnySteps[Node]:
        """Return the server that holds a queue."""
        return server_of(self.namespace.keys(queue))

    @server_operation
    def refused_commands(self, queue: str) -> AnySteps[dict[str, str]]:
        """Try all commands that taskbull needs for a queue. Return the refused ones with errors."""
        keys, token = self.namespace.keys(queue), token_hex(8)
        server = yield from server_of(keys)
        refused = yield from ask_on(server, probe_commands(keys, token))
        for name, command in try_plainly(keys, token).items():
            try:
                yield from ask_on(server, command)
            except ServerRefused as error:
                if error.code == "NOPERM" or "unknown command" in str(error):
                    refused[name] = str(error)
        return refused

    @server_operation
    def try_shared_keys(self) -> AnySteps[None]:
        """Raise an error if the user may not write the keys that all queues share."""
        return ask(try_shared_keys(self.namespace.prefix, token_hex(8)))

    # The queues

    @server_operation
    def exists(self, queue: str) -> AnySteps[bool]:
        """Return True if a queue is in Redis or belongs to a task of the app."""
        keys = self.namespace.keys(queue)
        if queue in self._known:
            return True
        return (yield from ask(browse.exists(keys)))

    @server_operation
    def find_queues(
        self, place: SearchPlace | None = None
    ) -> AnySteps[tuple[list[str], SearchPlace | None]]:
        """Return the queues in the next 1000 keys or so, and the place of the next step.

        The place is None after the last step.
        """
        return find_queues(self.namespace, place)

    @server_operation
    def queues(self) -> AnySteps[list[str]]:
        """Return the sorted names of all queues, in Redis and in the app.

        This scans all keys of the server in short calls. `find_queues` makes one such call.
        """
        return all_queues(self.namespace, self._known)

    @server_operation
    def last_event_id(self, queue: str) -> AnySteps[str]:
        """Return the id of a queue's last event, or `0-0` if there is none."""
        return ask(last_event_id(self.namespace.keys(queue)))

"""One call that needs more than one step: a search for its node, a deadline, or trouble met."""

from __future__ import annotations

from typing import Any

from anyio import Event, move_on_after, sleep

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.scripts.call import Request
from taskbull.scripts.loader import Script
from taskbull.store.address import Endpoint
from taskbull.store.connection import Connection
from taskbull.store.delivery import Leave, Load, Moved, Pause, Replied, Send, Step, deliver
from taskbull.store.limit import Limit
from taskbull.store.pipeline import Reply, ReplyError, pack
from taskbull.store.topology import Topology


class ScriptLoader:
    """Loads scripts on servers that do not know them, once however many calls found out."""

    def __init__(self) -> None:
        self._loading: dict[tuple[Endpoint, str], Event] = {}

    async def load(self, connection: Connection, script: Script, limit: Limit) -> Reply | None:
        """Load a script, or wait while another call does; give the reply if it means trouble."""
        what = (connection.endpoint, script.sha)
        if (loading := self._loading.get(what)) is not None:
            with move_on_after(limit.timeout):
                await loading.wait()
            return None
        self._loading[what] = loaded = Event()
        try:
            load = pack(("SCRIPT", "LOAD", script.source))
            reply = await connection.execute(load, limit)
            return reply if isinstance(reply, ReplyError) else None
        except ConnectionLost as error:
            return error
        except MaybeExecuted:
            return None  # loading twice does no harm: the call itself will find out
        finally:
            del self._loading[what]
            loaded.set()


class Errand:
    """Brings one call to its end, whatever it meets on the way."""

    def __init__(
        self, call: Request[Any], topology: Topology, loader: ScriptLoader, limit: Limit
    ) -> None:
        self._call = call
        self._topology = topology
        self._loader = loader
        self._command = pack(call.words if topology.single else call.cluster_words)
        self._limit = limit
        self._links = 0

    async def run(self) -> Reply:
        """Send the call and see it through."""
        return await self._see_through(await self._send(Send()))

    async def go_on(self, connection: Connection, links: int, reply: Reply) -> Reply:
        """Go on from a reply that means trouble; it came while the connection had `links` links."""
        self._links = links
        return await self._see_through((connection.endpoint, reply))

    async def _see_through(self, replied: Replied) -> Reply:
        delivery = deliver(replied, self._limit)
        try:
            step = next(delivery)
            while True:
                step = delivery.send(await self._perform(step))
        except StopIteration as end:
            return end.value

    async def _perform(self, step: Step) -> Any:
        match step:
            case Send():
                return await self._send(step)
            case Load(node):
                if self._call.script is not None:
                    connection = self._topology.node(node)
                    return await self._loader.load(connection, self._call.script, self._limit)
            case Moved(node):
                self._topology.moved(self._call.key, node)
            case Leave(node, reason):
                self._topology.node(node).leave(self._links, reason)
                self._topology.doubt()
            case Pause(seconds):
                await sleep(seconds)
        return None

    async def _find(self, node: Endpoint | None) -> Connection:
        if node is not None:
            return self._topology.node(node)
        with move_on_after(self._limit.timeout):
            return await self._topology.find(self._call.key)
        raise ConnectionLost(f"no node of the cluster was found{self._limit}")

    async def _send(self, step: Send) -> Replied:
        node = step.node or Endpoint()
        try:
            connection = await self._find(step.node)
            self._links = connection.links
            reply = await connection.execute(self._command, self._limit, asking=step.asking)
            node = connection.endpoint
        except ConnectionLost as error:
            if self._topology.single:  # it has waited for the server to come back already
                raise
            reply = error  # another node may have taken over
        return node, reply

"""One call of the async store that needs more than one step: a search, a deadline, an error."""

from __future__ import annotations

from typing import Any

from anyio import Event, current_time, move_on_after, sleep
from msgspec import Struct

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.scripts.call import Request
from taskbull.scripts.loader import Script
from taskbull.store.address import Endpoint
from taskbull.store.connection import Connection
from taskbull.store.deadline import Deadline
from taskbull.store.pipeline import Reply, ReplyError, pack
from taskbull.store.reconnection import Connected, DialFailed, Notify
from taskbull.store.redelivery import Leave, Load, Moved, Pause, Replied, Send, Step, redeliver
from taskbull.store.topology import Topology

NOWHERE = Endpoint()


class ScriptLoader:
    """Loads scripts on servers that do not have them, once for all calls that need them."""

    def __init__(self) -> None:
        self._loading: dict[tuple[Endpoint, str], Event] = {}
        self._loaded: set[tuple[Endpoint, str]] = set()

    async def load(
        self, connection: Connection, script: Script, deadline: Deadline, *, again: bool
    ) -> Reply | None:
        """Load a script, or wait while another call does; return the reply if it is an error.

        A script that was loaded before is loaded only if the call needs it `again`: else the call
        was sent before that, and need only be sent again.
        """
        what = (connection.endpoint, script.sha)
        if what in self._loaded and not again:
            return None
        if (loading := self._loading.get(what)) is not None:
            with move_on_after(deadline.timeout):
                await loading.wait()
            return None
        self._loading[what] = loaded = Event()
        try:
            load = pack(("SCRIPT", "LOAD", script.source))
            reply = await connection.execute(load, deadline)
            if isinstance(reply, ReplyError):
                return reply
            self._loaded.add(what)
            return None
        except ConnectionLost as error:
            return error
        except MaybeExecuted:
            return None  # loading twice does no harm: the call itself will find out
        finally:
            del self._loading[what]
            loaded.set()


class OutagePolicy(Struct, frozen=True):
    """How calls treat a node of a Cluster that cannot be reached."""

    notify: Notify
    patience: float
    """Seconds for which a call without a deadline waits for the node."""


class Outage:
    """A part of a Cluster that one call cannot reach; reported at growing intervals."""

    def __init__(self, policy: OutagePolicy, part: str) -> None:
        self._policy = policy
        self._part = part
        self._until = current_time() + policy.patience
        self._failures = 0
        self._reason = ""

    def go_on(self, error: ConnectionLost) -> None:
        """Count a failed try; raise its error if it was the last one."""
        self._failures += 1
        self._reason = str(error)
        if current_time() > self._until:
            raise error

    def wait(self, delay: float) -> None:
        """Report that the next try comes after a pause."""
        if self._failures.bit_count() == 1:  # the tries 1, 2, 4, 8, ...
            self._policy.notify(DialFailed(self._reason, self._failures, delay, self._part))

    def end(self, node: Endpoint) -> None:
        """Report that a node answers again."""
        self._policy.notify(Connected(str(node), self._failures, self._part))


class AsyncCall:
    """Brings one call to its result, whatever happens on the way."""

    def __init__(
        self,
        call: Request[Any],
        topology: Topology,
        loader: ScriptLoader,
        policy: OutagePolicy,
        deadline: Deadline,
    ) -> None:
        self._call = call
        self._topology = topology
        self._loader = loader
        self._policy = policy
        self._command = pack(call.words if topology.single else call.cluster_words)
        self._deadline = deadline
        self._generation = 0
        self._unknown = False  # the server did not know its script once
        self._outage: Outage | None = None

    async def run(self) -> Reply:
        """Send the call and return its reply."""
        return await self._see_through(await self._send(Send()))

    async def go_on(self, connection: Connection, generation: int, reply: Reply) -> Reply:
        """Continue after an error reply, which came on that generation of the connection's link."""
        self._generation = generation
        return await self._see_through((connection.endpoint, reply))

    async def _see_through(self, replied: Replied) -> Reply:
        redelivery = redeliver(replied, self._deadline)
        try:
            step = next(redelivery)
            while True:
                step = redelivery.send(await self._perform(step))
        except StopIteration as end:
            return end.value

    async def _perform(self, step: Step) -> Any:
        match step:
            case Send():
                return await self._send(step)
            case Load(node):
                if self._call.script is not None:
                    again, self._unknown = self._unknown, True
                    connection = self._topology.node(node)
                    script = self._call.script
                    return await self._loader.load(connection, script, self._deadline, again=again)
            case Moved(node):
                self._topology.moved(self._call.key, node)
            case Leave(node, reason):
                if node != NOWHERE:
                    self._topology.node(node).leave(self._generation, reason)
                self._topology.doubt()
            case Pause(seconds):
                if self._outage is not None:
                    self._outage.wait(seconds)
                await sleep(seconds)
        return None

    async def _find(self, node: Endpoint | None) -> Connection:
        if node is not None:
            return self._topology.node(node)
        with move_on_after(self._deadline.timeout):
            return await self._topology.find(self._call.key)
        raise ConnectionLost(f"no node of the cluster was found{self._deadline}")

    async def _send(self, step: Send) -> Replied:
        node = step.node or NOWHERE
        try:
            connection = await self._find(step.node)
            self._generation = connection.generation
            reply = await connection.execute(self._command, self._deadline, asking=step.asking)
            node = connection.endpoint
        except ConnectionLost as error:
            if self._topology.single:  # it has waited for the server to come back already
                raise
            self._miss(error)
            reply = error  # another node may have taken over
        else:
            if self._outage is not None:
                self._outage.end(node)
                self._outage = None
        return node, reply

    def _miss(self, error: ConnectionLost) -> None:
        """Count that no node can be reached now."""
        if self._deadline.seconds is not None:
            return  # whoever has set it is told
        if self._outage is None:
            self._outage = Outage(self._policy, self._topology.part(self._call.key))
        self._outage.go_on(error)

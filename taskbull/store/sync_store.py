"""The store for code without an event loop. It can be used from any thread, and after a fork.

It runs the same calls as the async store. A `SyncTopology` finds the server for a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from taskbull.errors import ConnectionLost, MaybeExecuted, TaskbullError
from taskbull.scripts.call import (
    ONE_CALL,
    AnyRequest,
    AnySteps,
    Call,
    Command,
    Request,
    Steps,
    none_failed,
)
from taskbull.scripts.loader import Script
from taskbull.store.address import Address, Endpoint
from taskbull.store.cluster import (
    GUIDE_TIMEOUT,
    READ_SLOTS,
    SlotMap,
    is_clustered,
    locate,
    no_guide,
)
from taskbull.store.delivery import (
    NONSENSE,
    Deadline,
    Drive,
    Leave,
    Load,
    Moved,
    Pause,
    Replied,
    Send,
    Step,
    invalid_reply,
    loading,
    read_replies,
    read_reply,
    redeliver,
    time_to_finish,
)
from taskbull.store.protocol import ASKING, Reply, ReplyError, pack
from taskbull.store.sync_connection import ConnectionPool, SyncPipeline

# Topologies: one server for all keys, or the nodes of a Cluster.


class SyncTopology(Protocol):
    """The servers at an address, without an event loop. Threads share it."""

    single: bool
    """True if there is one server at a time, so that no other can replace it while it is down."""

    only: Endpoint | None
    """The only server, or None if it is unknown or this is a Cluster."""

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        """Return the server that holds `key`.

        Raises `ConnectionLost` if none can be found now.
        """
        ...

    def known(self, key: str) -> Endpoint | None:
        """Return the server that holds `key`, or None if finding it needs I/O."""
        ...

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        """Return the servers that hold the data."""
        ...

    def moved(self, key: str, endpoint: Endpoint) -> None:
        """Record that `endpoint` now holds `key`."""
        ...

    def doubt(self) -> None:
        """Locate the servers again before the next call."""
        ...


def sync_topology(address: Address, pool: ConnectionPool) -> SyncTopology:
    """Return the topology for an address."""
    return SyncClusterNodes(address, pool) if address.clustered else SyncOneServer(address)


class SyncOneServer:
    """A single server, the primary that Sentinel names, or the embedded server."""

    single = True

    def __init__(self, address: Address) -> None:
        self._locate = locate(address)
        self.only: Endpoint | None = None

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        server = self.only
        if server is None:
            server = self.only = self._locate(deadline.left)
        return server

    def known(self, key: str) -> Endpoint | None:
        return self.only

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        return [self.find("", deadline)]

    def moved(self, key: str, endpoint: Endpoint) -> None:
        raise is_clustered(self.only or endpoint)

    def doubt(self) -> None:
        self.only = None


class SyncClusterNodes:
    """The masters of a Redis Cluster."""

    single = False
    only: Endpoint | None = None

    def __init__(self, address: Address, pool: ConnectionPool) -> None:
        self._pool = pool
        self._map = SlotMap(address.endpoints)

    def find(self, key: str, deadline: Deadline) -> Endpoint:
        if (node := self._map.find(key)) is not None:
            return node
        self._draw_map(deadline)
        return self._map.node_of(key)

    def known(self, key: str) -> Endpoint | None:
        return self._map.find(key)

    def servers(self, deadline: Deadline) -> list[Endpoint]:
        self.find("", deadline)  # any key will do, because this reads all slots
        return self._map.masters

    def moved(self, key: str, endpoint: Endpoint) -> None:
        self._map.move(key, endpoint)

    def doubt(self) -> None:
        self._map.forget()

    def _draw_map(self, deadline: Deadline) -> None:
        """Ask the nodes for the slots, one after the other, until one answers."""
        reasons: list[str] = []
        for node in self._map.guides():
            soon = Deadline(min(deadline.left, GUIDE_TIMEOUT), monotonic)
            try:
                [reply] = self._pool.exchange(node, [READ_SLOTS], soon)
                return self._map.draw(reply, node)
            except (ConnectionLost, MaybeExecuted) as error:
                reasons.append(str(error))
        raise no_guide(reasons)


# The store.


T = TypeVar("T")

_TROUBLE = (ReplyError, ConnectionLost)


class SyncPendingOperation(Struct, Generic[T], eq=False):
    """An operation whose first call was sent, if that was possible."""

    store: SyncStore
    drive: Drive[T]
    pipeline: SyncPipeline | None = None
    """Pipeline that receives the reply, or None if the call was not sent."""
    is_smooth: bool = False
    """True if the first call was sent immediately and, if answered, gave the result."""

    def finish(self, *, timeout: float | None = None, given_up: bool = False) -> T:
        """Return the result of the operation, as `SyncStore.finish` does."""
        return self.store.finish(self, timeout=timeout, given_up=given_up)

    def leave(self) -> None:
        """Abandon the operation, and close its connection."""
        self.drive.close()
        if self.pipeline is not None:
            self.pipeline.close()


class SyncStore:
    """Store that runs calls against the Redis at an address, from any thread.

    Threads never use a connection concurrently.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = ConnectionPool(address)
        self._topology = sync_topology(address, self._pool)

    def run(
        self,
        operation: Request[T] | AnySteps[T],
        *,
        timeout: float | None = None,
        total: float | None = None,
        keep_trying: bool = True,
    ) -> T:
        """Run a call, or an operation of several calls, and return the result.

        `timeout` limits each call, including its retries, so an operation that works in chunks may
        take longer. `total` limits the whole operation. Without either, this waits until Redis is
        reachable again. A server that is reachable but cannot serve is retried for
        `delivery.PATIENCE` seconds. A single call with `keep_trying=False` fails immediately if
        Redis cannot serve it now.

        Raises `ConnectionLost` (not executed), `MaybeExecuted` or `ServerRefused`.
        """
        deadline = Deadline(timeout if total is None else total, monotonic)
        if isinstance(operation, Call | Command):
            return self.run_within(operation, deadline, keep_trying=keep_trying)
        return self._complete(Drive(operation, deadline, renew=total is None))

    def run_within(self, call: Request[T], deadline: Deadline, *, keep_trying: bool = True) -> T:
        """Run one call and return its result, with a deadline that calls can share.

        Raises the same errors as `run`.
        """
        node = self._topology.only
        if node is None:
            node, reply = self._send(call, Send(), deadline)
        else:  # the common case, at half the cost
            try:
                [reply] = self._pool.exchange(node, [pack(call.words)], deadline, call.held)
            except ConnectionLost as error:
                reply = error
        if isinstance(reply, _TROUBLE):
            reply = self._finish_call(call, (node, reply), deadline, keep_trying=keep_trying)
        try:
            return call.parse(reply)
        except TaskbullError:
            raise
        except NONSENSE as error:
            raise invalid_reply(self.address, reply) from error

    def run_all(self, calls: Sequence[Request[T]], *, timeout: float | None = None) -> list[T]:
        """Run several calls in one round trip per server, and return the results in order.

        If calls fail, the first error is raised after all have finished. `timeout` limits all calls
        together.
        """
        return none_failed(self.run_each(calls, timeout=timeout))

    def run_each(
        self, calls: Sequence[Request[T]], *, timeout: float | None = None
    ) -> list[T | TaskbullError]:
        """Run several calls in one round trip per server, and return the results in order.

        A failed call has its error as its result. `timeout` limits all calls together.
        """
        deadline = Deadline(timeout, monotonic)
        results: list[T | TaskbullError] = []
        for call, replied in zip(calls, self._send_all(calls, deadline), strict=True):
            try:
                if isinstance(replied[1], MaybeExecuted):
                    raise replied[1]
                reply = self._finish_call(call, replied, deadline)
                results.append(read_reply(call, reply, self.address))
            except TaskbullError as error:
                results.append(error)
        return results

    def read_many(
        self, calls: Sequence[Request[Any]], *, each: bool, timeout: float | None
    ) -> list[Any]:
        """Run the calls of a `Many` request."""
        return (self.run_each if each else self.run_all)(calls, timeout=timeout)

    def go_on(self, steps: Steps[T], deadline: Deadline, failed: TaskbullError) -> T:
        """Continue an operation whose first call has already failed."""
        drive = Drive(steps, deadline)
        drive.fail(failed)
        return self._complete(drive)

    def begin(
        self,
        steps: Steps[T],
        behind: SyncPendingOperation[Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> SyncPendingOperation[T]:
        """Send the first call of an operation if possible. Pass the result to `finish`.

        The call uses the connection of the unfinished operation `behind`, if that is possible.
        """
        begun = SyncPendingOperation(self, Drive(steps, Deadline(timeout, monotonic)))
        if begun.drive.asks:
            with suppress(ConnectionLost):
                self._send_first(begun, None if behind is None else behind.pipeline)
        return begun

    def _send_first(self, begun: SyncPendingOperation[Any], former: SyncPipeline | None) -> None:
        call, deadline = begun.drive.request(), begun.drive.deadline
        node = self._topology.find(call.key, deadline)
        if former is None or former.endpoint != node or not former.usable:
            former = SyncPipeline(self._pool, node, deadline)
        begun.pipeline, begun.is_smooth = former, True
        former.send(self._pack(call), deadline)

    def finish(
        self,
        begun: SyncPendingOperation[T],
        *,
        timeout: float | None = None,
        given_up: bool = False,
    ) -> T:
        """Return the result of an operation that was started, retrying its calls if necessary.

        With `given_up`, no further calls are made, and the first call has only a short time to
        finish.
        """
        drive = begun.drive
        answer_by, drive.deadline = time_to_finish(timeout, given_up=given_up)
        try:
            if begun.pipeline is not None:
                with drive:
                    drive.answer = self._answer(begun, begun.pipeline, answer_by)
                begun.is_smooth = begun.is_smooth and not drive.asks
            return self._complete(drive)
        except BaseException:
            begun.leave()
            raise

    def _answer(
        self, begun: SyncPendingOperation[Any], pipeline: SyncPipeline, deadline: Deadline
    ) -> Any:
        call, reply = begun.drive.request(), pipeline.receive(deadline)
        begun.is_smooth = not isinstance(reply, _TROUBLE)
        reply = self._finish_call(call, (pipeline.endpoint, reply), deadline)
        return read_reply(call, reply, self.address)

    def _complete(self, drive: Drive[T]) -> T:
        while drive.asks:
            with drive:
                request: AnyRequest = drive.request()
                if isinstance(request, ONE_CALL):
                    drive.answer = self.run_within(request, drive.deadline)
                else:
                    drive.answer = request.serve(self, drive.deadline.seconds)
        return drive.result

    def servers(self, *, timeout: float | None = None) -> list[Endpoint]:
        """Return the servers that hold the data: one server, or the masters of a Cluster."""
        return self._topology.servers(Deadline(timeout, monotonic))

    def server_of(self, key: str, *, timeout: float | None = None) -> Endpoint:
        """Return the server that holds a key."""
        return self._topology.find(key, Deadline(timeout, monotonic))

    def run_on(self, server: Endpoint, call: Request[T], *, timeout: float | None = None) -> T:
        """Run one call on one server, without retries or redirections."""
        commands = [*map(pack, loading(call)), pack(call.words)]
        try:
            replies = self._pool.exchange(server, commands, Deadline(timeout, monotonic), call.held)
        except (ConnectionLost, MaybeExecuted):
            self._leave(server)  # another server may take over
            raise
        return read_replies(call, replies, server)

    def whereabouts(self, key: str) -> Endpoint | None:
        """Return the server where `key` was last found, or None if unknown. Does no I/O."""
        return self._topology.known(key)

    def close_stale(self) -> None:
        """Close the stale connections among those that are not in use."""
        self._pool.close_stale()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()

    def _finish_call(
        self, call: Request[Any], replied: Replied, deadline: Deadline, *, keep_trying: bool = True
    ) -> Reply:
        if not isinstance(replied[1], _TROUBLE):
            return replied[1]
        redelivery = redeliver(replied, deadline, keep_trying=keep_trying)
        try:
            step = next(redelivery)
            while True:
                step = redelivery.send(self._perform(call, step, deadline))
        except StopIteration as end:
            return end.value

    def _perform(self, call: Request[Any], step: Step, deadline: Deadline) -> Any:
        match step:
            case Send():
                return self._send(call, step, deadline)
            case Load(node):
                if call.script is not None:
                    return self._load(node, call.script, deadline)
            case Moved(node):
                self._topology.moved(call.key, node)
            case Leave(node, _):
                self._leave(node)
            case Pause(seconds):
                sleep(seconds)
        return None

    def _leave(self, node: Endpoint) -> None:
        self._pool.discard(node)
        self._topology.doubt()

    def _load(self, node: Endpoint, script: Script, deadline: Deadline) -> Reply | None:
        load = pack(("SCRIPT", "LOAD", script.source))
        try:
            [reply] = self._pool.exchange(node, [load], deadline)
        except ConnectionLost as error:
            return error
        except MaybeExecuted:
            return None  # if the script is still missing, the call gets NOSCRIPT again
        return reply if isinstance(reply, ReplyError) else None

    def _send(self, call: Request[Any], step: Send, deadline: Deadline) -> Replied:
        """Send the call and return the reply, or the error if no connection could be made."""
        node = step.node or Endpoint()
        commands = [ASKING, self._pack(call)] if step.asking else [self._pack(call)]
        try:
            node = step.node or self._topology.find(call.key, deadline)
            reply = self._pool.exchange(node, commands, deadline, call.held)[-1]
        except ConnectionLost as error:
            reply = error
        return node, reply

    def _send_all(self, calls: Sequence[Request[Any]], deadline: Deadline) -> list[Replied]:
        replies: list[Replied] = []
        by_node: dict[Endpoint, list[int]] = {}
        for place, call in enumerate(calls):
            try:
                node = self._topology.find(call.key, deadline)
            except ConnectionLost as error:
                replies.append((Endpoint(), error))
            else:
                replies.append((node, None))
                by_node.setdefault(node, []).append(place)
        for asked, (node, places) in enumerate(by_node.items()):
            # Divide the time, so that a node that does not answer leaves some for the rest.
            within = deadline
            if deadline.seconds is not None:
                within = Deadline(deadline.left / (len(by_node) - asked), monotonic)
            commands = [self._pack(calls[place]) for place in places]
            answers: list[Reply]
            try:
                answers = self._pool.exchange(node, commands, within)
            except (ConnectionLost, MaybeExecuted) as error:
                answers = [error] * len(places)
            for place, answer in zip(places, answers, strict=True):
                replies[place] = (node, answer)
        return replies

    def _pack(self, call: Request[Any]) -> bytes:
        return pack(call.words if self._topology.single else call.cluster_words)

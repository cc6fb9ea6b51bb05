"""The store for code without an event loop: the same calls, from any thread, after a fork too."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

from taskbull.errors import ConnectionLost, MaybeExecuted, TaskbullError
from taskbull.scripts.call import Call, Command, Operation, Request, Steps
from taskbull.scripts.loader import Script
from taskbull.store.address import Address, Endpoint
from taskbull.store.deadline import Deadline
from taskbull.store.direct_call import loading, read_replies
from taskbull.store.pipeline import ASKING, Reply, ReplyError, pack
from taskbull.store.redelivery import Leave, Load, Moved, Pause, Replied, Send, Step, redeliver
from taskbull.store.sync_connection import ConnectionPool
from taskbull.store.sync_topology import sync_topology

T = TypeVar("T")

_TROUBLE = (ReplyError, ConnectionLost)


class SyncStore:
    """Runs calls against the Redis at an address, each on a connection of its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = ConnectionPool(address)
        self._topology = sync_topology(address, self._pool)

    def run(
        self,
        operation: Operation[T],
        *,
        timeout: float | None = None,
        total: float | None = None,
        insist: bool = True,
    ) -> T:
        """Run one call, or several, and return the result.

        Raises `ConnectionLost` (not executed), `MaybeExecuted`, or `ServerRefused`. Without a
        `timeout` it waits for Redis to come back, as long as that takes. `timeout` is for each
        call, over all tries: what works in pieces may take long, as long as the pieces come.
        `total` is for everything. One call that does not `insist` fails at once where Redis
        cannot serve it now.
        """
        deadline = Deadline(timeout if total is None else total, monotonic)
        if isinstance(operation, Call | Command):
            return self.run_within(operation, deadline, insist=insist)
        return self._drive(operation, deadline, renew=total is None)

    def run_within(self, call: Request[T], deadline: Deadline, *, insist: bool = True) -> T:
        """Run one call and return its result; as `run`, with a deadline that others may share."""
        node = self._topology.only
        if node is None:
            node, reply = self._send(call, Send(), deadline)
        else:  # the ordinary case, at half the price
            try:
                [reply] = self._pool.exchange(node, [pack(call.words)], deadline, call.held)
            except ConnectionLost as error:
                reply = error
        if isinstance(reply, _TROUBLE):
            reply = self._see_through(call, (node, reply), deadline, insist=insist)
        return call.parse(reply)

    def run_all(self, calls: Sequence[Request[T]], *, timeout: float | None = None) -> list[T]:
        """Run several calls in one trip; results in order. If some fail, the first error is raised
        when all have ended."""
        deadline = Deadline(timeout, monotonic)
        results: list[T] = []
        errors: list[TaskbullError] = []
        for call, replied in zip(calls, self._send_all(calls, deadline), strict=True):
            try:
                results.append(call.parse(self._see_through(call, replied, deadline)))
            except TaskbullError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return results

    def go_on(self, steps: Steps[T], deadline: Deadline, failed: TaskbullError) -> T:
        """Run an operation whose first call was made already, and failed."""
        return self._drive(steps, deadline, failed, renew=True)

    def _drive(
        self,
        steps: Steps[T],
        deadline: Deadline,
        failed: TaskbullError | None = None,
        *,
        renew: bool,
    ) -> T:
        try:
            call = next(steps)
            if failed is not None:
                call = steps.throw(failed)
            while True:
                try:
                    if failed is not None and deadline.too_late_after(failed):
                        raise ConnectionLost(str(failed)) from failed
                    result = self.run_within(call, deadline)
                except TaskbullError as error:
                    call = steps.throw(failed := error)
                else:
                    failed = None
                    if renew:
                        deadline = Deadline(deadline.seconds, monotonic)
                    call = steps.send(result)
        except StopIteration as end:
            result_of_all: T = end.value
            return result_of_all

    def servers(self, *, timeout: float | None = None) -> list[Endpoint]:
        """Return the servers that hold the data: one, or the masters of a Cluster."""
        return self._topology.servers(Deadline(timeout, monotonic))

    def server_of(self, key: str, *, timeout: float | None = None) -> Endpoint:
        """Return the server that holds a key."""
        return self._topology.find(key, Deadline(timeout, monotonic))

    def run_on(self, server: Endpoint, call: Request[T], *, timeout: float | None = None) -> T:
        """Run one call on one of the servers; nothing is tried again, nor anywhere else."""
        commands = [*map(pack, loading(call)), pack(call.words)]
        try:
            replies = self._pool.exchange(server, commands, Deadline(timeout, monotonic), call.held)
        except (ConnectionLost, MaybeExecuted):
            self._leave(server)  # another may take over: look anew
            raise
        return read_replies(call, replies)

    def whereabouts(self, key: str) -> Endpoint | None:
        """Return where `key` was found the last time, if that is known; nobody is asked."""
        return self._topology.known(key)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()

    def _see_through(
        self, call: Request[Any], replied: Replied, deadline: Deadline, *, insist: bool = True
    ) -> Reply:
        if not isinstance(replied[1], _TROUBLE):
            return replied[1]
        redelivery = redeliver(replied, deadline, insist=insist)
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
            return None  # loading twice does no harm: the call itself will find out
        return reply if isinstance(reply, ReplyError) else None

    def _send(self, call: Request[Any], step: Send, deadline: Deadline) -> Replied:
        """Send the call; a connection that could not be made counts as a reply."""
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
        for node, places in by_node.items():
            commands = [self._pack(calls[place]) for place in places]
            answers: list[Reply]
            try:
                answers = self._pool.exchange(node, commands, deadline)
            except ConnectionLost as error:
                answers = [error] * len(places)
            for place, answer in zip(places, answers, strict=True):
                replies[place] = (node, answer)
        return replies

    def _pack(self, call: Request[Any]) -> bytes:
        return pack(call.words if self._topology.single else call.cluster_words)

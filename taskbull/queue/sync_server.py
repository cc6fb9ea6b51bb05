"""The sync server: the same operations for code without an event loop."""

from __future__ import annotations

from typing import Any, TypeVar

from taskbull.core.wire.events import QueueEvent
from taskbull.errors import TaskbullError
from taskbull.queue.any_server import AnyServer
from taskbull.queue.driver import Driver
from taskbull.queue.methods import Blocking
from taskbull.queue.questions import Look, On, Question, ServerOf, Servers, Together
from taskbull.queue.sync_queue import SyncQueue
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import again, none_failed
from taskbull.scripts.events import read_events
from taskbull.store.protocol_probe import Protocol, wrong_protocol

T = TypeVar("T")


class SyncServer(AnyServer, Blocking):
    """All queues of a Redis server, for code without an event loop."""

    def queue(self, name: str) -> SyncQueue:
        """Return one of the queues, to be filled or changed; nothing is asked."""
        return SyncQueue(
            name,
            redis=self._stores,
            prefix=self.namespace.prefix,
            hash_tag=self.namespace.hash_tag,
            call_timeout=self._call_timeout,
        )

    def wait_for_events(self, queue: str, after: str) -> list[QueueEvent]:
        """Return the next events of a queue after an id; wait up to 5 s for the first of them.

        It raises when the connection is cut, where `SyncQueue.events` waits.
        """
        read = read_events(self.namespace.keys(queue), after)
        limit = None if self._call_timeout is None else self._call_timeout + read.held
        try:
            return self._stores.sync_store().run(read, timeout=limit)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def wrong_protocol(self) -> Protocol | None:
        """Return what the other side speaks, if that is not what the URL says; None: it is."""
        return wrong_protocol(self.namespace.address)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._stores.close()

    def _run(self, operation: Look[T]) -> T:
        try:
            driver = Driver(self._rights.within(self._outages.within(operation)))
            while driver.asks:
                with driver:
                    driver.answer = self._answer(driver.question)
            return driver.result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def _answer(self, question: Question) -> Any:
        store, limit = self._stores.sync_store(), self._call_timeout
        match question:
            case Together(calls, each):
                answers = store.run_each(calls, timeout=limit)
                return answers if each else none_failed(answers)
            case On(server, call):
                return store.run_on(server, call, timeout=limit)
            case Servers():
                return store.servers(timeout=limit)
            case ServerOf(key):
                return store.server_of(key, timeout=limit)
            case _:
                return store.run(again(question), timeout=limit)  # it only looks

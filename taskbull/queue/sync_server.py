"""The sync server: the same operations for code without an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from taskbull.core.states import JobState
from taskbull.core.wire.events import QueueEvent
from taskbull.errors import TaskbullError
from taskbull.queue.any_server import AnyServer, Node
from taskbull.queue.failures import Failures
from taskbull.queue.job_view import JobDetails, JobPage
from taskbull.queue.questions import Look, On, Question, ServerOf, Servers, Together
from taskbull.queue.server_operations import QueueSummary, SearchPlace
from taskbull.queue.sync_queue import SyncQueue
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import again
from taskbull.scripts.events import read_events
from taskbull.scripts.servers import ConnectedWorker
from taskbull.scripts.survey import ActiveJob
from taskbull.store.protocol_probe import Protocol, wrong_protocol

T = TypeVar("T")


class SyncServer(AnyServer):
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

    def ping(self, server: Node | None = None) -> None:
        """Raise at once if Redis, or one of its servers, does not answer."""
        self._look(self._operations.ping(server))

    def servers(self) -> list[Node]:
        """List the servers that hold the queues: one, or the masters of a Cluster."""
        return self._look(self._operations.servers())

    def server_of(self, queue: str) -> Node:
        """Return the server that holds a queue."""
        return self._look(self._operations.server_of(queue))

    def info(self, server: Node) -> dict[str, str]:
        """Return what a server tells about itself: the fields of INFO."""
        return self._look(self._operations.info(server))

    def cluster_info(self, server: Node) -> dict[str, str]:
        """Return what a server tells about its Cluster: the fields of CLUSTER INFO."""
        return self._look(self._operations.cluster_info(server))

    def save_points(self, server: Node) -> str:
        """Return when a server writes snapshots, as its configuration has it; empty: never."""
        return self._look(self._operations.save_points(server))

    def time(self, server: Node) -> float:
        """Return the time by a server's clock, in seconds since 1970."""
        return self._look(self._operations.time(server))

    def refused_commands(self, queue: str) -> dict[str, str]:
        """Try all commands that taskbull needs for a queue; return those refused, and why."""
        return self._look(self._operations.refused_commands(queue))

    def queues(self) -> list[str]:
        """Name all queues, sorted: those found in Redis, and those of the app.

        All keys of the server are looked at, in short calls; `find_queues` makes one such call.
        """
        return self._look(self._operations.queues())

    def find_queues(self, place: SearchPlace | None = None) -> tuple[list[str], SearchPlace | None]:
        """Name the queues in the next 1000 keys or so, and where to go on; None: it was all."""
        return self._look(self._operations.find_queues(place))

    def exists(self, queue: str) -> bool:
        """Return whether a queue is in Redis, or belongs to a task of the app."""
        return self._look(self._operations.exists(queue))

    def survey(self, queues: Iterable[str] | None = None) -> list[QueueSummary]:
        """Look at some queues, or at all: counts, workers, and how long the next job has waited.

        One short call for each queue, all in one trip, and one for each server.
        """
        return self._look(self._operations.survey(queues))

    def workers(self, queues: Iterable[str] | None = None) -> dict[str, list[ConnectedWorker]]:
        """List the workers that are connected to some queues, or to all, Node's among them.

        Each server is asked once; `ServerRefused` if it does not tell.
        """
        return self._look(self._operations.workers(queues))

    def active(self, queue: str, most: int = 100) -> list[ActiveJob]:
        """List the jobs that have run longest: who runs them, and how long their locks live."""
        return self._look(self._operations.active(queue, most))

    def failures(self, queue: str, most: int = 1000) -> Failures:
        """Group the newest failed jobs by task and error."""
        return self._look(self._operations.failures(queue, most))

    def jobs(
        self,
        queue: str,
        states: Sequence[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 20,
    ) -> JobPage:
        """List jobs by state: the next to run first, of finished ones the latest."""
        return self._look(self._operations.jobs(queue, states, offset, limit))

    def inspect(self, queue: str, job_id: str, *, log_lines: int | None = 200) -> JobDetails:
        """Return all that is stored about a job, with its newest log lines; None: all of them."""
        return self._look(self._operations.inspect(queue, job_id, log_lines))

    def last_event_id(self, queue: str) -> str:
        """Return the id of the last event of a queue; `0-0` if there is none."""
        return self._look(self._operations.last_event_id(queue))

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

    def _look(self, look: Look[T]) -> T:
        try:
            question = next(look)
            while True:
                try:
                    answer = self._answer(question)
                except TaskbullError as error:
                    question = look.throw(error)
                else:
                    question = look.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    def _answer(self, question: Question) -> Any:
        store, limit = self._stores.sync_store(), self._call_timeout
        match question:
            case Together(calls):
                return store.run_all(calls, timeout=limit)
            case On(server, call):
                return store.run_on(server, call, timeout=limit)
            case Servers():
                return store.servers(timeout=limit)
            case ServerOf(queue):
                return store.server_of(queue.base, timeout=limit)
            case _:
                return store.run(again(question), timeout=limit)  # it only looks

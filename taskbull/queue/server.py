"""The async server: every operation awaited, on asyncio and trio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from anyio import create_task_group

from taskbull.core.states import JobState
from taskbull.errors import TaskbullError
from taskbull.queue.any_server import AnyServer, Node
from taskbull.queue.failures import Failures
from taskbull.queue.job_view import JobDetails, JobPage
from taskbull.queue.questions import Look, On, Question, ServerOf, Servers, Together
from taskbull.queue.queue import Queue
from taskbull.queue.server_operations import QueueSummary, SearchPlace
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import Request, again
from taskbull.scripts.servers import ConnectedWorker
from taskbull.scripts.survey import ActiveJob

T = TypeVar("T")


class Server(AnyServer):
    """All queues of a Redis server, for asyncio and trio: every operation is awaited."""

    def queue(self, name: str) -> Queue:
        """Return one of the queues, to be filled or changed; nothing is asked."""
        return Queue(
            name,
            redis=self._stores,
            prefix=self.namespace.prefix,
            hash_tag=self.namespace.hash_tag,
            call_timeout=self._call_timeout,
        )

    async def ping(self, server: Node | None = None) -> None:
        """Raise at once if Redis, or one of its servers, does not answer."""
        await self._look(self._operations.ping(server))

    async def servers(self) -> list[Node]:
        """List the servers that hold the queues: one, or the masters of a Cluster."""
        return await self._look(self._operations.servers())

    async def server_of(self, queue: str) -> Node:
        """Return the server that holds a queue."""
        return await self._look(self._operations.server_of(queue))

    async def info(self, server: Node) -> dict[str, str]:
        """Return what a server tells about itself: the fields of INFO."""
        return await self._look(self._operations.info(server))

    async def cluster_info(self, server: Node) -> dict[str, str]:
        """Return what a server tells about its Cluster: the fields of CLUSTER INFO."""
        return await self._look(self._operations.cluster_info(server))

    async def save_points(self, server: Node) -> str:
        """Return when a server writes snapshots, as its configuration has it; empty: never."""
        return await self._look(self._operations.save_points(server))

    async def time(self, server: Node) -> float:
        """Return the time by a server's clock, in seconds since 1970."""
        return await self._look(self._operations.time(server))

    async def refused_commands(self, queue: str) -> dict[str, str]:
        """Try all commands that taskbull needs for a queue; return those refused, and why."""
        return await self._look(self._operations.refused_commands(queue))

    async def queues(self) -> list[str]:
        """Name all queues, sorted: those found in Redis, and those of the app.

        All keys of the server are looked at, in short calls; `find_queues` makes one such call.
        """
        return await self._look(self._operations.queues())

    async def find_queues(
        self, place: SearchPlace | None = None
    ) -> tuple[list[str], SearchPlace | None]:
        """Name the queues in the next 1000 keys or so, and where to go on; None: it was all."""
        return await self._look(self._operations.find_queues(place))

    async def exists(self, queue: str) -> bool:
        """Return whether a queue is in Redis, or belongs to a task of the app."""
        return await self._look(self._operations.exists(queue))

    async def survey(self, queues: Iterable[str] | None = None) -> list[QueueSummary]:
        """Look at some queues, or at all: counts, workers, and how long the next job has waited.

        One short call for each queue, all in one trip, and one for each server.
        """
        return await self._look(self._operations.survey(queues))

    async def workers(
        self, queues: Iterable[str] | None = None
    ) -> dict[str, list[ConnectedWorker]]:
        """List the workers that are connected to some queues, or to all, Node's among them.

        Each server is asked once; `ServerRefused` if it does not tell.
        """
        return await self._look(self._operations.workers(queues))

    async def active(self, queue: str, most: int = 100) -> list[ActiveJob]:
        """List the jobs that have run longest: who runs them, and how long their locks live."""
        return await self._look(self._operations.active(queue, most))

    async def failures(self, queue: str, most: int = 1000) -> Failures:
        """Group the newest failed jobs by task and error."""
        return await self._look(self._operations.failures(queue, most))

    async def jobs(
        self,
        queue: str,
        states: Sequence[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 20,
    ) -> JobPage:
        """List jobs by state: the next to run first, of finished ones the latest."""
        return await self._look(self._operations.jobs(queue, states, offset, limit))

    async def inspect(self, queue: str, job_id: str, *, log_lines: int | None = 200) -> JobDetails:
        """Return all that is stored about a job, with its newest log lines; None: all of them."""
        return await self._look(self._operations.inspect(queue, job_id, log_lines))

    async def last_event_id(self, queue: str) -> str:
        """Return the id of the last event of a queue; `0-0` if there is none."""
        return await self._look(self._operations.last_event_id(queue))

    async def _look(self, look: Look[T]) -> T:
        try:
            question = next(look)
            while True:
                try:
                    answer = await self._answer(question)
                except TaskbullError as error:
                    question = look.throw(error)
                else:
                    question = look.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def _answer(self, question: Question) -> Any:
        store, limit = self._stores.async_store(), self._call_timeout
        match question:
            case Together(calls):
                return await self._all(calls)
            case On(server, call):
                return await store.run_on(server, call, timeout=limit)
            case Servers():
                return await store.servers(timeout=limit)
            case ServerOf(queue):
                return await store.server_of(queue.base, timeout=limit)
            case _:
                return await store.run(again(question), timeout=limit)  # it only looks

    async def _all(self, calls: Sequence[Request[Any]]) -> list[Any]:
        """Run calls at the same time, which is one trip: what they submit goes out together."""
        store, limit = self._stores.async_store(), self._call_timeout
        answers: list[Any] = [None] * len(calls)
        errors: list[TaskbullError] = []

        async def run(place: int, call: Request[Any]) -> None:
            try:
                answers[place] = await store.run(again(call), timeout=limit)
            except TaskbullError as error:
                errors.append(error)

        async with create_task_group() as tasks:
            for place, call in enumerate(calls):
                tasks.start_soon(run, place, call)
        if errors:
            raise errors[0]
        return answers

"""The async server: every operation awaited, on asyncio and trio."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, TypeVar

from anyio import create_task_group

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerUnavailable, TaskbullError
from taskbull.queue.any_server import AnyServer
from taskbull.queue.driver import Driver
from taskbull.queue.methods import Awaited
from taskbull.queue.questions import Look, On, Question, ServerOf, Servers, Together
from taskbull.queue.queue import Queue
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import Request, again
from taskbull.store.deadline import Deadline

T = TypeVar("T")


class Server(AnyServer, Awaited):
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

    async def _run(self, operation: Look[T]) -> T:
        try:
            driver = Driver(self._rights.within(operation))
            while driver.asks:
                with driver:
                    driver.answer = await self._answer(driver.question)
            return driver.result
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
        """Run calls in one trip; those that have to be asked again, because nothing is known of
        them, are asked at the same time."""
        store, limit = self._stores.async_store(), self._call_timeout
        deadline = Deadline(limit, monotonic)
        try:
            return await store.run_all(calls, timeout=limit)
        except (MaybeExecuted, ServerUnavailable) as error:
            if deadline.too_late_after(error):
                raise ConnectionLost(str(error)) from error
        return await self._each(calls, deadline.timeout)

    async def _each(self, calls: Sequence[Request[Any]], limit: float | None) -> list[Any]:
        store = self._stores.async_store()
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

"""The async server: every operation awaited, on asyncio and trio."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, TypeVar

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerUnavailable, TaskbullError
from taskbull.queue.any_server import AnyServer
from taskbull.queue.driver import Driver
from taskbull.queue.methods import Awaited
from taskbull.queue.questions import Look, On, Question, ServerOf, Servers, Together
from taskbull.queue.queue import Queue
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.call import Request, again, none_failed
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
            driver = Driver(self._rights.within(self._outages.within(operation)))
            while driver.asks:
                with driver:
                    driver.answer = await self._answer(driver.question)
            return driver.result
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def _answer(self, question: Question) -> Any:
        store, limit = self._stores.async_store(), self._call_timeout
        match question:
            case Together(calls, each):
                answers = await self._each(calls)
                return answers if each else none_failed(answers)
            case On(server, call):
                return await store.run_on(server, call, timeout=limit)
            case Servers():
                return await store.servers(timeout=limit)
            case ServerOf(key):
                return await store.server_of(key, timeout=limit)
            case _:
                return await store.run(again(question), timeout=limit)  # it only looks

    async def _each(self, calls: Sequence[Request[Any]]) -> list[Any]:
        """Run calls in one trip; return errors instead of the results of those that failed.

        Those of which it is not known whether they were executed only look, and are repeated.
        """
        store, deadline = self._stores.async_store(), Deadline(self._call_timeout, monotonic)
        answers: list[Any] = await store.run_each(calls, timeout=self._call_timeout)

        async def repeat(place: int) -> None:
            try:
                answers[place] = await store.run(again(calls[place]), timeout=deadline.timeout)
            except TaskbullError as error:
                answers[place] = error

        from anyio import create_task_group  # noqa: PLC0415 - sync programs need no event loop

        async with create_task_group() as tasks:
            for place, answer in enumerate(answers):
                if not isinstance(answer, MaybeExecuted | ServerUnavailable):
                    continue
                if deadline.too_late_after(answer):
                    answers[place] = ConnectionLost(str(answer))
                else:
                    tasks.start_soon(repeat, place)
        return answers

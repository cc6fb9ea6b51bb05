"""What an operation on a whole server asks: calls for a queue, or for one server of several."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.call import Call, Request, reading
from taskbull.store.address import Endpoint

T = TypeVar("T")


class Together(Struct, frozen=True):
    """Calls that are sent in one trip."""

    calls: Sequence[Request[Any]]


class On(Struct, frozen=True):
    """A call for one of the servers."""

    server: Endpoint
    call: Request[Any]


class Servers(Struct, frozen=True):
    """The question which servers hold the queues."""


class ServerOf(Struct, frozen=True):
    """The question which of them holds a queue."""

    queue: QueueKeys


Question: TypeAlias = Request[Any] | Together | On | Servers | ServerOf

Look: TypeAlias = Generator[Question, Any, T]
"""An operation: it yields questions and is sent their answers. It does no IO."""


def ask(call: Request[T]) -> Look[T]:
    """Ask whoever holds the key of a call."""
    answer: T = yield call
    return answer


def ask_together(calls: Sequence[Request[T]]) -> Look[list[T]]:
    """Ask for several things in one trip."""
    answers: list[T] = yield Together(calls)
    return answers


def ask_on(server: Endpoint, call: Request[T]) -> Look[T]:
    """Ask one of the servers."""
    answer: T = yield On(server, call)
    return answer


def list_servers() -> Look[list[Endpoint]]:
    """Find out which servers hold the queues."""
    answer: list[Endpoint] = yield Servers()
    return answer


def server_of(queue: QueueKeys) -> Look[Endpoint]:
    """Find out which of them holds a queue."""
    answer: Endpoint = yield ServerOf(queue)
    return answer


class Rights:
    """What is known of our user's rights: whether scripts have to promise that they only read."""

    def __init__(self) -> None:
        self._reads_only = False

    def within(self, operation: Look[T]) -> Look[T]:
        """Run an operation; what a user who may only read is refused, is asked in another form."""
        try:
            question = next(operation)
            while True:
                try:
                    answer = yield from self._ask(question)
                except TaskbullError as error:
                    question = operation.throw(error)
                else:
                    question = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _ask(self, question: Question) -> Look[Any]:
        if self._reads_only:
            return (yield _reading(question))
        try:
            return (yield question)
        except ServerRefused as error:
            if error.code != "NOPERM" or not isinstance(question, Call | Together):
                raise
            try:
                answer = yield _reading(question)
            except ServerRefused:  # an older Redis, or it is not allowed at all
                raise error from None
            self._reads_only = True
            return answer


def _reading(question: Question) -> Question:
    match question:
        case Together(calls):
            return Together([reading(call) for call in calls])
        case Call():
            return reading(question)
        case _:
            return question

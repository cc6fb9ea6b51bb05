"""What an operation on a whole server asks: calls for a queue, or for one server of several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.keys import QueueKeys
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    MaybeExecuted,
    SerializationError,
    ServerRefused,
    TaskbullError,
)
from taskbull.scripts.call import Call, Request, reading
from taskbull.store.address import Endpoint
from taskbull.store.namespace import Namespace

T = TypeVar("T")


class Together(Struct, frozen=True):
    """Calls that are sent in one trip."""

    calls: Sequence[Request[Any]]
    each: bool = False
    """Whether a call that fails is answered by its error, and the others as if it had not."""


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


def ask_each(calls: Sequence[Request[T]]) -> Look[list[T | TaskbullError]]:
    """Ask for several things in one trip; the answer of one that fails is its error.

    It raises only if Redis can be reached for none of them.
    """
    safe = [replace(call, parse=partial(_parsed, call.parse)) for call in calls]
    answers: list[T | TaskbullError] = yield Together(safe, each=True)
    lost = [each for each in answers if isinstance(each, ConnectionLost | MaybeExecuted)]
    if lost and len(lost) == len(answers):
        raise lost[0]
    return answers


def ask_queues(
    namespace: Namespace, names: Iterable[str], call_of: Callable[[QueueKeys], Request[T]]
) -> Look[dict[str, T | TaskbullError]]:
    """Ask the same of several queues in one trip: what is wrong with one does not affect others.

    A queue whose name we do not allow is answered by the error that says so.
    """
    found: dict[str, T | TaskbullError] = {}
    calls: dict[str, Request[T]] = {}
    for name in names:
        try:
            calls[name] = call_of(namespace.keys(name))
        except ConfigurationError as error:
            found[name] = error
    answers = yield from ask_each(list(calls.values()))
    found.update(zip(calls, answers, strict=True))
    return found


def _parsed(parse: Callable[[Any], T], reply: Any) -> T:
    try:
        return parse(reply)
    except TaskbullError:
        raise
    except Exception as error:
        raise SerializationError(f"its data in Redis makes no sense: {error}") from error


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
        if isinstance(question, Together) and question.each:
            return (yield from self._ask_each(question))
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

    def _ask_each(self, question: Together) -> Look[Any]:
        """Ask again, in the form for users who may only read, what our user was denied."""
        answers: list[Any] = yield question
        denied = [place for place, each in enumerate(answers) if _is_denial(each)]
        if denied:
            again = Together([reading(question.calls[place]) for place in denied], each=True)
            for place, answer in zip(denied, (yield again), strict=True):
                if not isinstance(answer, TaskbullError):
                    answers[place] = answer
                    self._reads_only = True
        return answers


def _is_denial(answer: object) -> bool:
    return isinstance(answer, ServerRefused) and answer.code == "NOPERM"


def _reading(question: Question) -> Question:
    match question:
        case Together(calls, each):
            return Together([reading(call) for call in calls], each)
        case Call():
            return reading(question)
        case _:
            return question

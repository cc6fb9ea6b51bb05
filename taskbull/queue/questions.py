"""Operations on a whole server, as generators that yield calls and receive the replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.keys import QueueKeys
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    MaybeExecuted,
    SerializationError,
    ServerRefused,
    ServerUnavailable,
    TaskbullError,
)
from taskbull.scripts import servers
from taskbull.scripts.call import Call, Request, none_failed, reading
from taskbull.store.address import Endpoint, Namespace

T = TypeVar("T")

LOST: Final = (ConnectionLost, MaybeExecuted)
"""Errors raised if a server does not reply."""

_LOST_FOR: Final = 5.0
"""Seconds until a Cluster node that did not reply is called again."""


class Together(Struct, frozen=True):
    """Calls sent in one round trip."""

    calls: Sequence[Request[Any]]
    each: bool = False
    """True to return the error of a failed call as its result, without affecting the others."""


class On(Struct, frozen=True):
    """A call for a specific server."""

    server: Endpoint
    call: Request[Any]


class Servers(Struct, frozen=True):
    """Request for the servers that hold the queues."""


class ServerOf(Struct, frozen=True):
    """Request for the server that holds a key."""

    key: str


Question: TypeAlias = Request[Any] | Together | On | Servers | ServerOf

Look: TypeAlias = Generator[Question, Any, T]
"""An operation that yields requests and receives the replies. It does no I/O."""


def ask(call: Request[T]) -> Look[T]:
    """Send a call to the server that holds its key."""
    answer: T = yield call
    return answer


def ask_together(calls: Sequence[Request[T]]) -> Look[list[T]]:
    """Send several calls in one round trip."""
    answers: list[T] = yield Together(calls)
    return answers


def ask_each(calls: Sequence[Request[T]]) -> Look[list[T | TaskbullError]]:
    """Send several calls in one round trip. A failed call returns its error.

    Raises an error only if no server can be reached at all. Another Cluster node may still be up,
    and its queues can still be read.
    """
    safe = [replace(call, parse=partial(_parsed, call.parse)) for call in calls]
    answers: list[T | TaskbullError] = yield Together(safe, each=True)
    lost = [each for each in answers if isinstance(each, LOST)]
    if lost and len(lost) == len(answers) and not (yield from _is_any_up()):
        raise lost[0]
    return answers


def _is_any_up() -> Look[bool]:
    """Return True if some Cluster node replies, although the ones called before do not."""
    try:
        nodes = yield from list_servers()
    except LOST:
        return False
    return len(nodes) > 1 and len((yield from lost_servers(nodes))) < len(nodes)


def lost_servers(nodes: Iterable[Endpoint]) -> Look[dict[Endpoint, TaskbullError]]:
    """Ping these servers and return the ones that do not reply, with the error."""
    lost: dict[Endpoint, TaskbullError] = {}
    for node in nodes:
        try:
            yield from ask_on(node, servers.ping())
        except LOST as error:
            lost[node] = error
    return lost


def ask_queues(
    namespace: Namespace, names: Iterable[str], call_of: Callable[[QueueKeys], Request[T]]
) -> Look[dict[str, T | TaskbullError]]:
    """Send the same call for several queues in one round trip.

    A failure in one queue does not affect the others. A queue with an invalid name returns a
    `ConfigurationError`.
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
        raise SerializationError(f"its data in Redis is invalid: {error}") from error


def ask_on(server: Endpoint, call: Request[T]) -> Look[T]:
    """Send a call to a specific server."""
    answer: T = yield On(server, call)
    return answer


def list_servers() -> Look[list[Endpoint]]:
    """Return the servers that hold the queues."""
    answer: list[Endpoint] = yield Servers()
    return answer


def server_of(queue: QueueKeys) -> Look[Endpoint]:
    """Return the server that holds a queue."""
    answer: Endpoint = yield ServerOf(queue.base)
    return answer


class Outages:
    """Remembers Cluster nodes that recently did not reply, so that each costs one timeout.

    They are not called again for 5 s. Calls to them fail immediately with the previous error. A
    server that is not part of a Cluster with other nodes is always called.
    """

    def __init__(self) -> None:
        self._lost: dict[Endpoint, tuple[float, TaskbullError]] = {}

    def within(self, operation: Look[T]) -> Look[T]:
        """Run an operation, without calling nodes that recently did not reply."""
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
        match question:
            case Together(calls, each):
                answers = yield from self._ask_each(calls)
                return answers if each else none_failed(answers)
            case On(server, _):
                if (known := self._reason(server)) is not None:
                    raise known
                try:
                    return (yield question)
                except LOST as error:
                    yield from self._note(server, error)
                    raise
            case Servers() | ServerOf():
                return (yield question)
            case _:
                if (known := (yield from self._reason_for(question))) is not None:
                    raise known
                try:
                    return (yield question)
                except LOST as error:
                    yield from self._note_for(question, error)
                    raise

    def _ask_each(self, calls: Sequence[Request[Any]]) -> Look[list[Any]]:
        answers: list[Any] = []
        for call in calls:
            answers.append((yield from self._reason_for(call)))  # noqa: PERF401 - the loop yields
        asked = [place for place, known in enumerate(answers) if known is None]
        if not asked:
            return answers
        found = yield Together([calls[place] for place in asked], each=True)
        for place, answer in zip(asked, found, strict=True):
            answers[place] = answer
            if isinstance(answer, LOST) and (yield from self._reason_for(calls[place])) is None:
                yield from self._note_for(calls[place], answer)
        return answers

    def _reason(self, server: Endpoint) -> ConnectionLost | None:
        """Return the error for a server that must not be called, or None."""
        at, error = self._lost.get(server, (0.0, None))
        if error is None:
            return None
        if time.monotonic() - at >= _LOST_FOR:
            del self._lost[server]
            return None
        return ConnectionLost(str(error))

    def _reason_for(self, call: Request[Any]) -> Look[ConnectionLost | None]:
        if not self._lost:
            return None
        try:
            return self._reason((yield ServerOf(call.key)))
        except ConnectionLost as error:  # No node serves its slot.
            return error

    def _note(self, server: Endpoint, error: TaskbullError) -> Look[None]:
        if isinstance(error, ServerUnavailable):  # The server did reply.
            return
        try:
            if len((yield from list_servers())) > 1:
                self._lost[server] = (time.monotonic(), error)
        except LOST:
            return  # All nodes are unavailable.

    def _note_for(self, call: Request[Any], error: TaskbullError) -> Look[None]:
        try:
            server: Endpoint = yield ServerOf(call.key)
        except LOST:
            return
        yield from self._note(server, error)


class Rights:
    """Remembers whether the Redis user may only run read-only scripts."""

    def __init__(self) -> None:
        self._reads_only = False

    def within(self, operation: Look[T]) -> Look[T]:
        """Run an operation. Calls denied to a read-only user are sent again in read-only form."""
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
            except ServerRefused:  # An older Redis, or the user has no permission at all.
                raise error from None
            self._reads_only = True
            return answer

    def _ask_each(self, question: Together) -> Look[Any]:
        """Send denied calls again in read-only form."""
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

"""What an operation on a whole server asks: calls for a queue, or for one server of several."""

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
"""What is raised if a server does not answer."""

_LOST_FOR: Final = 5.0
"""Seconds for which a node of a Cluster that did not answer is not asked again."""


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
    """The question which of them holds a key."""

    key: str


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

    It raises only if Redis can be reached for none of them, nor at all: another node of a Cluster
    may be up, and its queues are for others to read.
    """
    safe = [replace(call, parse=partial(_parsed, call.parse)) for call in calls]
    answers: list[T | TaskbullError] = yield Together(safe, each=True)
    lost = [each for each in answers if isinstance(each, LOST)]
    if lost and len(lost) == len(answers) and not (yield from _is_any_up()):
        raise lost[0]
    return answers


def _is_any_up() -> Look[bool]:
    """Find out whether some node of a Cluster answers, although those that were asked do not."""
    try:
        nodes = yield from list_servers()
    except LOST:
        return False
    return len(nodes) > 1 and len((yield from lost_servers(nodes))) < len(nodes)


def lost_servers(nodes: Iterable[Endpoint]) -> Look[dict[Endpoint, TaskbullError]]:
    """Ask each of these servers for a sign of life; return those that give none, and why."""
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
    answer: Endpoint = yield ServerOf(queue.base)
    return answer


class Outages:
    """Which nodes of a Cluster did not answer a moment ago: one that is down costs one wait.

    They are not asked again for 5 s. What was to be asked of them fails at once, for the reason for
    which it failed before. A server that is the only one is always asked.
    """

    def __init__(self) -> None:
        self._lost: dict[Endpoint, tuple[float, TaskbullError]] = {}

    def within(self, operation: Look[T]) -> Look[T]:
        """Run an operation without the nodes that did not answer."""
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
            answers.append((yield from self._reason_for(call)))  # noqa: PERF401 - it yields
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
        """Return why a server is not asked; None: it is."""
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
        except ConnectionLost as error:  # no node serves its slot
            return error

    def _note(self, server: Endpoint, error: TaskbullError) -> Look[None]:
        if isinstance(error, ServerUnavailable):  # it has answered
            return
        try:
            if len((yield from list_servers())) > 1:
                self._lost[server] = (time.monotonic(), error)
        except LOST:
            return  # all of them are away

    def _note_for(self, call: Request[Any], error: TaskbullError) -> Look[None]:
        try:
            server: Endpoint = yield ServerOf(call.key)
        except LOST:
            return
        yield from self._note(server, error)


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

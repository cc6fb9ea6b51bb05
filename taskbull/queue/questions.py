"""Operations on a whole server, and rules for servers that are down or allow only reading."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

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
from taskbull.scripts import browse
from taskbull.scripts.call import (
    ONE_CALL,
    AnyRequest,
    AnySteps,
    Call,
    ListNodes,
    Many,
    NodeOf,
    OnNode,
    Operation,
    Request,
    Separate,
    again,
    none_failed,
    reading,
)
from taskbull.store.address import Endpoint, Namespace

# Turn one function into an async method of one class and a sync method of another.
#
#     class Operations:
#         @reads
#         def count(self) -> Operation[int]:
#             return count_jobs(self.keys)
#
#     class Queue(Operations, Awaited): ...       # await queue.count()
#     class SyncQueue(Operations, Blocking): ...  # queue.count()
#
# The function returns the Redis operation, and the class's `_run` executes it. Type checkers,
# editors and `help()` see the function's signature, defaults and docstring.


_RESULT = re.compile(r"(?:Operation|AnySteps)\[(.*)\]")

P = ParamSpec("P")
T = TypeVar("T")


class Awaited:
    """Base of classes whose operations are coroutines."""

    async def _run(self, operation: Any) -> Any:
        raise NotImplementedError


class Blocking:
    """Base of classes whose operations block and return their results."""

    def _run(self, operation: Any) -> Any:
        raise NotImplementedError


class Method(Generic[P, T]):
    """Descriptor that becomes an async or a sync method, depending on its owner."""

    def __init__(
        self, function: Callable[Concatenate[Any, P], Operation[T] | AnySteps[T]], *, repeat: bool
    ) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._repeat = repeat
        self._made: dict[type, Callable[..., Any]] = {}

    @overload
    def __get__(
        self, instance: None, owner: type[Awaited]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(
        self, instance: None, owner: type[Blocking]
    ) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(
        self, instance: Awaited, owner: type[Awaited]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: Blocking, owner: type[Blocking]) -> Callable[P, T]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        method = self._made.get(owner)
        if method is None:
            method = self._made[owner] = self._make(owner)
        return method if instance is None else method.__get__(instance, owner)

    def _make(self, owner: type) -> Callable[..., Any]:
        function, repeat = self._function, self._repeat
        if issubclass(owner, Awaited):

            @wraps(function)
            async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
                operation: Any = function(self, *args, **kwargs)
                return await self._run(again(operation) if repeat else operation)

            return _described(awaited, owner)
        if issubclass(owner, Blocking):

            @wraps(function)
            def blocking(self: Any, *args: Any, **kwargs: Any) -> Any:
                operation: Any = function(self, *args, **kwargs)
                return self._run(again(operation) if repeat else operation)

            return _described(blocking, owner)
        return function


def reads(function: Callable[Concatenate[Any, P], Operation[T]]) -> Method[P, T]:
    """Decorate a function that only reads. It is retried until Redis replies."""
    return Method(function, repeat=True)


def writes(function: Callable[Concatenate[Any, P], Operation[T]]) -> Method[P, T]:
    """Decorate a function that changes data. It is never sent twice."""
    return Method(function, repeat=False)


def server_operation(function: Callable[Concatenate[Any, P], AnySteps[T]]) -> Method[P, T]:
    """Decorate a function of a server, which runs it with its own rules for retries."""
    return Method(function, repeat=False)


def _described(method: Callable[..., Any], owner: type) -> Callable[..., Any]:
    """Set the result type that `help` and `inspect` show, instead of the operation type."""
    method.__qualname__ = f"{owner.__qualname__}.{method.__name__}"
    result = _RESULT.sub(r"\1", method.__annotations__["return"])
    method.__annotations__ = {**method.__annotations__, "return": result}
    signature = inspect.signature(method).replace(return_annotation=result)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


LOST: Final = (ConnectionLost, MaybeExecuted)
"""Errors raised if a server does not reply."""

_LOST_FOR: Final = 5.0
"""Seconds until a Cluster node that did not reply is called again."""


def ask(call: Request[T]) -> AnySteps[T]:
    """Send a call to the server that holds its key."""
    answer: T = yield call
    return answer


def ask_together(calls: Sequence[Request[T]]) -> AnySteps[list[T]]:
    """Send several calls in one round trip."""
    answers: list[T] = yield Many(calls)
    return answers


def ask_each(calls: Sequence[Request[T]]) -> AnySteps[list[T | TaskbullError]]:
    """Send several calls in one round trip. A failed call returns its error.

    Raises an error only if no server can be reached at all. Another Cluster node may still be up,
    and its queues can still be read.
    """
    safe = [replace(call, parse=partial(_parsed, call.parse)) for call in calls]
    answers: list[T | TaskbullError] = yield Many(safe, each=True)
    lost = [each for each in answers if isinstance(each, LOST)]
    if lost and len(lost) == len(answers) and not (yield from _is_any_up()):
        raise lost[0]
    return answers


def _is_any_up() -> AnySteps[bool]:
    """Return True if some Cluster node replies, although the ones called before do not."""
    try:
        nodes = yield from list_servers()
    except LOST:
        return False
    return len(nodes) > 1 and len((yield from lost_servers(nodes))) < len(nodes)


def lost_servers(nodes: Iterable[Endpoint]) -> AnySteps[dict[Endpoint, TaskbullError]]:
    """Ping these servers and return the ones that do not reply, with the error."""
    lost: dict[Endpoint, TaskbullError] = {}
    for node in nodes:
        try:
            yield from ping(node)
        except LOST as error:
            lost[node] = error
    return lost


def ping(server: Endpoint) -> AnySteps[None]:
    """Raise an error if a server does not answer."""
    try:
        yield from ask_on(server, browse.ping())
    except ServerRefused as error:
        if error.code != "MISCONF":  # Redis cannot save, so it refuses PING, but it can be read.
            raise


def ask_queues(
    namespace: Namespace, names: Iterable[str], call_of: Callable[[QueueKeys], Request[T]]
) -> AnySteps[dict[str, T | TaskbullError]]:
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


def ask_on(server: Endpoint, call: Request[T]) -> AnySteps[T]:
    """Send a call to a specific server."""
    answer: T = yield OnNode(server, call)
    return answer


def list_servers() -> AnySteps[list[Endpoint]]:
    """Return the servers that hold the queues."""
    answer: list[Endpoint] = yield ListNodes()
    return answer


def server_of(queue: QueueKeys) -> AnySteps[Endpoint]:
    """Return the server that holds a queue."""
    answer: Endpoint = yield NodeOf(queue.base)
    return answer


# Rules for all requests of an operation
#
# A rule serves one request of an operation. It is a generator as well, so rules can be nested.


Rule: TypeAlias = Callable[[AnyRequest], AnySteps[Any]]


def with_rules(operation: AnySteps[T], *rules: Rule) -> AnySteps[T]:
    """Return an operation whose requests are served by the first rule, whose own by the next."""
    for rule in rules:
        operation = _with_rule(operation, rule)
    return operation


def _with_rule(operation: AnySteps[T], rule: Rule) -> AnySteps[T]:
    try:
        request = next(operation)
        while True:
            try:
                answer = yield from rule(request)
            except TaskbullError as error:
                request = operation.throw(error)
            else:
                request = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def repeat_calls(request: AnyRequest) -> AnySteps[Any]:
    """Repeat a call until Redis answers. Each has its own time limit."""
    return (yield Separate(again(request)) if isinstance(request, ONE_CALL) else request)


class Outages:
    """Remembers Cluster nodes that recently did not reply, so that each costs one timeout.

    They are not called again for 5 s. Calls to them fail immediately with the previous error. A
    server that is not part of a Cluster with other nodes is always called.
    """

    def __init__(self) -> None:
        self._lost: dict[Endpoint, tuple[float, TaskbullError]] = {}

    def skip_lost_nodes(self, request: AnyRequest) -> AnySteps[Any]:
        """Fail calls to nodes that did not reply recently (a `Rule`)."""
        if isinstance(request, Many):
            answers = yield from self._call_each(request.calls)
            return answers if request.each else none_failed(answers)
        if isinstance(request, OnNode):
            known = self._error_of(request.node)
        elif isinstance(request, ONE_CALL):
            known = yield from self._error_for(request)
        else:
            return (yield request)
        if known is not None:
            raise known
        try:
            return (yield request)
        except LOST as error:
            if isinstance(request, OnNode):
                yield from self._record(request.node, error)
            else:
                yield from self._record_for(request, error)
            raise

    def _call_each(self, calls: Sequence[Request[Any]]) -> AnySteps[list[Any]]:
        answers: list[Any] = []
        for call in calls:
            answers.append((yield from self._error_for(call)))  # noqa: PERF401 - the loop yields
        called = [place for place, known in enumerate(answers) if known is None]
        if not called:
            return answers
        found = yield Many([calls[place] for place in called], each=True)
        for place, answer in zip(called, found, strict=True):
            answers[place] = answer
            if isinstance(answer, LOST) and (yield from self._error_for(calls[place])) is None:
                yield from self._record_for(calls[place], answer)
        return answers

    def _error_of(self, node: Endpoint) -> ConnectionLost | None:
        """Return the error for a node that must not be called, or None."""
        at, error = self._lost.get(node, (0.0, None))
        if error is None:
            return None
        if time.monotonic() - at >= _LOST_FOR:
            del self._lost[node]
            return None
        return ConnectionLost(str(error))

    def _error_for(self, call: Request[Any]) -> AnySteps[ConnectionLost | None]:
        if not self._lost:
            return None
        try:
            return self._error_of((yield NodeOf(call.key)))
        except ConnectionLost as error:  # No node serves its slot.
            return error

    def _record(self, node: Endpoint, error: TaskbullError) -> AnySteps[None]:
        if isinstance(error, ServerUnavailable):  # The server did reply.
            return
        try:
            if len((yield from list_servers())) > 1:
                self._lost[node] = (time.monotonic(), error)
        except LOST:
            return  # All nodes are unavailable.

    def _record_for(self, call: Request[Any], error: TaskbullError) -> AnySteps[None]:
        try:
            node: Endpoint = yield NodeOf(call.key)
        except LOST:
            return
        yield from self._record(node, error)


class Rights:
    """Remembers whether the Redis user may only run read-only scripts."""

    def __init__(self) -> None:
        self._reads_only = False

    def fall_back_to_reading(self, request: AnyRequest) -> AnySteps[Any]:
        """Send calls that are denied to a read-only user again in read-only form (a `Rule`)."""
        if not isinstance(request, Call | Many):
            return (yield request)
        if self._reads_only:
            return (yield _reading(request))
        if isinstance(request, Many) and request.each:
            return (yield from self._call_each(request))
        try:
            return (yield request)
        except ServerRefused as error:
            if error.code != "NOPERM":
                raise
            try:
                answer = yield _reading(request)
            except ServerRefused:  # An older Redis, or the user has no permission at all.
                raise error from None
            self._reads_only = True
            return answer

    def _call_each(self, request: Many) -> AnySteps[Any]:
        answers: list[Any] = yield request
        denied = [
            place
            for place, each in enumerate(answers)
            if isinstance(each, ServerRefused) and each.code == "NOPERM"
        ]
        if denied:
            second = Many([reading(request.calls[place]) for place in denied], each=True)
            for place, answer in zip(denied, (yield second), strict=True):
                if not isinstance(answer, TaskbullError):
                    answers[place] = answer
                    self._reads_only = True
        return answers


def _reading(request: Call[Any] | Many) -> AnyRequest:
    if isinstance(request, Many):
        return Many([reading(call) for call in request.calls], request.each)
    return reading(request)

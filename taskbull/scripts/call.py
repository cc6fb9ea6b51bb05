"""Calls as values, operations of several calls, and parsers for raw replies.

A call is a value: the words to send to Redis and a function that parses the reply. An operation of
several calls is a generator that yields requests and receives the results. `AnyRequest` lists what
it may yield. It does no I/O, so each store needs only one small driver.

Redis serves other clients between two calls. An operation on a million jobs consists of calls that
take a few ms each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.validation import read_number
from taskbull.errors import (
    JobNotFound,
    LockLost,
    MaybeExecuted,
    ServerUnavailable,
    TaskbullError,
    WrongState,
)

# Loader for the Lua scripts. Only this module knows where they are and how includes work.
#
# Each script has a header that is parsed:
#
#     -- name: summary in one line.
#     --
#     -- KEYS
#     --   name   type   purpose
#     -- ARGV
#     --   name          purpose
#     -- RETURNS
#     --   …
#
# A line `--- @include "name"` is replaced by `lua/includes/name.lua`, once per scope.


_PACKAGED = Path(__file__).parent.parent / "lua"  # in the wheel
_CHECKOUT = Path(__file__).parent.parent.parent / "lua"  # next to the package, in a checkout
LUA = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT

_INCLUDE = re.compile(r'^ *--- @include "(\w+)"$')
_SECTION = re.compile(r"^-- ([A-Z]+)$")
_ENTRY = re.compile(r"^--   (\w+)\b")
_NAMING = re.compile(r'\b(?:prefix|base) \.\. |\.\. ":')


class Script(Struct, frozen=True):
    """A Lua script that is ready to send: its source, its digest and its parameters."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    whole: bool = False
    """True if it accesses several keys, which must all be on one node."""


@cache
def load(name: str) -> Script:
    """Load the script `name` with all its includes."""
    text = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    sections = _sections(text)
    source = _paste_includes(text, [set()])
    digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
    keys = sections.get("KEYS", ())
    whole = len(keys) > 1 or _NAMING.search(source) is not None
    return Script(name, source, digest, keys, sections.get("ARGV", ()), whole)


def names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(path.stem for path in LUA.glob("*.lua"))


def _sections(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if heading := _SECTION.match(line):
            section = heading[1]
            found[section] = ()
        elif section and (entry := _ENTRY.match(line)):
            found[section] = (*found[section], entry[1])
    return found


def _paste_includes(text: str, scopes: list[set[str]]) -> str:
    """Replace the include lines in a text, each file once per scope.

    An indented include belongs to a block. Its definitions are not visible after the block ends.
    `scopes` contains the visible names, one set per block.
    """
    lines: list[str] = []
    indents = [0]
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip(" "))
        while line.strip() and indent < indents[-1]:
            indents.pop()
            scopes.pop()
        if not (include := _INCLUDE.match(line)):
            lines.append(line)
            continue
        if indent > indents[-1]:
            indents.append(indent)
            scopes.append(set())
        name = include[1]
        if not any(name in scope for scope in scopes):
            scopes[-1].add(name)
            body = (LUA / "includes" / f"{name}.lua").read_text(encoding="utf-8")
            lines.append(_paste_includes(body, scopes).rstrip("\n") + "\n")
    del scopes[len(scopes) - len(indents) + 1 :]
    whole = "".join(lines)
    # A misspelled include would load, and fail on the first run that needs the function.
    if "@include" in whole:
        raise ValueError(f'not of the form --- @include "name": {_misspelt(whole)}')
    return whole


def _misspelt(text: str) -> str:
    return next(line for line in text.splitlines() if "@include" in line)


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Word: TypeAlias = str | bytes | int | float


class Call(Struct, Generic[T_co], frozen=True):
    """One script call. Both stores run it; `parse` converts the raw reply to the result."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Word, ...]
    parse: Callable[[Any], T_co]
    held: ClassVar[float] = 0.0
    """Seconds that the server may block the call."""

    @property
    def words(self) -> tuple[Word, ...]:
        """The command, word by word."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    @property
    def cluster_words(self) -> tuple[Word, ...]:
        """The command for a Cluster. It is rejected while the queue's slot is migrating.

        A migrating slot is split between two nodes. To a script, undeclared keys on the other node
        look missing. So the call declares one extra key that never exists. A node answers TRYAGAIN
        if any of several declared keys is missing, so a script never mistakes half a queue for
        the whole queue.
        """
        if not self.script.whole:
            return self.words
        keys = (*self.keys, f"{self.key}:tb:absent")
        return ("EVALSHA", self.script.sha, len(keys), *keys, *self.args)

    @property
    def key(self) -> str:
        """The key that selects the Cluster node. All other keys are in the same slot."""
        return self.keys[0]


class ReadingCall(Call[T_co], Generic[T_co], frozen=True):
    """A script call that cannot write, for read-only Redis users. Needs Redis 7 or later."""

    @property
    def words(self) -> tuple[Word, ...]:
        """The command, word by word."""
        return (_READING, *super().words[1:])

    @property
    def cluster_words(self) -> tuple[Word, ...]:
        """The command for a Cluster."""
        return (_READING, *super().cluster_words[1:])


_READING: Final = "EVALSHA_RO"


def reading(call: Request[T]) -> Request[T]:
    """Return the variant of a call that a read-only Redis user may run."""
    if isinstance(call, Call):
        return ReadingCall(call.script, call.keys, call.args, call.parse)
    return call


class Command(Struct, Generic[T_co], frozen=True):
    """One plain Redis command. Stores run and parse it like a `Call`."""

    words: tuple[Word, ...]
    key: str
    parse: Callable[[Any], T_co]
    held: float = 0.0
    """Seconds that the server may block the command. Positive only for blocking commands."""
    script: ClassVar[None] = None

    @property
    def cluster_words(self) -> tuple[Word, ...]:
        """The command for a Cluster, the same as `words`."""
        return self.words


Request: TypeAlias = Call[T_co] | Command[T_co]
"""One script call or one plain command."""

ONE_CALL: Final = (Call, Command)
"""The types of a `Request`."""


class StoreRequest(Struct, frozen=True):
    """Base of the requests that are not one call. Each names the store method that serves it."""

    def serve(self, store: Any, timeout: float | None) -> Any:
        """Return the result, or its awaitable if the store is async."""
        raise NotImplementedError


class Many(StoreRequest, frozen=True):
    """Calls sent in one round trip. They may be executed more than once, so they only read."""

    calls: Sequence[Request[Any]]
    each: bool = False
    """True to return the error of a failed call as its result, without affecting the others."""

    def serve(self, store: Any, timeout: float | None) -> Any:
        return store.read_many(self.calls, each=self.each, timeout=timeout)


class OnNode(StoreRequest, frozen=True):
    """A call for one server, which is not retried."""

    node: Any
    call: Request[Any]

    def serve(self, store: Any, timeout: float | None) -> Any:
        return store.run_on(self.node, self.call, timeout=timeout)


class ListNodes(StoreRequest, frozen=True):
    """Request for the servers that hold the data: one server, or the masters of a Cluster."""

    def serve(self, store: Any, timeout: float | None) -> Any:
        return store.servers(timeout=timeout)


class NodeOf(StoreRequest, frozen=True):
    """Request for the server that holds a key."""

    key: str

    def serve(self, store: Any, timeout: float | None) -> Any:
        return store.server_of(self.key, timeout=timeout)


class Separate(StoreRequest, frozen=True):
    """Another operation, with its own time limit."""

    steps: Generator[Any, Any, Any]

    def serve(self, store: Any, timeout: float | None) -> Any:
        return store.run(self.steps, timeout=timeout)


class Pending(Protocol):
    """An operation in flight."""

    @property
    def is_smooth(self) -> bool:
        """True if it was sent immediately and its first reply, if any, was its result."""
        ...

    def finish(self, *, timeout: float | None = None, given_up: bool = False) -> Any:
        """Return its result, or the awaitable of it."""
        ...

    def leave(self) -> None:
        """Abandon the operation."""
        ...


class Start(StoreRequest, frozen=True):
    """Request to send the first call of an operation, after those in flight.

    The result is a `Pending` operation. Yield `Finish` for its result, or abandon it.
    """

    steps: Generator[Any, Any, Any]
    behind: Pending | None = None
    """The operation in flight that was started last."""

    def serve(self, store: Any, timeout: float | None) -> Any:
        return store.begin(self.steps, self.behind, timeout=timeout)


class Finish(StoreRequest, frozen=True):
    """Request for the result of an operation that was started."""

    pending: Pending
    given_up: bool = False
    """True if an earlier operation failed. The store waits for the reply, but does not resend."""

    def serve(self, store: Any, timeout: float | None) -> Any:
        return self.pending.finish(timeout=timeout, given_up=self.given_up)


AnyRequest: TypeAlias = Request[Any] | StoreRequest
"""A request that an operation may yield."""

Steps: TypeAlias = Generator[Request[Any], Any, T]
"""An operation that yields single calls. They share a time limit until one of them succeeds."""

AnySteps: TypeAlias = Generator[AnyRequest, Any, T]
"""An operation that yields any requests. Each has its own time limit, except for single calls."""

Operation: TypeAlias = Request[T] | Steps[T]
"""One call, or an operation of several."""


def none_failed(results: Sequence[T | TaskbullError]) -> list[T]:
    """Return the results of several calls, or raise the first error among them."""
    found: list[T] = []
    for each in results:
        if isinstance(each, TaskbullError):
            raise each
        found.append(each)
    return found


def again(operation: Operation[T]) -> Steps[T]:
    """Run an operation and repeat each call until Redis answers.

    Use it only for reads and idempotent writes: a call may be executed more than once.
    """
    answer: Any
    if isinstance(operation, Call | Command):
        while True:
            try:
                answer = yield operation
            except (MaybeExecuted, ServerUnavailable):
                continue
            result: T = answer
            return result
    try:
        request = next(operation)
        while True:
            answer = yield from again(request)
            request = operation.send(answer)
    except StopIteration as end:
        result_of_all: T = end.value
        return result_of_all


# Parsers for raw replies. They raise exceptions for the scripts' negative codes.

Refusal = Callable[[str, str], TaskbullError]


def _wrong_state(code: int, problem: str) -> Refusal:
    return lambda queue, job_id: WrongState(queue, job_id, problem, code)


CANCELLED: Final = 1
"""The job failed because it was cancelled, although its outcome was a retry."""

WRONG_STATE: Final = -3
"""The job is not in the state that the call requires."""

REFUSED: Final = -10
"""Existing data in Redis prevents the outcome from being stored."""

DENIED: Final = -11
"""The outcome cannot be stored: the Redis user lacks permission, or a queue key is broken."""

OUT_OF_TURN: Final = -12
"""The preceding call was not executed."""

REFUSALS: Final[dict[int, Refusal]] = {
    -1: JobNotFound,
    -2: LockLost,
    WRONG_STATE: _wrong_state(WRONG_STATE, "is in another state"),
    -4: _wrong_state(-4, "has pending children"),
    -5: _wrong_state(-5, "has no parent, or its parent is gone"),
    -6: LockLost,
    -7: _wrong_state(-7, "has another parent"),
    -8: _wrong_state(-8, "is the next run of a schedule: remove the schedule instead"),
    -9: _wrong_state(-9, "has a failed child, which fails it as well"),
}
"""Errors by script code. The codes are the same as BullMQ's."""


def is_denial(message: str) -> bool:
    """Return True if an error message means that the Redis user may not run a command.

    It recognizes the wording of all Redis versions.
    """
    return any(words in message for words in _DENIALS)


_DENIALS: Final = ("NOPERM", "ACL failure", "user executing the script")


def accepted(queue: QueueKeys, job_id: str) -> Callable[[int], int]:
    """Return a parser that returns a script code, or raises its error if it is negative."""

    def read(reply: int) -> int:
        if reply < 0:
            raise REFUSALS[reply](queue.queue, job_id)
        return reply

    return read


def done(queue: QueueKeys, job_id: str) -> Callable[[int], None]:
    """Return a parser that raises the error for a negative code and returns None otherwise."""
    read = accepted(queue, job_id)

    def check(reply: int) -> None:
        read(reply)

    return check


def nothing(reply: object) -> None:
    """Ignore the reply."""


def text(raw: bytes) -> str:
    """Decode text. Bytes that are not valid UTF-8 are escaped."""
    return raw.decode("utf-8", "backslashreplace")


def info(reply: bytes) -> dict[str, str]:
    """Parse the reply of INFO into a dict of its fields."""
    lines = text(reply).split("\r\n")
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def texts(reply: list[bytes]) -> list[str]:
    """Decode an array of texts, such as ids."""
    return [text(raw) for raw in reply]


def number(raw: bytes | None) -> int:
    """Parse a stored number. Return 0 if it is missing or invalid."""
    return read_number(raw) or 0


def pair(reply: list[int]) -> tuple[int, int]:
    """Unpack a reply of two numbers."""
    first, second = reply
    return first, second

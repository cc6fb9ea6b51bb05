"""A call is a value: what to send to Redis, and how to read the answer.

An operation of several calls is a generator that yields each call and is sent its result. It does
no IO, so that each store needs one small driver for all of them. Between two calls the server is
free for others: an operation on a million jobs is made of calls of a few ms each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.wire.numbers import read_number
from taskbull.errors import (
    JobNotFound,
    LockLost,
    MaybeExecuted,
    ServerUnavailable,
    TaskbullError,
    WrongState,
)
from taskbull.scripts.loader import Script

# A call is a value: what to send to Redis, and how to read the answer.
#
# An operation of several calls is a generator that yields each call and is sent its result. It
# does no IO, so that each store needs one small driver for all of them. Between two calls the
# server is free for others: an operation on a million jobs is made of calls of a few ms each.


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Word: TypeAlias = str | bytes | int | float


class Call(Struct, Generic[T_co], frozen=True):
    """One run of a script. Both stores run it; `parse` turns the raw reply into the result."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Word, ...]
    parse: Callable[[Any], T_co]

    @property
    def words(self) -> tuple[Word, ...]:
        """The command, word by word."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    @property
    def cluster_words(self) -> tuple[Word, ...]:
        """The command for a Cluster, which refuses it while the slot is on its way.

        A slot that moves is on two nodes, and each takes the keys that the other has for missing,
        all but those that a call declares. So one more is declared, which is never there: nodes
        answer TRYAGAIN to a call of several keys that lacks one, and half a queue is never taken
        for a whole one.
        """
        if not self.script.whole:
            return self.words
        keys = (*self.keys, f"{self.key}:tb:absent")
        return ("EVALSHA", self.script.sha, len(keys), *keys, *self.args)

    @property
    def held(self) -> float:
        """The seconds for which the server may hold it: none."""
        return 0.0

    @property
    def key(self) -> str:
        """The key by which a Cluster finds the node; all others are in its slot."""
        return self.keys[0]


class ReadingCall(Call[T_co], Generic[T_co], frozen=True):
    """A run of a script that may not write, by a user who may not either: from Redis 7 on."""

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
    """Return a call in the form for users of Redis who may only read."""
    if isinstance(call, Call):
        return ReadingCall(call.script, call.keys, call.args, call.parse)
    return call


class Command(Struct, Generic[T_co], frozen=True):
    """One plain command, run and read as a `Call` is."""

    words: tuple[Word, ...]
    key: str
    parse: Callable[[Any], T_co]
    held: float = 0.0
    """The seconds for which the server may hold it: more than none for a blocking one."""

    @property
    def script(self) -> None:
        """There is none."""
        return

    @property
    def cluster_words(self) -> tuple[Word, ...]:
        """The command for a Cluster: the same."""
        return self.words


Request: TypeAlias = Call[T_co] | Command[T_co]
"""One call, or one plain command."""

Steps: TypeAlias = Generator[Request[Any], Any, T]
"""Several calls, one after the other."""

Operation: TypeAlias = Request[T] | Steps[T]
"""What a store runs."""


def none_failed(results: Sequence[T | TaskbullError]) -> list[T]:
    """Return the results of several calls; raise the first error among them."""
    found: list[T] = []
    for each in results:
        if isinstance(each, TaskbullError):
            raise each
        found.append(each)
    return found


class UnderWay(Protocol):
    """An operation that was begun."""

    @property
    def is_smooth(self) -> bool:
        """Whether it was sent at once, and what came of that, if anything has, was its result."""
        ...


class Start(Struct, frozen=True):
    """Begin an operation and return it; its first call is sent behind those that are under way."""

    steps: Steps[Any]


class Finish(Struct, frozen=True):
    """Return the result of the oldest operation that is under way, when it has one."""

    given_up: bool = False
    """An operation before it has failed: its answer is waited for, but it is not sent again."""


Stages: TypeAlias = Generator[Start | Finish, Any, T]
"""A long operation made of others, each with a time limit of its own; several may be under way."""


def alone(steps: Steps[T]) -> Stages[T]:
    """Run an operation as a stage of its own: nothing else is under way meanwhile."""
    yield Start(steps)
    result: T = yield Finish()
    return result


def again(operation: Operation[T]) -> Steps[T]:
    """Run an operation that only reads, asking until there is an answer: twice does no harm."""
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


# Raw replies become values here, and the negative codes of the scripts exceptions.


Refusal = Callable[[str, str], TaskbullError]


def _wrong_state(code: int, problem: str) -> Refusal:
    return lambda queue, job_id: WrongState(queue, job_id, problem, code)


CANCELLED: Final = 1
"""The job was to run again, but has failed, because it was cancelled."""

REFUSED: Final = -10
"""Something that stands in Redis keeps an outcome from being written."""

DENIED: Final = -11
"""No outcome like this can be written: our user may not, or a key of the queue is broken."""

OUT_OF_TURN: Final = -12
"""The call that goes before this one was not executed."""

REFUSALS: Final[dict[int, Refusal]] = {
    -1: JobNotFound,
    -2: LockLost,
    -3: _wrong_state(-3, "is not in the required state"),
    -4: _wrong_state(-4, "has pending children"),
    -5: _wrong_state(-5, "has no parent, or its parent is gone"),
    -6: LockLost,
    -7: _wrong_state(-7, "has another parent"),
    -8: _wrong_state(-8, "is the next run of a job scheduler: remove the scheduler instead"),
    -9: _wrong_state(-9, "has a failed child, which fails it as well"),
}
"""What the codes of the scripts mean; they are BullMQ's own."""


def is_denial(message: str) -> bool:
    """Return whether Redis said, in any version's words, that our user may not run a command."""
    return any(words in message for words in _DENIALS)


_DENIALS: Final = ("NOPERM", "ACL failure", "user executing the script")


def accepted(queue: QueueKeys, job_id: str) -> Callable[[int], int]:
    """Read a code: give it back, or raise what it stands for."""

    def read(reply: int) -> int:
        if reply < 0:
            raise REFUSALS[reply](queue.queue, job_id)
        return reply

    return read


def done(queue: QueueKeys, job_id: str) -> Callable[[int], None]:
    """Read the code of something that gives nothing, or raise what it stands for."""
    read = accepted(queue, job_id)

    def check(reply: int) -> None:
        read(reply)

    return check


def nothing(reply: object) -> None:
    """Read nothing."""


def text(raw: bytes) -> str:
    """Read a text; what is no UTF-8 is shown escaped."""
    return raw.decode("utf-8", "backslashreplace")


def info(reply: bytes) -> dict[str, str]:
    """Read what INFO tells: fields by name."""
    lines = text(reply).split("\r\n")
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def texts(reply: list[bytes]) -> list[str]:
    """Read an array of texts, such as ids."""
    return [text(raw) for raw in reply]


def number(raw: bytes | None) -> int:
    """Read a number that may be missing, or anything else; it is bounded."""
    return read_number(raw) or 0


def pair(reply: list[int]) -> tuple[int, int]:
    """Read two numbers."""
    first, second = reply
    return first, second

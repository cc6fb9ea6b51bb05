"""Raw replies become values here, and the negative codes of the scripts exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskbull.core.keys import QueueKeys
from taskbull.core.wire.numbers import read_number
from taskbull.errors import JobNotFound, LockLost, TaskbullError, WrongState

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
    -3: _wrong_state(-3, "is not in the state that this needs"),
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

"""Messages as bytes between a worker and a process of its pool: a mark, a length, the message.

The mark shows at once when a task has written to the descriptor of the line: what follows would be
taken for a length, and waited for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from taskbull.errors import TaskbullError

MARK: Final = b"tbp1"

MOST: Final = 64 << 20
"""Bytes of a message, at the most."""

_HEADER = struct.Struct(">4sI")


class BadFrame(TaskbullError):
    """What came is not a message."""


def check_length(length: int) -> None:
    """Refuse a message of so many bytes if that is too long."""
    if length > MOST:
        raise BadFrame(
            f"{length / 1e6:.1f} MB are more than the {MOST >> 20} MB that can be exchanged with "
            "a process of the pool"
        )


def frame(message: bytes) -> bytes:
    """Return a message as it is sent; refuse one that is too long."""
    check_length(len(message))
    return _HEADER.pack(MARK, len(message)) + message


class FrameReader:
    """Puts messages together from the pieces in which they come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take in a piece; yield the messages that are complete."""
        held = self._held
        held += data
        while len(held) >= _HEADER.size:
            mark, length = _HEADER.unpack_from(held)
            if mark != MARK or length > MOST:
                raise BadFrame(f"{bytes(held[:16])!r} is not the start of a message")
            end = _HEADER.size + length
            if len(held) < end:
                return
            message = bytes(memoryview(held)[_HEADER.size : end])
            del held[:end]
            yield message

"""Calls and their replies: what both stores share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import MsgspecError

from taskbull.core.checks import shown
from taskbull.errors import InvalidReply, TaskbullError
from taskbull.scripts.call import Request, Word
from taskbull.store.error_replies import read_refusal
from taskbull.store.pipeline import Reply, ReplyError

T = TypeVar("T")

NONSENSE = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    MsgspecError,
)
"""What reading a reply raises that does not fit its command."""


def invalid_reply(where: object, reply: Reply) -> InvalidReply:
    """Return the error for a reply that could not be read."""
    return InvalidReply(
        f"Redis at {where} sent a reply that does not fit the command: {shown(reply)}"
    )


def read_reply(call: Request[T], reply: Reply, where: object) -> T:
    """Return the result of a call; raise `InvalidReply` if the reply does not fit it."""
    try:
        return call.parse(reply)
    except TaskbullError:
        raise
    except NONSENSE as error:
        raise invalid_reply(where, reply) from error


def loading(call: Request[T]) -> list[tuple[Word, ...]]:
    """Return the command that must go before a call, so that the server knows its script."""
    return [] if call.script is None else [("SCRIPT", "LOAD", call.script.source)]


def read_replies(call: Request[T], replies: Sequence[Reply], where: object) -> T:
    """Read the replies to a call and what went before it; raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise read_refusal(reply).error
    return read_reply(call, replies[-1], where)

"""A call to one of several servers, chosen by whoever asks: what both stores share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from taskbull.scripts.call import Request, Word
from taskbull.store.error_replies import read_refusal
from taskbull.store.pipeline import Reply, ReplyError

T = TypeVar("T")


def loading(call: Request[T]) -> list[tuple[Word, ...]]:
    """Return the command that must go before a call, so that the server knows its script."""
    return [] if call.script is None else [("SCRIPT", "LOAD", call.script.source)]


def read_replies(call: Request[T], replies: Sequence[Reply]) -> T:
    """Read the replies to a call and what went before it; raise the first that is an error."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise read_refusal(reply).error
    return call.parse(replies[-1])

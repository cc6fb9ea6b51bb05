"""What is told and stored about an error: what it says in one sentence, and its stack as text."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from itertools import islice
from typing import Final, cast

from taskbull.core.classification import leaves
from taskbull.core.frames import ERRORS

REASON_LIMIT = 10_000
STACK_LIMIT = 50_000

_MEMBERS = 3
"""Errors of a group that are named in its reason, at the most."""

_OTHER_LOOP: Final = {
    "must be called from async context": "trio",
    "no running event loop": "asyncio",
    "there is no current event loop": "asyncio",
    "'nonetype' object has no attribute 'create_future'": "asyncio",
    "trio got unexpected": "asyncio",
}
"""What errors say that come from calling one event loop's functions where another one runs."""


def reason_of(error: BaseException) -> str:
    """Return what went wrong, such as `KeyError: 'customer_id'`; never raise.

    The exceptions of taskbull itself stand without their type: their message is a sentence, which
    names what happened, and often it is BullMQ's own. A class that a user derives from one of them
    is named, like any other. An error without a message is its type alone.
    """
    return _storable(_told(error), REASON_LIMIT)


def message_of(error: BaseException) -> str:
    """Return the message without the type; never raise."""
    return _storable(_message(error), REASON_LIMIT)


def stack_of(error: BaseException, notes: Sequence[str] = ()) -> str:
    """Return the error's traceback with `notes` below it; never raise."""
    try:
        stack = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - foreign code: whatever hangs at an exception
        stack = f"{reason_of(error)}\n"
    return _storable("\n".join([stack.rstrip("\n"), *notes]), STACK_LIMIT)


def hint_for(error: BaseException) -> str | None:
    """Name the way out of an error that says too little to whoever meets it first."""
    if not isinstance(error, RuntimeError | TypeError | AttributeError):
        return None
    message = _message(error).lower()
    for words, backend in _OTHER_LOOP.items():
        if words in message:
            return (
                f"{backend}'s functions work in an async def task on a worker that runs on "
                f"{backend}: start it with --backend {backend}"
            )
    return None


def _told(error: BaseException) -> str:
    name, message = _name(error), _message(error)
    if type(error).__module__ == ERRORS:
        return message or name
    told = f"{name}: {message}" if message else name
    if isinstance(error, BaseExceptionGroup):
        return f"{told}: {_members(cast('BaseExceptionGroup[BaseException]', error))}"
    hint = hint_for(error)
    return told if hint is None else f"{told} ({hint})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - foreign code: an exception's own __str__
        return f"its message cannot be read, because str() raised {type(fault).__name__}"


def _members(group: BaseExceptionGroup[BaseException]) -> str:
    told = [_told(one) for one in islice(leaves(group), _MEMBERS + 1)]
    return "; ".join([*told[:_MEMBERS], "…"] if len(told) > _MEMBERS else told)


def _name(error: BaseException) -> str:
    """Return a class's name as people write it: `Order.DoesNotExist`, without functions."""
    return type(error).__qualname__.rpartition("<locals>.")[2]


def _storable(text: str, limit: int) -> str:
    if len(text) > limit:
        # Both ends tell: where it began, and what it came to.
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return scrubbed(text)


def scrubbed(text: str) -> str:
    """Return the text with lone surrogates spelled out, so that UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode()

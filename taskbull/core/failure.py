"""What is stored about an error: its message, and its traceback as text."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

REASON_LIMIT = 10_000
STACK_LIMIT = 50_000


def reason_of(error: BaseException) -> str:
    """Give the error's message, or its class where it has none; never raise."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - foreign code: an exception's own __str__
        message = f"{name}, whose message cannot be read"
    return _storable(message or name, REASON_LIMIT)


def stack_of(error: BaseException, notes: Sequence[str] = ()) -> str:
    """Give the error's traceback with `notes` below it; never raise."""
    try:
        stack = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - foreign code: whatever hangs at an exception
        stack = f"{type(error).__name__}: {reason_of(error)}\n"
    return _storable("\n".join([stack.rstrip("\n"), *notes]), STACK_LIMIT)


def _storable(text: str, limit: int) -> str:
    if len(text) > limit:
        # Both ends tell: where it began, and what it came to.
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return scrubbed(text)


def scrubbed(text: str) -> str:
    """Give the text with lone surrogates spelled out, so that UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode()

"""Which errors pass, and which do not: the default classifier.

Foreign classes are known by the name of their package, so that none of it is imported.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from taskbull.core.outcome import Category
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    CorruptJob,
    InvalidArguments,
    MaybeExecuted,
    PermanentError,
    Retry,
    SerializationError,
    ServerUnavailable,
    TaskbullError,
    TaskNotRegistered,
    TransientError,
)

# Which errors pass, and which do not: the default classifier.
#
# Foreign classes are known by the name of their package, so that none of it is imported.


Classifier = Callable[[BaseException], Category | str | None]
"""Returns the category of an error, or None to leave it to the default classifier."""

_PERMANENT = (
    PermanentError,
    CorruptJob,
    InvalidArguments,
    TaskNotRegistered,  # it has waited for a worker that has the task by then
    SerializationError,
    ConfigurationError,
    PermissionError,
)
_TRANSIENT = (
    TransientError,
    Retry,
    ConnectionLost,
    MaybeExecuted,
    ServerUnavailable,
    ConnectionError,
    TimeoutError,
    MemoryError,
)

_TRANSIENT_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EADDRNOTAVAIL,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOTCONN,
    }
)

# (package, class) of errors whose cause is the network or a busy server.
_FOREIGN_TRANSIENT = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("coredis", "RedisError"),
        ("http", "IncompleteRead"),
        ("httpcore", "NetworkError"),
        ("httpcore", "ProtocolError"),
        ("httpcore", "TimeoutException"),
        ("httpx", "TransportError"),
        ("redis", "RedisError"),
        ("requests", "ChunkedEncodingError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("_socket", "gaierror"),
        ("socket", "gaierror"),
        ("urllib", "URLError"),
        ("urllib3", "IncompleteRead"),
        ("urllib3", "MaxRetryError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "TimeoutError"),
        ("valkey", "ValkeyError"),
    }
)
_FOREIGN_PERMANENT = frozenset(
    {
        ("bullmq", "UnrecoverableError"),
        ("redis", "DataError"),
        ("redis", "NoPermissionError"),
        ("valkey", "DataError"),
        ("valkey", "NoPermissionError"),
    }
)

_HTTP_CLIENTS = frozenset({"aiohttp", "httpx", "requests", "urllib", "urllib3"})
_TRANSIENT_STATUSES = frozenset({408, 425, 429})  # the server says: later


def classify(error: BaseException) -> Category:
    """Return whether trying again may help; for a group, its worst member decides."""
    return min((_classify_one(leaf) for leaf in leaves(error)), key=_SEVERITY.index)


_SEVERITY = (Category.PERMANENT, Category.TRANSIENT, Category.UNKNOWN)


def _classify_one(error: BaseException) -> Category:
    if isinstance(error, _PERMANENT):
        return Category.PERMANENT
    if isinstance(error, TransientError):
        return Category.TRANSIENT
    status = _http_status(error)
    if status is not None:
        return _classify_status(status)
    return _classify_kind(error)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the errors in a group, or the error itself if it is not a group."""
    # By its type: `isinstance` would ask the error for its class, which may raise.
    if issubclass(type(error), BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(member)
    else:
        yield error


def causes(error: BaseException) -> list[BaseException]:
    """Return the errors of a group, and all from which they were raised."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        waiting += [leaf for leaf in leaves(one) if leaf is not one]
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return found


def _classify_kind(error: BaseException) -> Category:
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    if kinds & _FOREIGN_PERMANENT:
        return Category.PERMANENT
    if isinstance(error, _TRANSIENT) or kinds & _FOREIGN_TRANSIENT:
        return Category.TRANSIENT
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return Category.TRANSIENT
    return Category.UNKNOWN


def _classify_status(status: int) -> Category:
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return Category.TRANSIENT
    return Category.PERMANENT if status >= 400 else Category.UNKNOWN


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status that a client's error carries, if it carries one."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if not packages & _HTTP_CLIENTS:
        return None
    try:
        found: list[Any] = [
            getattr(getattr(error, "response", None), "status_code", None),  # httpx, requests
            getattr(error, "status", None),  # aiohttp
            getattr(error, "code", None),  # urllib
        ]
    except Exception:  # noqa: BLE001 - foreign code: httpx raises where there is no response
        return None
    return next((status for status in found if isinstance(status, int) and status >= 100), None)


# Telling our own code from that of others, in stacks that are shown to people.


_PACKAGE = str(Path(__file__).parent.parent) + os.sep

ERRORS = TaskbullError.__module__
"""The module in which all exceptions of taskbull stand."""


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to taskbull itself."""
    return filename.startswith(_PACKAGE)


def where_of(stack: str) -> str:
    """Return a stack as the C code of Python writes it, without our own frames."""
    lines = [line for line in stack.splitlines() if f'File "{_PACKAGE}' not in line]
    return "\n".join(line for line in lines if 'File "<frozen runpy>"' not in line).strip()


def leave_out_our_frames(error: BaseException) -> None:
    """Drop our own frames from the top of an error's stack, and of those of the errors it carries.

    Those who called a task say nothing about it, nor does what stands between a middleware and the
    task. Frames of ours stay behind the last frame of others, for there something was asked of us;
    and where there are no others: then the error is our own fault, unless it is one that we raise
    to say something, whose message is enough.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:  # causes can go round in a circle
            continue
        seen.add(id(one))
        # Not by assignment: a class may refuse to be changed, as a frozen dataclass does.
        BaseException.with_traceback(one, _shortened(one))
        with suppress(Exception):  # foreign code: a class may have attributes of its own
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
            if isinstance(one, BaseExceptionGroup):
                waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions


def _shortened(error: BaseException) -> TracebackType | None:
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    ours = [is_ours(one.tb_frame.f_code.co_filename) for one in frames]
    if all(ours):
        return None if type(error).__module__ == ERRORS else error.__traceback__
    last = len(ours) - 1 - ours[::-1].index(False)
    linked: TracebackType | None = None
    for n, one in reversed([*enumerate(frames)]):
        if n > last or not ours[n]:
            linked = TracebackType(linked, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return linked


# What is told and stored about an error: what it says in one sentence, and its stack as text.


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

"""Errors of tasks: the default classifier, and their reason and stack trace as text.

Classes of other packages are recognized by name, so that those packages need not be imported. An
error may run third-party code in its methods, so reading one must never raise.
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

# The default classifier.


Classifier = Callable[[BaseException], Category | str | None]
"""Function that returns an error's category, or `None` to use the default classifier."""

_PERMANENT = (
    PermanentError,
    CorruptJob,
    InvalidArguments,
    TaskNotRegistered,  # Raised only after waiting for a worker that knows the task.
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

# (package, class) of errors caused by the network or a busy server.
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
_TRANSIENT_STATUSES = frozenset({408, 425, 429})  # The server asks the client to retry.


def classify(error: BaseException) -> Category:
    """Return the category of an error: permanent, transient or unknown.

    An exception group gets the worst category of its members: permanent, then transient.
    """
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
    # Use type(): `isinstance` would read the error's `__class__`, which may raise.
    if issubclass(type(error), BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(member)
    else:
        yield error


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, the members of its groups, and all their causes and contexts."""
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
    """Return the status of an HTTP client's error, or None if it has none."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if not packages & _HTTP_CLIENTS:
        return None
    try:
        found: list[Any] = [
            getattr(getattr(error, "response", None), "status_code", None),  # httpx, requests
            getattr(error, "status", None),  # aiohttp
            getattr(error, "code", None),  # urllib
        ]
    except Exception:  # noqa: BLE001 - third-party code: httpx raises if there is no response
        return None
    return next((status for status in found if isinstance(status, int) and status >= 100), None)


# Removal of taskbull's own frames from stack traces.


_PACKAGE = str(Path(__file__).parent.parent) + os.sep

ERRORS = TaskbullError.__module__
"""Module that defines all exceptions of taskbull."""


def is_ours(filename: str) -> bool:
    """Return True if a file belongs to taskbull."""
    return filename.startswith(_PACKAGE)


def where_of(stack: str) -> str:
    """Return a stack in the format of `faulthandler`, without taskbull's frames."""
    lines = [line for line in stack.splitlines() if f'File "{_PACKAGE}' not in line]
    return "\n".join(line for line in lines if 'File "<frozen runpy>"' not in line).strip()


def leave_out_our_frames(error: BaseException) -> None:
    """Remove taskbull's frames from the tracebacks of an error and of all errors it refers to.

    The frames between a worker, its middleware and the task do not help the user. Two kinds of
    taskbull frames stay. Frames after the last user frame stay because the user's code called
    taskbull there. If there are only taskbull frames, they stay because the error is a bug in
    taskbull. An exception of `taskbull.errors` has its frames removed even then, because its
    message is enough.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:  # Causes can form a cycle.
            continue
        seen.add(id(one))
        # Do not assign the attribute: a class may reject that, as a frozen dataclass does.
        BaseException.with_traceback(one, _shortened(one))
        with suppress(Exception):  # Third-party code: a class may override these attributes.
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


# The reason and the stack trace of an error, as logged and stored.


REASON_LIMIT = 10_000
STACK_LIMIT = 50_000

_MEMBERS = 3
"""Maximum number of members that the reason of an exception group names."""

_OTHER_LOOP: Final = {
    "must be called from async context": "trio",
    "no running event loop": "asyncio",
    "there is no current event loop": "asyncio",
    "'nonetype' object has no attribute 'create_future'": "asyncio",
    "trio got unexpected": "asyncio",
}
"""Event loop that a function needs, by the error that it raises in another event loop."""


def reason_of(error: BaseException) -> str:
    """Return the class and message of an error, such as `KeyError: 'customer_id'`. Never raises.

    The class is omitted for taskbull's own exceptions, because their message is a full sentence and
    often BullMQ's own. A user-defined subclass is named like any other class. If there is no
    message, the result is the class name alone.
    """
    return _storable(_describe(error), REASON_LIMIT)


def message_of(error: BaseException) -> str:
    """Return the message of an error without its class. Never raises."""
    return _storable(_message(error), REASON_LIMIT)


def stack_of(error: BaseException, notes: Sequence[str] = ()) -> str:
    """Return the formatted traceback of an error, followed by `notes`. Never raises."""
    try:
        stack = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - third-party code: attributes of the exception
        stack = f"{reason_of(error)}\n"
    return _storable("\n".join([stack.rstrip("\n"), *notes]), STACK_LIMIT)


def hint_for(error: BaseException) -> str | None:
    """Return a hint for an error caused by the wrong event loop, otherwise `None`."""
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


def _describe(error: BaseException) -> str:
    name, message = _name(error), _message(error)
    if type(error).__module__ == ERRORS:
        return message or name
    text = f"{name}: {message}" if message else name
    if isinstance(error, BaseExceptionGroup):
        return f"{text}: {_members(cast('BaseExceptionGroup[BaseException]', error))}"
    hint = hint_for(error)
    return text if hint is None else f"{text} ({hint})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - third-party code: the exception's __str__
        return f"its message cannot be read, because str() raised {type(fault).__name__}"


def _members(group: BaseExceptionGroup[BaseException]) -> str:
    text = [_describe(one) for one in islice(leaves(group), _MEMBERS + 1)]
    return "; ".join([*text[:_MEMBERS], "…"] if len(text) > _MEMBERS else text)


def _name(error: BaseException) -> str:
    """Return the qualified class name without enclosing functions: `Order.DoesNotExist`."""
    return type(error).__qualname__.rpartition("<locals>.")[2]


def _storable(text: str, limit: int) -> str:
    if len(text) > limit:
        # Keep both ends: the first shows the origin, the last the error.
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return scrubbed(text)


def scrubbed(text: str) -> str:
    """Return the text with lone surrogates escaped, so that UTF-8 can encode it."""
    return text.encode("utf-8", "backslashreplace").decode()

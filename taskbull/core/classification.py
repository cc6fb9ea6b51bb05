"""Which errors pass, and which do not: the default classifier.

Foreign classes are known by the name of their package, so that none of it is imported.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any, cast

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
    TaskNotRegistered,
    TransientError,
)

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

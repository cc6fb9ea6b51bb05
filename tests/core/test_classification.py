"""The default classifier distinguishes transient errors without importing any client."""

from __future__ import annotations

import errno
import socket
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import requests

from taskbull.core.outcome import Category, classify, leaves
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    CorruptJob,
    InvalidArguments,
    MaybeExecuted,
    PermanentError,
    SerializationError,
    ServerUnavailable,
    TransientError,
    UnrecoverableError,
)

TRANSIENT, PERMANENT, UNKNOWN = Category.TRANSIENT, Category.PERMANENT, Category.UNKNOWN


def foreign(module: str, *names: str, base: type[Exception] = Exception, **attributes: Any) -> Any:
    """Create an error like one of a package that is not installed: class, bases and attributes."""
    kind: type[Exception] = base
    for name in reversed(names):
        kind = type(name, (kind,), {"__module__": module})
    error = kind("message")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def http_error(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", status, "message", Message(), None)


def requests_error(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("message", response=response)


class NeverAskedError(Exception):
    """Like httpx: `response` raises if there is none."""

    @property
    def response(self) -> object:
        raise RuntimeError("no response")


NeverAskedError.__module__ = "httpx._exceptions"


# Error categories
@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TransientError("x"), TRANSIENT),
        (PermanentError("x"), PERMANENT),
        (UnrecoverableError("x"), PERMANENT),
        (foreign("bullmq.custom_errors", "UnrecoverableError"), PERMANENT),
        # network and timeouts
        (ConnectionResetError(), TRANSIENT),
        (BrokenPipeError(), TRANSIENT),
        (TimeoutError(), TRANSIENT),
        (socket.gaierror(socket.EAI_AGAIN, "x"), TRANSIENT),
        (OSError(errno.ENETUNREACH, "x"), TRANSIENT),
        (OSError(errno.EHOSTUNREACH, "x"), TRANSIENT),
        (urllib.error.URLError("refused"), TRANSIENT),
        (requests.ConnectionError("x"), TRANSIENT),
        (requests.ReadTimeout("x"), TRANSIENT),
        (foreign("httpx", "ConnectError", "TransportError"), TRANSIENT),
        (foreign("httpx", "ReadTimeout", "TimeoutException", "TransportError"), TRANSIENT),
        (foreign("aiohttp.client_exceptions", "ClientConnectionError"), TRANSIENT),
        # HTTP
        *((http_error(status), TRANSIENT) for status in (500, 502, 503, 429, 408)),
        *((http_error(status), PERMANENT) for status in (400, 401, 403, 404, 422)),
        (requests_error(503), TRANSIENT),
        (requests_error(429), TRANSIENT),
        (requests_error(404), PERMANENT),
        (requests.HTTPError("no response"), UNKNOWN),
        (
            foreign("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=502)),
            TRANSIENT,
        ),
        (
            foreign("httpx", "HTTPStatusError", response=SimpleNamespace(status_code=404)),
            PERMANENT,
        ),
        (foreign("aiohttp.client_exceptions", "ClientResponseError", status=500), TRANSIENT),
        (foreign("aiohttp.client_exceptions", "ClientResponseError", status=403), PERMANENT),
        (foreign("aiohttp.client_exceptions", "ClientResponseError", status=302), UNKNOWN),
        (foreign("aiohttp.client_exceptions", "ClientResponseError", status=0), UNKNOWN),
        (NeverAskedError("x"), UNKNOWN),
        # An unrelated `status` attribute is ignored.
        (foreign("myapp", "OrderError", status=404), UNKNOWN),
        # Redis, and taskbull's connection errors.
        (redis.ConnectionError("x"), TRANSIENT),
        (redis.exceptions.BusyLoadingError("x"), TRANSIENT),
        (redis.exceptions.NoPermissionError("x"), PERMANENT),
        (redis.DataError("x"), PERMANENT),
        (ConnectionLost("x"), TRANSIENT),
        (MaybeExecuted("x"), TRANSIENT),
        (ServerUnavailable("LOADING", "x"), TRANSIENT),
        # exhaustion
        (MemoryError(), TRANSIENT),
        (OSError(errno.EMFILE, "x"), TRANSIENT),
        (OSError(errno.ENOSPC, "x"), TRANSIENT),
        # what does not fit
        (InvalidArguments("x"), PERMANENT),
        (CorruptJob("1", "data", "x"), PERMANENT),
        (SerializationError("x"), PERMANENT),
        (ConfigurationError("x"), PERMANENT),
        (PermissionError(), PERMANENT),
        # anything else
        (ValueError("x"), UNKNOWN),
        (TypeError("x"), UNKNOWN),
        (FileNotFoundError(errno.ENOENT, "x"), UNKNOWN),
        (KeyError("x"), UNKNOWN),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!s}"[:40],
)
def test_an_error_has_its_category(error: BaseException, category: Category) -> None:
    assert classify(error) is category


@pytest.mark.parametrize(
    ("members", "category"),
    [
        ([ValueError(), TimeoutError()], TRANSIENT),
        ([TimeoutError(), PermanentError()], PERMANENT),
        ([ValueError(), ExceptionGroup("inner", [KeyError()])], UNKNOWN),
    ],
)
def test_of_a_group_the_worst_member_counts(members: list[Exception], category: Category) -> None:
    assert classify(ExceptionGroup("several", members)) is category


def test_the_leaves_of_nested_groups_are_found_in_order() -> None:
    one, two, three = ValueError(), KeyError(), TimeoutError()
    group = ExceptionGroup("outer", [one, ExceptionGroup("inner", [two, three])])
    assert list(leaves(group)) == [one, two, three]

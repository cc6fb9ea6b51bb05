"""Real servers for tests: one that pip has brought along, and an app that uses another one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from taskbull.app.app import App
from taskbull.store.address import address_of
from taskbull.store.server_process import ServerProcess, valkey_binary


@contextmanager
def private_server() -> Generator[ServerProcess]:
    """Run an empty, private Valkey server for the block: `private_server().url`.

    Needs the extra `taskbull[embedded]`.
    """
    with ServerProcess(valkey_binary()) as one:
        yield one


@contextmanager
def connected(app: App, redis: str) -> Generator[None]:
    """Make the app's tasks, queues and new workers use the Redis at this URL in the block.

    For apps that are made where their module is imported: `with connected(app, server.url): …`.
    """
    with app.producer.moved(address_of(redis)):
        yield


def _server() -> Iterator[ServerProcess]:
    """A private server for one test: `def test_x(server): app = App("x", redis=server.url)`."""
    with private_server() as one:
        yield one


server: Callable[..., Any]
"""A pytest fixture: import it into your `conftest.py`."""

try:
    import pytest
except ImportError:  # tests can be written without pytest: with `private_server`
    server = _server
else:
    server = pytest.fixture(name="server")(_server)

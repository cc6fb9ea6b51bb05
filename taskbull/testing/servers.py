"""Real servers for tests: a private Valkey server, and a way to point an app at it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from taskbull.app.app import App
from taskbull.store.server_process import ServerProcess, valkey_binary


@contextmanager
def private_server() -> Generator[ServerProcess]:
    """Run an empty, private Valkey server for the duration of the block.

    Needs the extra `taskbull[embedded]`.

    Raises:
        ConfigurationError: If the extra is not installed or has no server for this machine.

    Example:
        >>> with private_server() as server:
        ...     app = App("shop", redis=server.url)
    """
    with ServerProcess(valkey_binary()) as one:
        yield one


@contextmanager
def connected(app: App, redis: str) -> Generator[None]:
    """Make the app's tasks, queues and new workers use another Redis within the block.

    Use it for apps that are created when their module is imported. Pool processes of the workers
    use the other Redis as well.

    Args:
        app: The app to redirect.
        redis: URL of the Redis server.

    Example:
        >>> with private_server() as server, connected(app, server.url):
        ...     greet.delay("Ann")
    """
    with app.producer.moved(redis):
        yield


def _server() -> Iterator[ServerProcess]:
    """Run a private Valkey server for one test.

    Example:
        >>> def test_shop(server):
        ...     app = App("shop", redis=server.url)
    """
    with private_server() as one:
        yield one


server: Callable[..., Any]
"""A pytest fixture that runs a private Valkey server for one test.

Import it into your `conftest.py`. Needs pytest and the extra `taskbull[embedded]`.
"""

try:
    import pytest
except ImportError:  # Tests without pytest use `private_server`.
    server = _server
else:
    server = pytest.fixture(name="server")(_server)

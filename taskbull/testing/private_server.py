"""A real server for tests, which pip has brought along."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from taskbull.store.server_process import ServerProcess, valkey_binary


@contextmanager
def private_server() -> Generator[ServerProcess]:
    """Give an empty Valkey server of one's own for the block: `private_server().url`.

    Needs the extra `taskbull[embedded]`.
    """
    with ServerProcess(valkey_binary()) as one:
        yield one


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

"""A proxy in front of the server, a pool that uses it, and a folder for an embedded server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskbull.store.address import parse
from taskbull.store.embedded import stop
from taskbull.store.sync_store import ConnectionPool
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as proxy:
        yield proxy


@pytest.fixture
def pool(proxy: Proxy) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(parse(proxy.url))
    yield pool
    pool.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for an embedded server, which is stopped after the test."""
    path = tmp_path / "home"
    yield path
    if path.is_dir():
        stop(path)

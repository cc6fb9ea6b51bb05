"""Servers with no other clients, so that their counters belong to the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from taskbull.store.server_process import ServerProcess
from tests.servers.kinds import CONTAINER, KINDS, binary
from tests.speed.callgrind import QUIET


@pytest.fixture(scope="module")
def shared_lone_server(kind: str) -> Iterator[ServerProcess]:
    if kind == CONTAINER:
        pytest.skip("counts need a server of the test's own, and a container is shared")
    with ServerProcess(binary(kind), QUIET) as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lone_server(shared_lone_server: ServerProcess) -> ServerProcess:
    """A server of each kind in turn, empty, that only the test talks to."""
    with redis.Redis.from_url(shared_lone_server.url) as admin:
        admin.flushall()
    return shared_lone_server

"""Fixtures for a test's own app, and helpers that read what it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taskbull.app.app import App
from taskbull.core.keys import QueueKeys
from tests.servers.kinds import KINDS, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind is enough here, because lower layers handle the differences."""
    return shared_servers.emptied(KINDS[0])


@pytest.fixture
def keys(prefix: str) -> QueueKeys:
    """Keys of the default queue."""
    return QueueKeys("default", prefix=prefix)


@pytest.fixture
def app(server: Reachable, prefix: str) -> Iterator[App]:
    app = App("shop", redis=server.url, prefix=prefix)
    yield app
    app.close()


def written(admin: Any, prefix: str) -> set[bytes]:
    """Return all keys that a test wrote."""
    return set(admin.keys(f"{prefix}:*"))

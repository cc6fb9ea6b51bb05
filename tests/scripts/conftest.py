"""A bed to seed and look at, on a server of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import Bed
from tests.servers.kinds import Reachable


@pytest.fixture
def bed(server: Reachable, admin: redis.Redis, prefix: str) -> Iterator[Bed]:
    store = SyncStore(address.parse(server.url))
    yield Bed(admin, store, prefix)
    store.close()

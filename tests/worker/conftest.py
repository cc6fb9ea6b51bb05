"""A queue for a worker."""

from __future__ import annotations

import pytest
import redis

from tests.servers.kinds import Reachable
from tests.worker.bed import WorkerBed


@pytest.fixture
def bed(server: Reachable, admin: redis.Redis, prefix: str) -> WorkerBed:
    return WorkerBed(server, admin, prefix)

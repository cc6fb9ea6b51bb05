"""Helpers that query another process and wait for its state."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbull.store.server_process import ServerProcess


def plain_client(server: ServerProcess) -> redis.Redis:
    """Return a client whose replies are unparsed text."""
    client = redis.Redis(
        unix_socket_path=str(server.socket),
        decode_responses=True,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
    )
    client.response_callbacks.clear()
    return client


def wait_until(condition: Callable[[], bool], what: str, deadline: float = 60.0) -> None:
    """Wait until `condition` holds. After `deadline`, fail with a message that contains `what`."""
    limit = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < limit, f"not within {deadline} s: {what}"
        time.sleep(0.01)

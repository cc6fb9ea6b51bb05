"""What tests do with another process: ask it, and wait for its state."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbull.store.server_process import ServerProcess


def plain_client(server: ServerProcess) -> redis.Redis:
    """Give a client whose replies are what the server said: text, parsed by nobody."""
    client = redis.Redis(
        unix_socket_path=str(server.socket),
        decode_responses=True,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
    )
    client.response_callbacks.clear()
    return client


def wait_until(condition: Callable[[], bool], what: str, deadline: float = 60.0) -> None:
    """Return as soon as `condition` holds; fail, naming `what` was awaited, after `deadline`."""
    limit = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < limit, f"not within {deadline} s: {what}"
        time.sleep(0.01)

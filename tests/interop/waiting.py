"""Waiting for states without an event: of a running worker, and of the server."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Final

from redis import Redis

PATIENCE: Final = 60.0  # Other programs may delay it.
_PAUSE: Final = 0.002


def wait_until(what: str, condition: Callable[[], object]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {PATIENCE} s: {what}")
        time.sleep(_PAUSE)


def client_name(prefix: str, queue: str, worker: str) -> str:
    """Return the name of a worker's blocking connection."""
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}:w:{worker}"


def is_blocked(redis: Redis, name: str) -> bool:
    """Return True if the worker whose client name begins with `name` is blocked on the marker."""
    return any(
        client["name"].startswith(name)
        and client["cmd"].lower() == "bzpopmin"
        and "b" in client["flags"]
        for client in redis.client_list()
    )


def is_idle(
    redis: Redis, prefix: str, queue: str, worker: str, others: frozenset[Any] = frozenset()
) -> bool:
    """Return True if a running worker is blocked on the marker with nothing left to do.

    `others` are running jobs of other workers.
    """
    # One transaction, because the worker may wake and sleep again between two reads.
    pipe = redis.pipeline()
    pipe.client_list()
    pipe.exists(f"{prefix}:{queue}:marker")
    pipe.lrange(f"{prefix}:{queue}:active", 0, -1)
    clients, marker, active = pipe.execute()
    name = client_name(prefix, queue, worker)
    blocked = [client for client in clients if client["name"] == name and "b" in client["flags"]]
    return bool(blocked) and not marker and others.issuperset(active)

"""Waiting for what no event tells: where a running worker stands, and what is in the server."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Final

from redis import Redis

PATIENCE: Final = 60.0  # other programs may hold it up
_PAUSE: Final = 0.002


def wait_until(what: str, condition: Callable[[], object]) -> None:
    """Ask again and again until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {PATIENCE} s: {what}")
        time.sleep(_PAUSE)


def client_name(prefix: str, queue: str, worker: str) -> str:
    """Give the name that a worker's blocking connection has."""
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}:w:{worker}"


def is_blocked(redis: Redis, name: str) -> bool:
    """Tell whether the worker whose client name begins with `name` sleeps at the marker."""
    return any(
        client["name"].startswith(name)
        and client["cmd"].lower() == "bzpopmin"
        and "b" in client["flags"]
        for client in redis.client_list()
    )


def is_idle(
    redis: Redis, prefix: str, queue: str, worker: str, others: frozenset[Any] = frozenset()
) -> bool:
    """Tell whether a running worker sleeps at the marker with nothing left to do.

    `others` are jobs that run, but are not this worker's.
    """
    pipe = redis.pipeline()  # in one transaction: between two looks it may have woken and slept
    pipe.client_list()
    pipe.exists(f"{prefix}:{queue}:marker")
    pipe.lrange(f"{prefix}:{queue}:active", 0, -1)
    clients, marker, active = pipe.execute()
    name = client_name(prefix, queue, worker)
    blocked = [client for client in clients if client["name"] == name and "b" in client["flags"]]
    return bool(blocked) and not marker and others.issuperset(active)

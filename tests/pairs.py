"""Which combinations of event loop, server and store a test is run on.

A server does not know by which loop its client waits, and a loop does not know what answers:
`tests/store` shows that the bytes are the same. So a test that asks for both meets each loop and
each server, but not each with each. What is done without a loop (`SyncQueue`, `SyncServer`) is run
on asyncio only.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

import pytest

from taskbull.queue.sync_server import SyncServer
from tests.servers.kinds import REDIS_6, REDIS_7, VALKEY_9

ALL = bool(os.environ.get("TASKBULL_ALL_PAIRS"))
"""Whether to run all of them, as the nightly run does."""

ASYNCIO, TRIO = "asyncio", "trio"
PRODUCT = {(loop, kind) for loop in (ASYNCIO, TRIO) for kind in (VALKEY_9, REDIS_6, REDIS_7)}
NEEDED = {(ASYNCIO, VALKEY_9), (TRIO, VALKEY_9), (TRIO, REDIS_6), (ASYNCIO, REDIS_7)}
"""Every machine has Valkey 9: so no loop is left out where another server is missing."""

T = TypeVar("T")
Parameters = Mapping[str, Any]


def spare(tests: Iterable[tuple[T, Hashable, Parameters]]) -> list[T]:
    """Return the tests that tell no more than others; each comes with its function and parameters.

    Only what is there in all combinations can be spared: whoever asks for one of them gets it.
    """
    groups: dict[tuple[Hashable, bool, Hashable], dict[tuple[str, str], T]] = defaultdict(dict)
    for test, function, parameters in tests:
        # By identity: not every value has a hash, nor even a repr.
        rest = tuple((name, id(parameters[name])) for name in parameters if name not in _VARIED)
        loop, kind = (str(parameters.get(name)) for name in _VARIED)
        groups[function, _is_sync(parameters), rest][loop, kind] = test
    return [
        test
        for (_, sync, _), group in groups.items()
        if group.keys() == PRODUCT
        for (loop, kind), test in group.items()
        if (loop == TRIO if sync else (loop, kind) not in NEEDED)
    ]


_VARIED = ("anyio_backend", "server")


def _is_sync(parameters: Parameters) -> bool:
    by_server = any(value is SyncServer for value in parameters.values())
    return by_server or parameters.get("queue") == "sync"


def thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what can be spared."""
    if ALL:
        return
    dropped = set(
        spare(
            (item, (item.path, item.originalname), item.callspec.params)
            for item in items
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        )
    )
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]

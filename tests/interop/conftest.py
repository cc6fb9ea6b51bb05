"""A server, a Node process with both versions of BullMQ, and actors on fresh prefixes."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest
from redis import Redis

from tests.interop.install import require_node_modules
from tests.interop.node import Node, Version
from tests.interop.node_actor import NodeActor
from tests.interop.stage import Case, Played, clear, play
from tests.servers.kinds import KINDS, SharedServers


class MakeActor(Protocol):
    """Makes a Node actor: on a fresh prefix, or on that of another actor."""

    def __call__(self, version: Version, prefix: str | None = None) -> NodeActor: ...


Solo = Callable[[Case, Version], Played]


@pytest.fixture(scope="session")
def interop_url() -> Iterator[str]:
    """A server for these tests alone: the first kind, or the one that the environment names.

    Other tests flush theirs, scripts included, and BullMQ's client takes it that they stay.
    """
    with ExitStack() as stack:
        kind = os.environ.get("TASKBULL_INTEROP_SERVER", KINDS[0])
        yield SharedServers(stack).get(kind).url


@pytest.fixture(scope="session")
def node(interop_url: str) -> Iterator[Node]:
    """One Node process for all tests; what belongs to a prefix is forgotten after each."""
    require_node_modules()
    with Node(interop_url) as running:
        yield running


@pytest.fixture
def redis(interop_url: str) -> Iterator[Redis]:
    """A client that sees bytes."""
    with Redis.from_url(interop_url) as client:
        yield client


@pytest.fixture(scope="session")
def solo(node: Node, interop_url: str) -> Iterator[Solo]:
    """Play a case by one version alone; the result is kept for the other tests that want it."""
    played: dict[tuple[str, Version], Played] = {}
    fresh = (f"solo-{uuid.uuid4().hex[:12]}" for _ in itertools.count())

    def perform(case: Case, version: Version) -> Played:
        if (str(case), version) not in played:
            actor = NodeActor(node, version, next(fresh))
            played[str(case), version] = play(case, client, actor)
            node.call("forget", prefix=actor.prefix)
            clear(client, actor.prefix)
        return played[str(case), version]

    with Redis.from_url(interop_url) as client:
        yield perform


@pytest.fixture
def new_actor(node: Node, redis: Redis, prefix: str) -> Iterator[MakeActor]:
    """Create Node actors, each with the queue `q` of its own prefix."""
    used: list[NodeActor] = []

    fresh = (f"{prefix}-{n:03}" for n in itertools.count())

    def make(version: Version, prefix: str | None = None) -> NodeActor:
        used.append(NodeActor(node, version, prefix or next(fresh)))
        return used[-1]

    yield make
    for actor in used:
        node.call("forget", prefix=actor.prefix)
        clear(redis, actor.prefix)
    node.call("realClock")

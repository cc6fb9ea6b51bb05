"""Random sequences, by Node against Node: they are alike, or the difference has a name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, find, given, note, settings
from redis import Redis

from tests.interop.actor import Actor
from tests.interop.compare import ANY_VERSION, Exempt
from tests.interop.node import Node, Version
from tests.interop.node_actor import NodeActor
from tests.interop.sequences import VERSIONS_DIFFER, Sequence, as_case, sequences
from tests.interop.stage import Played, clear, compare, play
from tests.interop.turns import by_turns
from tests.selection import FULL

pytestmark = pytest.mark.full  # BullMQ alone, without taskbull.

EXAMPLES = int(os.environ.get("TASKBULL_SEQUENCES", "20" if FULL else "4"))
"""Number of sequences per test. A larger number uses new ones in every run."""

RANDOM = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="TASKBULL_SEQUENCES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class SequencePlayer:
    """Runs sequences, each on its own prefix."""

    def __init__(self, node: Node, redis: Redis, prefix: str) -> None:
        self._node = node
        self._redis = redis
        self._prefixes = (f"{prefix}-{n:05}" for n in itertools.count())

    def play(self, sequence: Sequence, *versions: Version) -> Played:
        prefix = next(self._prefixes)
        actors: list[Actor] = [NodeActor(self._node, version, prefix) for version in versions]
        try:
            return play(as_case(sequence), self._redis, by_turns(*actors))
        finally:
            self._node.call("forget", prefix=prefix)
            clear(self._redis, prefix)

    def compare(self, left: Played, right: Played, *exempt: Exempt) -> None:
        found = compare(left, right, exempt=exempt)
        for difference in found[:20]:
            note(str(difference))
        assert not found

    def differ(self, sequence: Sequence) -> bool:
        five, six = self.play(sequence, 5), self.play(sequence, 6)
        return bool(compare(five, six, exempt=ANY_VERSION))


@pytest.fixture
def player(node: Node, redis: Redis, prefix: str) -> Iterator[SequencePlayer]:
    yield SequencePlayer(node, redis, prefix)
    node.call("realClock")


@pytest.mark.full
@RANDOM
@given(sequence=sequences())
def test_the_same_version_does_the_same_twice(player: SequencePlayer, sequence: Sequence) -> None:
    player.compare(player.play(sequence, 5), player.play(sequence, 5))


@pytest.mark.full
@RANDOM
@given(sequence=sequences(without=VERSIONS_DIFFER))
def test_both_versions_do_the_same(player: SequencePlayer, sequence: Sequence) -> None:
    five, six = player.play(sequence, 5), player.play(sequence, 6)
    player.compare(five, six, *ANY_VERSION)


@pytest.mark.full
@RANDOM
@given(sequence=sequences(without=VERSIONS_DIFFER))
def test_both_versions_by_turns_do_the_same(player: SequencePlayer, sequence: Sequence) -> None:
    five, both = player.play(sequence, 5), player.play(sequence, 5, 6)
    player.compare(five, both, *ANY_VERSION)


def test_a_known_difference_between_versions_is_found(player: SequencePlayer) -> None:
    search = settings(RANDOM, max_examples=200, phases=[Phase.generate], database=None)
    found = find(sequences(), player.differ, settings=search)
    assert {operation.kind for operation in found} & VERSIONS_DIFFER

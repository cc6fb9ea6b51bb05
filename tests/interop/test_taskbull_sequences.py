"""Random sequences of operations by taskbull and BullMQ in turns leave the same state."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, find, given, note, settings
from redis import Redis

from tests.interop.actor import Actor
from tests.interop.compare import ANY_VERSION, OUR_MEMORY, OUR_WAKE_UP, Difference
from tests.interop.node import Node, Version
from tests.interop.node_actor import NodeActor
from tests.interop.runner import Runner, running
from tests.interop.sequences import (
    BESIDE_FLOWS,
    BESIDE_SCHEDULES,
    VERSIONS_DIFFER,
    WITH_FLOWS,
    WITH_LASTING_SCHEDULES,
    WITH_SCHEDULES,
    Sequence,
    as_case,
    sequences,
)
from tests.interop.stage import Played, clear, compare, play
from tests.interop.taskbull_actor import TaskbullActor
from tests.interop.test_sequences import RANDOM
from tests.interop.turns import by_turns

LONG = 300
SEED = int(os.environ.get("TASKBULL_SEQUENCE_SEED", "20261116"))


class SequencePlayer:
    """Runs sequences, each on its own prefix."""

    def __init__(self, node: Node, redis: Redis, runner: Runner, prefix: str) -> None:
        self._node = node
        self._redis = redis
        self._runner = runner
        self._prefixes = (f"{prefix}-{n:05}" for n in itertools.count())

    def play(self, sequence: Sequence, company: Version, *, ours: bool, theirs: bool) -> Played:
        prefix = next(self._prefixes)
        actors: list[Actor] = []
        if ours:
            actors.append(TaskbullActor(self._node, company, prefix, self._runner))
        if theirs:
            actors.append(NodeActor(self._node, company, prefix))
        # BullMQ notes its version in a queue at its first operation, we do not: it comes first.
        NodeActor(self._node, company, prefix).is_paused()
        try:
            return play(as_case(sequence), self._redis, by_turns(*actors))
        finally:
            self._node.call("forget", prefix=prefix)
            clear(self._redis, prefix)

    def differences(
        self, sequence: Sequence, company: Version, *, theirs: bool
    ) -> list[Difference]:
        """Compare a sequence by taskbull, alone or by turns, with the same by BullMQ alone."""
        alone = self.play(sequence, company, ours=False, theirs=True)
        with_ours = self.play(sequence, company, ours=True, theirs=theirs)
        worked = any(operation.kind == "work" for operation in sequence)
        exempt = (*ANY_VERSION, OUR_MEMORY, *((OUR_WAKE_UP,) if worked else ()))
        found = compare(alone, with_ours, exempt=exempt)
        for difference in found[:20]:
            note(str(difference))
        return found


@pytest.fixture
def player(node: Node, redis: Redis, interop_url: str, prefix: str) -> Iterator[SequencePlayer]:
    with running("sync", interop_url) as runner:
        yield SequencePlayer(node, redis, runner, prefix)
    node.call("realClock")


@RANDOM
@given(sequence=sequences())
def test_taskbull_does_what_bullmq_6_does(player: SequencePlayer, sequence: Sequence) -> None:
    assert not player.differences(sequence, 6, theirs=False)


@RANDOM
@given(sequence=sequences())
def test_taskbull_and_bullmq_6_by_turns(player: SequencePlayer, sequence: Sequence) -> None:
    assert not player.differences(sequence, 6, theirs=True)


@RANDOM
@given(sequence=sequences(without=VERSIONS_DIFFER))
def test_taskbull_and_bullmq_5_by_turns(player: SequencePlayer, sequence: Sequence) -> None:
    assert not player.differences(sequence, 5, theirs=True)


@RANDOM
@given(sequence=sequences(only=BESIDE_FLOWS | WITH_FLOWS))
def test_flows_of_taskbull_and_bullmq_6_by_turns(
    player: SequencePlayer, sequence: Sequence
) -> None:
    assert not player.differences(sequence, 6, theirs=True)


@RANDOM
@given(sequence=sequences(only=BESIDE_FLOWS | WITH_FLOWS))
@pytest.mark.full
def test_taskbull_does_with_flows_what_bullmq_6_does(
    player: SequencePlayer, sequence: Sequence
) -> None:
    assert not player.differences(sequence, 6, theirs=False)


@RANDOM
@given(sequence=sequences(only=BESIDE_FLOWS | WITH_FLOWS, without=VERSIONS_DIFFER))
@pytest.mark.full
def test_flows_of_taskbull_and_bullmq_5_by_turns(
    player: SequencePlayer, sequence: Sequence
) -> None:
    assert not player.differences(sequence, 5, theirs=True)


@RANDOM
@given(sequence=sequences(only=BESIDE_SCHEDULES | WITH_SCHEDULES))
def test_schedules_of_taskbull_and_bullmq_6_by_turns(
    player: SequencePlayer, sequence: Sequence
) -> None:
    assert not player.differences(sequence, 6, theirs=True)


@RANDOM
@given(
    sequence=sequences(only=BESIDE_SCHEDULES | WITH_LASTING_SCHEDULES, without=frozenset({"tick"}))
)
@pytest.mark.full
def test_schedules_of_taskbull_and_bullmq_5_by_turns(
    player: SequencePlayer, sequence: Sequence
) -> None:
    assert not player.differences(sequence, 5, theirs=True)


@pytest.mark.parametrize("company", [5, 6])
@pytest.mark.full
def test_a_long_sequence_by_turns(player: SequencePlayer, company: Version) -> None:
    print(f"seed {SEED}: TASKBULL_SEQUENCE_SEED={SEED} plays it again")
    without = VERSIONS_DIFFER if company == 5 else frozenset[str]()
    one = settings(
        max_examples=50,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    strategy = sequences(without=without, least=LONG, length=LONG + 50)
    sequence: Sequence = find(strategy, lambda _: True, settings=one, random=Random(SEED))
    found = player.differences(sequence, company, theirs=True)
    assert not found, "\n".join(map(str, found[:10]))

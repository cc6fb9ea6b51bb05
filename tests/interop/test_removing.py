"""taskbull removes parts of flows as BullMQ does, and a pause by it loses no job of a fleet."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.interop.actor import Actor
from tests.interop.cases.removing import CASES
from tests.interop.compare import ANY_VERSION, OUR_MEMORY
from tests.interop.conftest import MakeActor, Solo
from tests.interop.node import Node, Version
from tests.interop.pausing import SEQUENCES, PauseSequence, Role, perform
from tests.interop.runner import Runner, running
from tests.interop.stage import Case, clear, compare, play
from tests.interop.taskbull_actor import TaskbullActor
from tests.interop.test_cases import report


@pytest.fixture(scope="module")
def runner(interop_url: str) -> Iterator[Runner]:
    with running("sync", interop_url) as made:
        yield made


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_flow_is_taken_apart_as_by_bullmq_alone(
    case: Case, version: Version, redis: Redis, node: Node, runner: Runner, solo: Solo
) -> None:
    actor = TaskbullActor(node, version, f"flow-{uuid.uuid4().hex[:12]}", runner)
    try:
        ours = play(case, redis, actor)
    finally:
        node.call("forget", prefix=actor.prefix)
        clear(redis, actor.prefix)
        node.call("realClock")
    theirs = solo(case, 6 if case.versions_differ else version)  # the newer is right
    found = compare(theirs, ours, exempt=(*ANY_VERSION, OUR_MEMORY))
    assert not found, report(found)


@pytest.mark.parametrize("ours", ["5", "6"])
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence.name)
def test_a_pause_in_a_mixed_fleet_is_not_made_worse(
    sequence: PauseSequence,
    ours: Role,
    redis: Redis,
    node: Node,
    runner: Runner,
    new_actor: MakeActor,
) -> None:
    five = new_actor(5)
    fleet: dict[Role, Actor] = {"5": five, "6": new_actor(6, five.prefix)}
    fleet[ours] = TaskbullActor(node, 5 if ours == "5" else 6, five.prefix, runner)
    assert len(perform(sequence, redis, fleet)) <= sequence.loses

"""A flow looks the same from both sides: `queue.flow` beside Node's `getFlow`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from taskbull.core.keys import QueueKeys
from taskbull.queue.job_tree import JobTree, get_tree
from tests.interop.actor import Actor
from tests.interop.cases.flows import node as job
from tests.interop.node import Node, Version
from tests.interop.node_actor import NodeActor
from tests.interop.runner import WAYS, Runner, running
from tests.interop.stage import clear
from tests.interop.taskbull_actor import TaskbullActor

FAILING = {"fatal", "ignored", "dropped", "awaited", "top"}


@pytest.fixture(scope="module", params=WAYS)
def runner(request: pytest.FixtureRequest, interop_url: str) -> Iterator[Runner]:
    with running(request.param, interop_url) as made:
        yield made


@pytest.fixture(params=[5, 6])
def theirs(request: pytest.FixtureRequest, node: Node, redis: Redis) -> Iterator[NodeActor]:
    actor = NodeActor(node, request.param, f"tree-{uuid.uuid4().hex[:12]}")
    yield actor
    for prefix in (actor.prefix, f"{actor.prefix}-else"):
        node.call("forget", prefix=prefix)
        clear(redis, prefix)
    node.call("realClock")


def flow(prefix: str) -> dict[str, Any]:
    """Describe three levels over two queues and another prefix; children of every policy."""
    elsewhere = job("far", queue="other") | {"prefix": f"{prefix}-else"}
    return job(
        "top",
        job("left", job("low", job("lowest")), job("beside", queue="other"), elsewhere),
        job("brief", removeOnComplete=True),
        job("fatal", failParentOnFailure=True),
        job("ignored", ignoreDependencyOnFailure=True),
        job("dropped", removeDependencyOnFailure=True),
        job("awaited"),
        job("first", continueParentOnFailure=True, priority=3),
        job("late", delay=60_000),
    )


def ids(tree: JobTree | None) -> Any:
    """Return a tree in the form of the driver for Node, where a removed job is None."""
    if tree is None or tree.removed:
        return None
    return {"id": tree.job.id, "children": [ids(child) for child in tree.children]}


def in_order(tree: Any) -> Any:
    """Sort children: Node's are in that of Redis."""
    if tree is None:
        return None
    below = map(in_order, tree["children"])
    return {**tree, "children": sorted(below, key=lambda child: child["id"] if child else "")}


@pytest.mark.parametrize("made_by", ["them", "us"])
def test_both_see_the_same_tree(
    theirs: NodeActor, node: Node, runner: Runner, made_by: str
) -> None:
    version: Version = 6 if theirs.label.endswith("6") else 5
    ours = TaskbullActor(node, version, theirs.prefix, runner)
    ours.follow_clock()
    producer: Actor = theirs if made_by == "them" else ours
    producer.add_flow(flow(theirs.prefix))
    queue = QueueKeys("q", theirs.prefix)
    wanted = {"queueName": "q", "id": "top", "prefix": theirs.prefix}

    def compare(depth: int = 10) -> Any:
        there = theirs.call("getFlow", {**wanted, "depth": depth, "maxChildren": 100})
        here = runner.perform(get_tree(queue, "top", depth, 1000))
        assert in_order(ids(here)) == in_order(there)
        return here

    compare()
    for depth in (1, 2, 3):
        compare(depth)
    worker = theirs.worker()
    while (taken := worker.take()) is not None:
        if taken in FAILING:
            worker.fail(taken, message="broke")
        else:
            worker.complete(taken, 1)
        compare()
    last = {child.job.id: child for child in compare().children}
    assert last["brief"].removed
    assert last["brief"].state == "completed"
    assert {name: str(last[name].state) for name in ("fatal", "awaited", "late")} == {
        "fatal": "failed",
        "awaited": "failed",
        "late": "delayed",
    }
    far = next(c for c in last["left"].children if c.job.id == "far")
    assert far.key == f"{theirs.prefix}-else:other:far"


def test_neither_sees_a_flow_that_is_not_there(theirs: NodeActor, runner: Runner) -> None:
    wanted = {"queueName": "q", "id": "nobody", "prefix": theirs.prefix}
    assert theirs.call("getFlow", wanted) is None
    assert runner.perform(get_tree(QueueKeys("q", theirs.prefix), "nobody", 9, 9)) is None

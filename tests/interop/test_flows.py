"""Flows of tasks match BullMQ's in Redis, and each side runs the other's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
import pytest
from anyio import fail_after
from msgspec.structs import replace
from redis import Redis

from taskbull import App, JobState, current_job, from_children
from taskbull.app.producer import JobSpec
from tests.interop.compare import ANY_VERSION, OUR_MEMORY, Exempt, assert_same
from tests.interop.conftest import MakeActor
from tests.interop.node import Version
from tests.interop.snapshot import Snapshot, take

LIMIT: Final = 60.0
PLAIN: Final[dict[str, Any]] = {
    "attempts": 1,
    "backoff": None,
    "keep_completed": None,
    "keep_failed": None,
}
FLAGS: Final = {
    "fail": "failParentOnFailure",
    "ignore": "ignoreDependencyOnFailure",
    "continue": "continueParentOnFailure",
    "drop": "removeDependencyOnFailure",
}
OUR_ORDER: Final = Exempt(reason="BullMQ keeps no order of children", key=r":.*", field="tbch")
EXEMPT: Final = (*ANY_VERSION, OUR_MEMORY, OUR_ORDER)

Tree = tuple[str, dict[str, Any], tuple[Any, ...]]
"""A job's id, its options in our words, and its children."""


def tree(job_id: str, *children: Tree, **options: Any) -> Tree:
    return job_id, options, children


TREES: Final[dict[str, Tree]] = {
    "two levels": tree("top", tree("left", tree("ll"), tree("lr")), tree("right")),
    "policies": tree("top", *(tree(f"on-{name}", on_failure=name) for name in [*FLAGS, "wait"])),
    "two queues": tree("top", tree("a", queue="other"), tree("b", tree("c"), queue="other")),
    "delays and priorities": tree(
        "top", tree("a", delay=60, priority=2), tree("b", priority=1), delay=5, priority=3
    ),
    "wide": tree("top", *(tree(f"c{n}") for n in range(40))),
}


def our_job(app: App, spec: Tree) -> JobSpec[Any]:
    job_id, options, children = spec
    task = app.tasks["n"].options(job_id=job_id, **options)
    if children:
        return task.after(our_job(app, child) for child in children).job(of=job_id)
    return task.job(of=job_id)


def their_job(spec: Tree, *, is_root: bool = True) -> dict[str, Any]:
    job_id, given, children = spec
    policy = given.get("on_failure", "fail")
    opts: dict[str, Any] = {"jobId": job_id, "attempts": 1, "keepLogs": 1000}
    if not is_root and policy in FLAGS:
        opts[FLAGS[policy]] = True
    if "delay" in given:
        opts["delay"] = given["delay"] * 1000
    if "priority" in given:
        opts["priority"] = given["priority"]
    return {
        "name": "n",
        "queueName": given.get("queue", "q"),
        "data": {"of": job_id},
        "opts": opts,
        "children": [their_job(child, is_root=False) for child in children],
    }


def declare(interop_url: str, prefix: str) -> App:
    app = App("flows", redis=interop_url, prefix=prefix, queue="q", **PLAIN)

    @app.task(name="n")
    async def n(of: str, below: list[str] = from_children("n")) -> str:
        failed = await current_job().afailed_children()
        return "".join([of, *sorted(below), *(f"!{job_id}" for _, job_id in sorted(failed))])

    return app


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("way", ["asyncio", "trio", "sync"])
@pytest.mark.parametrize("case", TREES)
def test_a_flow_is_what_bullmq_writes(
    case: str,
    way: str,
    version: Version,
    redis: Redis,
    interop_url: str,
    new_actor: MakeActor,
) -> None:
    theirs, ours = new_actor(version), new_actor(version)
    app = declare(interop_url, ours.prefix)
    ours.counts()  # opens the queue, as adding does on the other side
    spec = our_job(app, TREES[case])
    if way == "sync":
        [job] = app.enqueue([spec])
    else:
        [job] = anyio.run(app.aenqueue, [spec], backend=way)
    theirs.add_flow(their_job(TREES[case]))
    app.close()
    assert job.id == "top"
    assert_same(
        take(redis, theirs.prefix, times="ignored"),
        take(redis, ours.prefix, times="ignored"),
        exempt=EXEMPT,
        names=(theirs.label, "taskbull"),
    )
    assert theirs.call("getFlow", {"id": "top", "queueName": "q"}) == ours.call(
        "getFlow", {"id": "top", "queueName": "q"}
    )


def by_job(snapshot: Snapshot) -> Snapshot:
    """Sort lists and events by job: of several flows, BullMQ adds all roots first, and we one flow
    after the other.
    """
    orders: dict[str, Callable[[Any], Any]] = {"list": str, "stream": lambda event: event[1]}
    return {
        key: replace(entry, content=sorted(entry.content, key=orders[entry.kind]))
        if entry.kind in orders
        else entry
        for key, entry in snapshot.items()
    }


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("way", ["asyncio", "trio", "sync"])
def test_several_flows_and_jobs_in_one_go_are_what_bullmq_writes(
    way: str, version: Version, redis: Redis, interop_url: str, new_actor: MakeActor
) -> None:
    theirs, ours = new_actor(version), new_actor(version)
    app = declare(interop_url, ours.prefix)
    ours.counts()
    specs = [
        tree("one", tree("a", tree("b")), tree("c", priority=2)),
        tree("two", tree("d", queue="other"), delay=5),
        tree("single"),
    ]
    jobs = [our_job(app, spec) for spec in specs]
    added = app.enqueue(jobs) if way == "sync" else anyio.run(app.aenqueue, jobs, backend=way)
    assert [job.id for job in added] == ["one", "two", "single"]
    theirs.call("addFlows", [their_job(spec) for spec in specs])
    app.close()
    assert_same(
        by_job(take(redis, theirs.prefix, times="ignored")),
        by_job(take(redis, ours.prefix, times="ignored")),
        exempt=EXEMPT,
        names=(theirs.label, "taskbull"),
    )


WORK: Final[dict[str, Any]] = {"*": [[["return", "node"]]]}


@pytest.mark.parametrize("version", [5, 6])
async def test_a_flow_made_by_bullmq_is_run_here(
    version: Version, redis: Redis, interop_url: str, new_actor: MakeActor
) -> None:
    theirs = new_actor(version)
    theirs.add_flow(their_job(TREES["two levels"]))
    app = declare(interop_url, theirs.prefix)
    with fail_after(LIMIT):
        await app.run_worker(["q"], burst=True)
        assert await app.job("q", "top").aresult() == "topleftlllrright"


@pytest.mark.parametrize("version", [5, 6])
async def test_a_flow_made_here_is_run_by_bullmq_and_by_turns(
    version: Version, redis: Redis, interop_url: str, new_actor: MakeActor
) -> None:
    theirs = new_actor(version)
    app = declare(interop_url, theirs.prefix)
    spec = tree("top", *(tree(f"c{n}", queue="node") for n in range(3)))
    with fail_after(LIMIT):
        [job] = await app.aenqueue([our_job(app, spec)])
        assert await job.astate() is JobState.WAITING_CHILDREN
        node = theirs.beside("node").worker()
        for _ in range(3):
            taken = node.take()
            assert taken is not None
            node.complete(taken, f"by node {taken}")
        await app.run_worker(["q"], burst=True)
        assert await job.aresult() == "topby node c0by node c1by node c2"
        [other] = await app.aenqueue([our_job(app, tree("whole", tree("part")))])
        for _ in range(2):
            taken = theirs.worker().take()
            assert taken is not None
            theirs.worker().complete(taken, taken)
        assert await other.aresult() == "whole"

"""Groups with Node: as a producer, as a worker beside ours, and as the only worker."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
from anyio import fail_after, sleep
from redis import Redis

from taskbull import App, Groups, current_job
from tests.interop.conftest import MakeActor
from tests.interop.live import WORK
from tests.interop.node import Version
from tests.interop.waiting import wait_until

pytestmark = [
    pytest.mark.parametrize("version", [5, 6]),
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


async def finish(app: App, count: int) -> None:
    """Wait until `count` jobs have completed."""
    with fail_after(60):
        while (await app.queue("q").counts())["completed"] < count:  # noqa: ASYNC110
            await sleep(0.02)


async def test_jobs_of_node_take_turns_and_keep_limits(
    new_actor: MakeActor, interop_url: str, version: int
) -> None:
    node = new_actor(cast("Version", version))
    app = App("shop", redis=interop_url, prefix=node.prefix, queue="q")
    app.queue_options("q", groups=Groups(concurrency=2))
    running, order = Counter[str](), list[str]()

    @app.task
    async def n(group: str) -> int:
        order.append(group)
        running[group] += 1
        most = running[group]
        await sleep(0.005)
        running[group] -= 1
        return most

    jobs = [node.add("n", {"group": "a"}, {"group": {"id": "a"}}) for _ in range(30)]
    jobs += [node.add("n", {"group": "b"}, {"group": {"id": "b"}}) for _ in range(5)]
    async with app.worker(concurrency=6).running():
        await finish(app, 35)
        assert {await app.job("q", job).aresult() for job in jobs} <= {1, 2}
    assert order.index("b") < 6
    app.close()


async def test_node_sees_and_removes_held_jobs(
    new_actor: MakeActor, interop_url: str, version: int
) -> None:
    node = new_actor(cast("Version", version))
    app = App("shop", redis=interop_url, prefix=node.prefix, queue="q")

    @app.task(group_by="tenant")
    async def hold(tenant: str) -> str | None:
        return current_job().job.options.group_id

    queue = app.queue("q")
    await queue.set_group("a", paused=True)
    first = await hold.adelay("a")
    second = await hold.adelay("a")
    async with app.worker().running():
        assert await (await hold.adelay("b")).aresult(60) == "b"
        assert (node.job(first.id) or {})["opts"]["group"] == {"id": "a"}
        assert node.state(first.id) == "prioritized"
        assert node.counts()["prioritized"] == 2
        node.remove(first.id)
        [info] = [info for info in await queue.groups() if info.id == "a"]
        assert (info.held, info.paused) == (1, True)
        await queue.set_group("a", paused=False)
        assert await second.aresult(60) == "a"
    app.close()


async def test_a_worker_of_node_runs_every_job_in_fair_order(
    new_actor: MakeActor, interop_url: str, version: int, redis: Redis
) -> None:
    node = new_actor(cast("Version", version))
    app = App("shop", redis=interop_url, prefix=node.prefix, queue="q")

    @app.task(group_by="tenant")
    async def n(tenant: str) -> None: ...

    queue = app.queue("q")
    await queue.set_group("a", concurrency=1)
    jobs = [await n.adelay("a") for _ in range(20)] + [await n.adelay("b") for _ in range(3)]
    held = await queue.groups()
    assert sum(info.waiting for info in held) == 23
    with node.running(WORK, name="w", concurrency=1):
        await finish(app, 23)
    key = f"{node.prefix}:q:"
    started = {job.id: int(redis.hget(f"{key}{job.id}", "processedOn") or 0) for job in jobs}
    finished = {job.id: redis.zrank(f"{key}completed", job.id) for job in jobs}
    assert all(started.values())
    assert max(cast("int", finished[job.id]) for job in jobs[20:]) < 12
    app.close()


async def test_workers_of_both_share_a_queue_with_groups(
    new_actor: MakeActor, interop_url: str, version: int, redis: Redis
) -> None:
    node = new_actor(cast("Version", version))
    app = App("shop", redis=interop_url, prefix=node.prefix, queue="q")
    app.queue_options("q", groups=Groups(concurrency=1))

    @app.task(group_by="tenant")
    async def n(tenant: str = "") -> None:
        await sleep(0.002)

    jobs = [node.add("n", {"tenant": "a"}, {"group": {"id": f"g{k % 4}"}}) for k in range(60)]
    jobs += [(await n.adelay(f"g{k % 4}")).id for k in range(60)]
    with node.running(WORK, name="theirs", concurrency=2):
        async with app.worker(concurrency=4, worker_id="ours").running():
            await finish(app, 120)
            wait_until("no group is left", lambda: not redis.exists(f"{node.prefix}:q:tb:turns"))
    pipe = redis.pipeline()
    for job in jobs:
        pipe.hget(f"{node.prefix}:q:{job}", "ats")
    assert set(pipe.execute()) == {b"1"}
    app.close()

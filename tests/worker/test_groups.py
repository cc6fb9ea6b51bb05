"""Limits of groups while workers are killed, groups are paused and jobs are removed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from anyio import create_task_group, fail_after, sleep, to_thread

from taskbull.core.wire.options import decode_options
from taskbull.queue.queue import Queue
from taskbull.worker.worker import Worker
from tests.servers.cluster import Cluster
from tests.worker.bed import WorkerBed, echo, until
from tests.worker.looking import listed
from tests.worker.scale import ROUGH_KINDS, SEED, scaled

GROUPS = [f"g{number}" for number in range(5)]
PLACES = 2
KILLS = scaled(2, 20)

RUNNING = """
local running = {}
for _, id in ipairs(redis.call("LRANGE", KEYS[1], 0, -1)) do
  if redis.call("EXISTS", ARGV[1] .. id .. ":lock") == 1 then
    running[#running + 1] = redis.call("HGET", ARGV[1] .. id, "opts")
  end
end
return running
"""


def count_running(bed: WorkerBed) -> Counter[str]:
    """Count the living locks of running jobs by group, at one moment."""
    found: Any = bed.admin.eval(RUNNING, 1, bed.keys.active, bed.keys.base)
    return Counter(decode_options(opts).group_id or "" for opts in found)


@pytest.fixture
def spawn(bed: WorkerBed, anyio_backend_name: str) -> Iterator[Callable[[str], Any]]:
    """Start worker processes that a test may kill."""
    with ExitStack() as stack:

        def start(worker_id: str) -> subprocess.Popen[bytes]:
            words = (bed.url, bed.prefix, f"{bed.prefix}-ledger", anyio_backend_name, worker_id)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.killed_worker", *words],
                cwd=Path(__file__).parents[2],
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


async def add_jobs(bed: WorkerBed, count: int) -> list[str]:
    jobs = [
        bed.queue.job("work", group=GROUPS[number % len(GROUPS)], keep_completed=None)
        for number in range(count)
    ]
    return [handle.id for handle in await bed.queue.add_bulk(jobs)]


def active(bed: WorkerBed, worker_id: str) -> list[str]:
    """Give the jobs that a worker runs, as Redis has it."""
    name, running = worker_id.encode(), listed(bed, bed.keys.active)
    return [one for one in running if bed.admin.hget(bed.keys.job(one), "pb") == name]


async def expire_locks(bed: WorkerBed, worker_id: str) -> None:
    """Let the locks of a dead worker expire, and wait until its jobs wait again."""
    expired = set[str]()
    while left := active(bed, worker_id):
        for job_id in set(left) - expired:  # only once: the next lock is another worker's
            bed.admin.delete(bed.keys.lock(job_id))
        expired.update(left)
        await sleep(0.01)


@pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)
async def test_a_limit_holds_while_workers_are_killed(
    bed: WorkerBed, spawn: Callable[[str], Any]
) -> None:
    random, over, removed = Random(SEED), list[Counter[str]](), set[str]()
    for group in GROUPS:
        await bed.queue.set_group(group, concurrency=PLACES)
    ids = await add_jobs(bed, 200)
    worker = 0
    victim = await to_thread.run_sync(spawn, f"worker-{worker}")

    async def watch() -> None:
        while True:
            found = count_running(bed)
            if max(found.values(), default=0) > PLACES:
                over.append(found)
            await sleep(0.001)

    with fail_after(120 + 20 * KILLS):
        async with create_task_group() as tasks:
            tasks.start_soon(watch)
            for _ in range(KILLS):
                await until(lambda: bool(active(bed, f"worker-{worker}")))  # noqa: B023
                ids += await add_jobs(bed, 50)
                group = random.choice(GROUPS)
                await bed.queue.set_group(group, paused=True)
                gone = random.choice(ids)
                if bed.admin.zrem(bed.keys.prioritized, gone):
                    bed.admin.delete(bed.keys.job(gone))
                    removed.add(gone)
                successor = await to_thread.run_sync(spawn, f"worker-{worker + 1}")
                victim.kill()
                victim.wait()
                await expire_locks(bed, f"worker-{worker}")
                await bed.queue.set_group(group, paused=False)
                worker, victim = worker + 1, successor
            await until(lambda: bed.admin.zcard(bed.keys.completed) == len(set(ids) - removed), 60)
            tasks.cancel_scope.cancel()
    assert over == []
    for group in GROUPS:
        await bed.queue.set_group(group, concurrency=None)
    names = [bed.keys.private(name) for name in ("turns", "held", "running", "groups")]
    await until(lambda: bed.admin.exists(*names) == 0)
    assert list(bed.admin.scan_iter(f"{bed.keys.base}tb:group:*")) == []


async def test_held_jobs_start_when_a_dead_workers_slots_are_released(bed: WorkerBed) -> None:
    await bed.queue.set_group("a", concurrency=1)
    first, second = [await bed.queue.add("n", {}, group="a") for _ in range(2)]
    # The interval of one worker keeps the others from looking for stalled jobs.
    async with bed.worker(echo, concurrency=1, stalled_interval=0.2).running():
        await second.aresult(60)
    await first.aresult(60)
    third, fourth = [await bed.queue.add("n", {}, group="a") for _ in range(2)]
    # A dead worker's job: active, and its lock is gone.
    bed.admin.zrem(bed.keys.prioritized, third.id)
    bed.admin.lpush(bed.keys.active, third.id)
    bed.admin.sadd(bed.keys.private("group", "a", "running"), third.id)
    bed.admin.hset(bed.keys.private("running"), third.id, "a")
    async with bed.worker(echo, stalled_interval=0.2).running():
        await fourth.aresult(60)
        await third.aresult(60)


async def test_groups_work_in_a_cluster(cluster: Cluster, anyio_backend_name: str) -> None:
    queue = Queue("q", redis=cluster.url)
    await queue.set_group("a", concurrency=1)
    running, most = 0, 0

    async def handler(job: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await sleep(0.002)
        running -= 1

    jobs = [await queue.add("n", {}, group="a") for _ in range(20)]
    worker = Worker("q", handler, redis=cluster.url)
    async with worker.running():
        for job in jobs:
            await job.aresult(60)
    assert most == 1
    assert [(info.id, info.concurrency) for info in await queue.groups()] == [("a", 1)]
    await queue.obliterate(force=True)
    assert await queue.groups() == []

"""Cancelling while something is wrong with the network or the server: the promise is kept."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis
from anyio import Event, create_task_group, fail_after, sleep_forever, to_thread

from taskbull.core import events
from taskbull.core.outcome import Cancelled
from taskbull.queue.queue import Queue
from taskbull.scripts.change import requests_key
from taskbull.worker.running_job import RunningJob
from tests.servers.cluster import Cluster
from tests.servers.kinds import KINDS, Reachable
from tests.servers.proxy import Proxy
from tests.servers.sentinel import SentinelSet, primary_client
from tests.worker.bed import WorkerBed
from tests.worker.looking import ends

WHY = "cancelled: enough"
QUICK: dict[str, Any] = {
    "lock_duration": 10,
    "heartbeat_interval": 0.3,
    "stalled_interval": 0.4,
    "drain_delay": 0.5,
}


async def sleeper(_: RunningJob) -> None:
    await sleep_forever()


def _target(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("redis://").partition("/")[0].rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
async def test_a_worker_that_was_cut_off_learns_of_it_when_it_is_back(bed: WorkerBed) -> None:
    with Proxy(_target(bed.url)) as proxy:
        handle = await bed.queue.add("work")
        async with bed.worker(sleeper, redis=proxy.url, **QUICK).running():
            await bed.record.wait_for(events.Started)
            proxy.refuse()
            proxy.cut()
            assert await bed.queue.cancel(handle.id, "enough") is Cancelled.REQUESTED
            await bed.record.wait_for(events.RedisLost)
            proxy.accept()
            [failed] = await bed.record.wait_for(events.Failed)
    assert failed.failure.reason == WHY
    assert ends(bed)[handle.id] == 1


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
@pytest.mark.parametrize("state", ["waiting", "removed", "active", "with children"])
async def test_a_caller_whose_reply_is_lost_gets_the_true_outcome(
    bed: WorkerBed, state: str
) -> None:
    plain = await bed.queue.add("work")
    if state == "removed":
        bed.admin.hset(bed.keys.job(plain.id), "opts", '{"removeOnFail":true}')
    if state == "active":
        bed.admin.lmove(bed.keys.wait, bed.keys.active, "RIGHT", "LEFT")
        bed.admin.set(bed.keys.lock(plain.id), "tb:x:1")
    if state == "with children":
        child = await bed.queue.add("child", delay=60)
        bed.admin.sadd(bed.keys.dependencies(plain.id), bed.keys.job(child.id))
        bed.admin.hset(bed.keys.job(child.id), "parentKey", bed.keys.job(plain.id))
    with Proxy(_target(bed.url)) as proxy:
        queue = Queue("q", redis=proxy.url, prefix=bed.prefix)
        await queue.counts()
        proxy.cut_before_reply()
        answer = await queue.cancel(plain.id, "enough")
        assert proxy.cuts == 1
    wanted = Cancelled.REQUESTED if state == "active" else Cancelled.BEFORE_START
    assert answer is wanted
    assert ends(bed)[plain.id] == (state != "active")
    if state == "with children":
        assert await bed.count("failed") == 2


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
async def test_a_worker_whose_end_gets_lost_ends_a_cancelled_job_once(bed: WorkerBed) -> None:
    go = Event()

    async def handler(_: RunningJob) -> None:
        await go.wait()
        raise ValueError("broke")

    with Proxy(_target(bed.url)) as proxy:
        handle = await bed.queue.add("work", attempts=5)
        options: Any = {**QUICK, "heartbeat_interval": 9, "drain_delay": 60}
        async with bed.worker(handler, redis=proxy.url, **options).running():
            await bed.record.wait_for(events.Started)
            # Without a message: only the end of the job, whose reply is lost, shows it.
            bed.admin.hset(bed.keys.job(handle.id), "defa", WHY)
            proxy.cut_before_reply(b"broke")  # not that of another connection
            go.set()
            [failed] = await bed.record.wait_for(events.Failed)
            await bed.record.wait_for(events.Recovered)
    assert failed.failure.reason in {WHY, "cancelled: by request"}
    assert (await bed.job(handle.id)).failed_reason == WHY
    assert ends(bed)[handle.id] == 1


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
async def test_all_running_jobs_stop_though_the_requests_are_trimmed(bed: WorkerBed) -> None:
    for number in range(2_000):
        fields: Any = {"id": str(number), "token": "tb:old:1", "reason": WHY}
        bed.admin.xadd(requests_key(bed.keys), fields, maxlen=1_000)
    handles = await bed.queue.add_bulk([("work", {})] * 20)
    async with bed.worker(sleeper, concurrency=20, **QUICK).running():
        await bed.record.wait_for(events.Started, 20)
        async with create_task_group() as tasks:
            for handle in handles:
                tasks.start_soon(bed.queue.cancel, handle.id)
        bed.admin.xtrim(requests_key(bed.keys), maxlen=0)
        await bed.record.wait_for(events.Failed, 20)
    assert await bed.count("failed") == 20


@pytest.mark.parametrize("queues", [["q"], ["q", "other", "third"]])
async def test_in_a_cluster_jobs_of_all_queues_are_stopped(
    cluster: Cluster, prefix: str, queues: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    with redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port) as admin:
        bed = WorkerBed(Reachable("cluster", cluster.url), admin, prefix)
        async with bed.worker(sleeper, queues=queues, heartbeat_interval=10).running():
            for count, name in enumerate(queues, 1):
                queue = Queue(name, redis=cluster.url, prefix=prefix)
                handle = await queue.add("work")
                await bed.record.wait_for(events.Started, count)
                assert await queue.cancel(handle.id, "enough") is Cancelled.REQUESTED
                found = await bed.record.wait_for(events.Failed, count)
                assert found[-1].failure.reason == WHY


async def test_in_a_cluster_a_job_is_stopped_after_its_master_was_replaced(
    cluster: Cluster, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    with redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port) as admin:
        bed = WorkerBed(Reachable("cluster", cluster.url), admin, prefix)
        names = (f"q{number}" for number in range(1000))
        queues = (Queue(name, redis=cluster.url, prefix=prefix) for name in names)
        first = cluster.masters[0]  # the one that has a replica
        queue = next(one for one in queues if cluster.owner(one.keys.meta) is first)
        handle = await queue.add("work")
        with fail_after(90):
            async with bed.worker(sleeper, queues=queue.name, **QUICK).running():
                await bed.record.wait_for(events.Started)
                await to_thread.run_sync(cluster.fail_over)
                assert await queue.cancel(handle.id, "enough") is Cancelled.REQUESTED
                [failed] = await bed.record.wait_for(events.Failed, limit=60)
    assert failed.failure.reason == WHY


async def test_under_sentinel_a_job_is_stopped_after_a_failover(
    sentinels: SentinelSet, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    with primary_client(sentinels) as admin, fail_after(120):
        bed = WorkerBed(Reachable("sentinel", sentinels.url), admin, prefix)
        before, after = await bed.queue.add_bulk([("work", {})] * 2)
        await to_thread.run_sync(sentinels.await_replicated)
        async with bed.worker(sleeper, **QUICK, max_stalled_count=10).running():
            await bed.record.wait_for(events.Started, 2)
            await bed.queue.cancel(before.id, "enough")
            await bed.record.wait_for(events.Failed, limit=60)
            await to_thread.run_sync(sentinels.await_replicated)
            await to_thread.run_sync(sentinels.fail_over)
            await to_thread.run_sync(sentinels.await_ready)
            assert await bed.queue.cancel(after.id, "enough") is Cancelled.REQUESTED
            found = await bed.record.wait_for(events.Failed, 2, limit=60)
    assert {one.job.id for one in found} == {before.id, after.id}

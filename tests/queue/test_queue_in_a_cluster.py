"""Queues in a real cluster: all keys of one queue in one slot, every operation, any master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from anyio import fail_after

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import Complete, Release, Written
from taskbull.core.wire.job import encode_job
from taskbull.errors import ServerRefused
from taskbull.queue.queue import Queue, SyncQueue
from taskbull.scripts.add import CallSequence, add_jobs
from taskbull.scripts.cycle import FetchOptions, cycle, pack_outcome
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from tests.queue.conftest import Both
from tests.servers.cluster import Cluster

NOW = 1_800_000_000_000


@pytest.fixture(params=["async", "sync"])
def make(request: pytest.FixtureRequest, cluster: Cluster, prefix: str) -> Iterator[Any]:
    """Make queues of either kind; sync ones are closed in the end."""
    with ExitStack() as stack:

        def queue(name: str, **options: Any) -> Both:
            settings = {"redis": cluster.url, "prefix": prefix} | options
            if request.param == "async":
                return Both(Queue(name, **settings))
            return Both(stack.enter_context(closing(SyncQueue(name, **settings))))

        yield queue


async def test_every_operation_stays_in_one_slot(make: Any) -> None:  # FR-9
    with fail_after(60):
        for name in ("emails", "reports", "images", "a", "b"):  # on all masters, by their names
            queue = make(name)
            assert queue.keys.base.endswith(f"{{{name}}}:")
            await queue.add_bulk(
                [("now", {}), ("urgent", {}, {"priority": 1}), ("later", {}, {"delay": 60})]
            )
            await queue.add("once", dedup="key", job_id="mine")
            assert (await queue.counts())["waiting"] == 2
            assert len(await queue.get_jobs("waiting")) == 2
            assert await queue.get_state("mine") == "waiting"
            await queue.pause()
            await queue.resume()
            await queue.change_priority("1", 3)
            await queue.change_delay("3", 30)
            await queue.promote("3")
            await queue.set_global_concurrency(3)
            await queue.set_global_rate_limit(10, 1)
            await queue.rate_limit(1)
            await queue.logs("1")
            await queue.workers()
            await queue.metrics()
            assert await queue.remove("mine")
            await queue.promote_all()
            await queue.retry_all()
            await queue.clean(0, 0, "completed")
            await queue.trim_events(10)
            assert await queue.drain(delayed=True) == 3
            await queue.add("last")
            await queue.obliterate()
            assert sum((await queue.counts()).values()) == 0


async def test_jobs_are_taken_and_ended_in_a_cluster(cluster: Cluster, prefix: str) -> None:
    taking = FetchOptions(30_000)
    async with open_store(parse(cluster.url)) as store:
        for name in ("emails", "reports", "images"):
            keys = QueueKeys(name, prefix, cluster=True)
            jobs = [encode_job(NewJob("job", {"n": n}), NOW) for n in range(10)]
            await store.run(add_jobs(keys, jobs, NOW, CallSequence("p", 0, 1)))
            taken = await store.run(cycle(keys, NOW, [], 5, "t:0", taking))
            ends: list[Written] = [Complete(), Complete(), Release(), Complete()]
            outcomes = [
                pack_outcome(job, "t:0", end, 1, NOW)
                for job, end in zip(taken.jobs, ends, strict=False)
            ]
            ended = await store.run(cycle(keys, NOW, outcomes, 5, "t:1", taking))
            assert ended.codes == [0, 0, 0, 0]
            assert len(ended.jobs) == 5


async def test_untagged_keys_are_refused_by_a_cluster(make: Any) -> None:  # FR-9
    untagged = make("emails", hash_tag=False)
    with pytest.raises(Exception, match="slot") as refused:
        await untagged.add("job")
    cause = refused.value.__context__
    assert isinstance(cause, ServerRefused)
    assert cause.code == "CROSSSLOT"


async def test_a_prefix_with_a_tag_serves_as_well(cluster: Cluster, prefix: str) -> None:
    queue = Queue("emails", redis=cluster.url, prefix=f"{{{prefix}}}")
    assert queue.keys.base == f"{{{prefix}}}:emails:"
    await queue.add("job")
    assert (await queue.counts())["waiting"] == 1

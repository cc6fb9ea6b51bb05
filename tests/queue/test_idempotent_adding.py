"""A producer whose connection is cut between write and reply neither loses nor doubles a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import anyio
import pytest
from anyio import create_task_group, fail_after, to_thread
from msgspec.structs import replace

from taskbull.core.keys import QueueKeys
from taskbull.errors import EnqueueError
from taskbull.queue.queue import Queue, SyncQueue
from taskbull.store.address import parse
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy

ROUNDS = 150
LIMIT = 60.0


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running:
        yield running


def added(admin: Any, prefix: str) -> Counter[str]:
    """Count the jobs in the queue by name."""
    keys = QueueKeys("q", prefix)
    ids = [job_id.decode() for job_id in admin.lrange(keys.wait, 0, -1)]
    return Counter(admin.hget(keys.job(job_id), "name").decode() for job_id in ids)


def cut_at_random(proxy: Proxy, random: Random, prefix: str) -> None:
    if random.random() < 0.5:
        proxy.cut_before_reply(prefix.encode())
    else:
        proxy.cut_before_request(prefix.encode())


async def test_single_jobs_are_added_once_despite_repeated_disconnects(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    random = Random(1)
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=20)
    with fail_after(LIMIT):
        for number in range(ROUNDS):
            if number % 2:
                await to_thread.run_sync(cut_at_random, proxy, random, prefix)
            await queue.add(f"job-{number}")
    assert added(admin, prefix) == {f"job-{number}": 1 for number in range(ROUNDS)}
    assert proxy.cuts >= ROUNDS // 3


async def test_a_bulk_is_added_once_despite_repeated_disconnects(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    random = Random(2)
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=20)
    with fail_after(LIMIT):
        for number in range(ROUNDS // 5):
            await to_thread.run_sync(cut_at_random, proxy, random, prefix)
            handles = await queue.add_bulk([(f"job-{number}-{n}", {"n": n}) for n in range(20)])
            assert len({handle.id for handle in handles}) == 20
    names = {f"job-{number}-{n}" for number in range(ROUNDS // 5) for n in range(20)}
    assert added(admin, prefix) == dict.fromkeys(names, 1)


async def test_from_many_tasks_concurrently(proxy: Proxy, admin: Any, prefix: str) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=30)
    random = Random(3)
    done = 0

    async def produce(task: int) -> None:
        nonlocal done
        for number in range(20):
            await queue.add(f"job-{task}-{number}")
            done += 1

    async def cut() -> None:
        while done < 500:
            await to_thread.run_sync(cut_at_random, proxy, random, prefix)
            await anyio.sleep(0.005)

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(cut)
            for task in range(30):
                tasks.start_soon(produce, task)
    assert set(added(admin, prefix).values()) == {1}
    assert sum(added(admin, prefix).values()) == 600


def test_from_sync_code(proxy: Proxy, admin: Any, prefix: str) -> None:
    random = Random(4)
    queue = SyncQueue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=20)
    for number in range(ROUNDS):
        if number % 2:
            cut_at_random(proxy, random, prefix)
        queue.add(f"job-{number}")
    queue.close()
    assert added(admin, prefix) == {f"job-{number}": 1 for number in range(ROUNDS)}


async def test_a_queue_that_cannot_be_reached_is_reported_in_time_with_the_job(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    proxy.refuse()
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=0.3)
    with fail_after(LIMIT), pytest.raises(EnqueueError, match="Connection refused") as failed:
        await queue.add("kept", {"to": "ann"})
    [job] = failed.value.spec
    assert (job.name, job.data) == ("kept", {"to": "ann"})
    assert failed.value.may_be_added is False
    proxy.accept()
    patient = Queue("q", redis=proxy.url, prefix=prefix)  # 0.3 s are few where all is slow
    await patient.add_bulk(failed.value.spec)
    assert added(admin, prefix) == {"kept": 1}


async def test_an_unanswered_add_says_that_the_job_may_be_there(proxy: Proxy, prefix: str) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=1.5)
    await queue.add("first")
    proxy.black_hole()
    with fail_after(LIMIT), pytest.raises(EnqueueError) as failed:
        await queue.add("second")
    assert failed.value.may_be_added is True


# F8


def clone(queue: Queue, proxy: Proxy, prefix: str) -> Queue:
    """Make the same queue in a process that was restored from the image of this one."""
    twin = Queue("q", redis=proxy.url, prefix=prefix)
    ours, theirs = queue._client.adder.sequences, twin._client.adder.sequences
    if (producer := ours._producer) is not None:
        theirs.borrow()
        assert theirs._producer is not None
        theirs._producer.id = producer.id
        theirs._producer.free.extend(replace(sequence) for sequence in producer.free)
        theirs._producer.numbers = count(len(producer.free))
    return twin


@pytest.mark.parametrize(("used", "ahead"), [(0, 0), (1, 0), (3, 5)])
async def test_clones_of_one_process_image_lose_nothing(
    proxy: Proxy, admin: Any, prefix: str, used: int, ahead: int
) -> None:
    original = Queue("q", redis=proxy.url, prefix=prefix)
    names = [f"before-{number}" for number in range(used)]
    for name in names:
        await original.add(name)
    clones = [clone(original, proxy, prefix) for _ in range(3)]
    for queue, who in ((original, "original"), *zip(clones, "abc", strict=True)):
        for number in range(ahead + 1):
            names.append(f"{who}-{number}")
            handle = await queue.add(names[-1])
            assert (await handle.ainfo()).name == names[-1]
    assert added(admin, prefix) == dict.fromkeys(names, 1)


async def test_a_clone_whose_reply_was_lost_says_so_if_its_number_was_used(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    original = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=1.5)
    await original.add("first")
    twin = clone(original, proxy, prefix)
    proxy.refuse()
    proxy.cut_before_request(prefix.encode())
    with pytest.raises(EnqueueError) as failed:
        await original.add("second")
    proxy.heal()
    await twin.add("third")
    await twin.add("fourth")
    with pytest.raises(EnqueueError, match="a clone of this process") as again:
        await original.add_bulk(failed.value.spec)
    assert again.value.may_be_added
    await original.add_bulk([job.without_ticket() for job in again.value.spec])
    assert added(admin, prefix) == {"first": 1, "second": 1, "third": 1, "fourth": 1}

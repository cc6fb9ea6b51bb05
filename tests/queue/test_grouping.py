"""Jobs of many tasks are sent together, and each task gets only its own result."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import pytest
from anyio import CancelScope, create_task_group, fail_after, to_thread
from anyio.lowlevel import checkpoint

from taskbull.core.keys import QueueKeys
from taskbull.errors import EnqueueError, SerializationError
from taskbull.queue.handle import JobHandle
from taskbull.queue.queue import Queue
from taskbull.scripts.add import ADD
from taskbull.store.address import parse
from tests.queue.test_idempotent_adding import added, cut_at_random
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

LIMIT = 60.0
TASKS = 100


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running:
        yield running


def calls(queue: Queue) -> int:
    """Count the calls that added jobs."""
    producer = queue._client.adder.sequences._producer
    assert producer is not None
    return sum(sequence.calls for sequence in producer.free)


async def add_from_tasks(queue: Queue, rounds: int) -> dict[str, JobHandle[Any]]:
    """Add jobs from many tasks concurrently. Return the handles by job name."""
    handles: dict[str, JobHandle[Any]] = {}

    async def add(task: int) -> None:
        for number in range(rounds):
            name = f"{task}-{number}"
            handles[name] = await queue.add(name, {"task": task})

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for task in range(TASKS):
                tasks.start_soon(add, task)
    return handles


def hold_replies_to_groups(proxy: Proxy) -> None:
    """Delay replies from the first call with several jobs on, but not of the single job before it.

    A second connection may check a slow server first. That one is not affected.
    """
    proxy.hold_replies_at(ADD.sha.encode())


async def begun(queue: Queue) -> None:
    """Wait until a call is in flight."""
    while (group := queue._stores.loop._groups.get(queue._client)) is None or not group._busy:
        await checkpoint()


async def gathered(queue: Queue, number: int) -> None:
    """Wait until this many jobs wait for the next call."""
    group = queue._stores.loop._groups[queue._client]
    while len(group._gathered) != number:
        await checkpoint()


async def there(admin: Any, queue: Queue, jobs: int) -> None:
    """Wait until Redis has added this many jobs."""
    await to_thread.run_sync(
        wait_until, lambda: admin.llen(queue.keys.wait) == jobs, f"{jobs} jobs are there"
    )


async def test_many_tasks_need_few_calls_and_each_has_its_own_job(
    server: Reachable, admin: Any, prefix: str
) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    handles = await add_from_tasks(queue, 10)
    assert len(handles) == len({handle.id for handle in handles.values()}) == TASKS * 10
    assert calls(queue) <= 30
    for name, handle in handles.items():
        assert handle.name == name
        assert admin.hget(queue.keys.job(handle.id), "name").decode() == name
    order = [job_id.decode() for job_id in reversed(admin.lrange(queue.keys.wait, 0, -1))]
    for task in range(TASKS):  # In the order in which each task added them.
        ids = [handles[f"{task}-{number}"].id for number in range(10)]
        assert sorted(ids, key=order.index) == ids


async def test_one_task_alone_needs_a_call_for_each(server: Reachable, prefix: str) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    for _ in range(5):
        await queue.add("n")
    assert calls(queue) == 5


async def test_half_of_the_callers_are_under_way_while_the_other_half_is_but_no_third_call(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=LIMIT)
    await queue.add("before")
    hold_replies_to_groups(proxy)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for number in range(41):
                tasks.start_soon(queue.add, f"job-{number}")
            await there(admin, queue, 42)
            group = queue._stores.loop._groups[queue._client]
            assert [call.size for call in group._calls] == [20, 20]
            for number in range(41, 71):
                tasks.start_soon(queue.add, f"job-{number}")
            await gathered(queue, 30)
            assert [call.size for call in group._calls] == [20, 20]
            proxy.deliver()
    assert added(admin, prefix) == {"before": 1, **{f"job-{n}": 1 for n in range(71)}}
    assert calls(queue) <= 6
    with fail_after(LIMIT):
        while group._busy:
            await checkpoint()


async def test_few_callers_go_in_one_call(proxy: Proxy, admin: Any, prefix: str) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=LIMIT)
    await queue.add("before")
    hold_replies_to_groups(proxy)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for number in range(9):
                tasks.start_soon(queue.add, f"job-{number}")
            await there(admin, queue, 10)
            group = queue._stores.loop._groups[queue._client]
            assert [call.size for call in group._calls] == [8]
            proxy.deliver()
    assert calls(queue) == 3


@pytest.mark.parametrize("doubt", [True, False])
async def test_two_calls_under_way_that_are_lost_add_each_job_once(
    doubt: bool, proxy: Proxy, admin: Any, prefix: str
) -> None:
    limit = 0.5 if doubt else LIMIT
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=limit)
    callers = [Caller(queue, f"job-{number}") for number in range(41)]
    await queue.add("before")
    hold_replies_to_groups(proxy)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for caller in callers:
                tasks.start_soon(caller.run)
            await there(admin, queue, 42)
            if doubt:
                proxy.refuse()
            proxy.cut()
            if not doubt:
                proxy.heal()
    left = [caller.error.spec[0] for caller in callers if caller.error is not None]
    assert len(left) == (40 if doubt else 0)
    proxy.heal()
    patient = Queue("q", redis=proxy.url, prefix=prefix)
    for _ in range(2):
        await patient.add_bulk(left)
    assert added(admin, prefix) == dict.fromkeys(["before", *(c.name for c in callers)], 1)


async def test_a_connection_cut_again_and_again_loses_and_doubles_nothing(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=30)
    random = Random(5)
    async with create_task_group() as tasks:

        async def cut() -> None:
            while True:
                await to_thread.run_sync(cut_at_random, proxy, random, prefix)
                await anyio.sleep(0.002)

        tasks.start_soon(cut)
        handles = await add_from_tasks(queue, 20)
        tasks.cancel_scope.cancel()
    assert added(admin, prefix) == dict.fromkeys(handles, 1)
    assert proxy.cuts >= 5
    keys = QueueKeys("q", prefix)
    for name, handle in handles.items():
        assert admin.hget(keys.job(handle.id), "name").decode() == name


async def test_what_cannot_be_sent_fails_alone(server: Reachable, admin: Any, prefix: str) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    refused: list[str] = []

    async def add(name: str, data: Any) -> None:
        try:
            await queue.add(name, data)
        except SerializationError as error:
            refused.append(f"{name}: {error}")

    async with create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(add, f"good-{number}", {})
        tasks.start_soon(add, "odd", {"value": object()})
        tasks.start_soon(add, "big", {"value": "x" * 11_000_000})
    assert added(admin, prefix) == {f"good-{number}": 1 for number in range(10)}
    assert sorted(told.split(":")[0] for told in refused) == ["big", "odd"]


async def test_long_jobs_do_not_go_in_one_call(server: Reachable, admin: Any, prefix: str) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    async with create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(queue.add, f"long-{number}", {"text": "x" * 600_000})
    assert calls(queue) == 10
    assert added(admin, prefix) == {f"long-{number}": 1 for number in range(10)}


class Caller:
    """A task that adds a job and stores the result."""

    def __init__(self, queue: Queue, name: str) -> None:
        self.queue = queue
        self.name = name
        self.scope = CancelScope()
        self.over = anyio.Event()
        self.error: EnqueueError | None = None

    async def run(self) -> None:
        with self.scope:
            try:
                await self.queue.add(self.name)
            except EnqueueError as error:
                self.error = error
        self.over.set()


@pytest.mark.parametrize("when", ["gathered", "under way"])
async def test_who_is_cancelled_before_it_was_sent_takes_its_job_along(
    when: str, proxy: Proxy, admin: Any, prefix: str
) -> None:
    proxy.refuse()
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=LIMIT)
    first, *others = [Caller(queue, f"job-{number}") for number in range(5)]
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(first.run)
            await begun(queue)
            for other in others:
                tasks.start_soon(other.run)
            await gathered(queue, 4)
            if when == "under way":
                first.scope.cancel()
                await gathered(queue, 0)
            others[2].scope.cancel()
            await others[2].over.wait()
            proxy.accept()
    names = {"job-1", "job-2", "job-4"}
    if when == "gathered":
        names.add("job-0")
    assert added(admin, prefix) == dict.fromkeys(names, 1)


async def test_who_is_cancelled_after_it_was_sent_leaves_the_others_theirs(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=LIMIT)
    await queue.add("before")
    proxy.hold_requests()
    first, *others = [Caller(queue, f"job-{number}") for number in range(5)]
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(first.run)
            await begun(queue)
            for other in others:
                tasks.start_soon(other.run)
            await gathered(queue, 4)
            first.scope.cancel()  # The call in flight belongs to it.
            await gathered(queue, 0)
            others[0].scope.cancel()
            await others[0].over.wait()
            proxy.deliver()
    found = added(admin, prefix)
    assert set(found.values()) == {1}
    assert {"before", "job-2", "job-3", "job-4"} <= set(found)


async def test_each_caller_gets_the_error_of_its_own_job_and_can_resend_it(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    proxy.refuse()
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=0.3)
    callers = [Caller(queue, f"job-{number}") for number in range(20)]
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for caller in callers:
                tasks.start_soon(caller.run)
    proxy.accept()
    for caller in callers:
        error = caller.error
        assert error is not None
        assert [job.name for job in error.spec] == [caller.name]
        assert not error.may_be_added
        assert "Job not added to queue" in str(error)
    left = [caller.error.spec[0] for caller in callers if caller.error is not None]
    patient = Queue("q", redis=proxy.url, prefix=prefix)
    for _ in range(2):  # The second time, they exist.
        await patient.add_bulk(left)
    assert added(admin, prefix) == {caller.name: 1 for caller in callers}


async def test_an_unanswered_call_is_uncertain_for_each_and_settled_by_sending_again(
    proxy: Proxy, admin: Any, prefix: str
) -> None:
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=1.5)
    await queue.add("before")
    proxy.hold_requests()
    callers = [Caller(queue, f"job-{number}") for number in range(20)]
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for caller in callers:
                tasks.start_soon(caller.run)
    proxy.deliver()
    left = [caller.error.spec[0] for caller in callers if caller.error is not None]
    assert [job.name for job in left] == [caller.name for caller in callers]
    slow = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=LIMIT)
    await slow.add_bulk(left)
    assert added(admin, prefix) == dict.fromkeys(["before", *(c.name for c in callers)], 1)


async def test_who_came_late_has_its_own_time(proxy: Proxy, admin: Any, prefix: str) -> None:
    proxy.refuse()
    queue = Queue("q", redis=proxy.url, prefix=prefix, enqueue_timeout=3.0)
    first, second, late = [Caller(queue, name) for name in ("first", "second", "late")]
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(first.run)
            await begun(queue)
            tasks.start_soon(second.run)
            await first.over.wait()
            tasks.start_soon(late.run)
            await second.over.wait()
            assert not late.over.is_set()
            proxy.accept()
    assert first.error is not None
    assert second.error is not None
    assert late.error is None
    assert added(admin, prefix) == {"late": 1}


def test_threads_with_event_loops_of_their_own_share_a_queue(
    server: Reachable, admin: Any, prefix: str
) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    handles: list[dict[str, JobHandle[Any]]] = []

    def produce(backend: str) -> None:
        async def run() -> None:
            handles.append(await add_from_tasks(queue, 3))

        anyio.run(run, backend=backend)

    threads = [threading.Thread(target=produce, args=(each,)) for each in ("asyncio", "trio") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({handle.id for each in handles for handle in each.values()}) == 4 * TASKS * 3
    assert set(added(admin, prefix).values()) == {4}


async def test_many_tasks_add_to_queues_of_a_cluster(cluster: Cluster, prefix: str) -> None:
    queues = [
        Queue(name, redis=cluster.url, prefix=prefix, enqueue_timeout=LIMIT)
        for name in ("emails", "reports", "a")
    ]
    for queue in queues:
        handles = await add_from_tasks(queue, 3)
        assert len({handle.id for handle in handles.values()}) == TASKS * 3
        assert (await queue.counts())["waiting"] == TASKS * 3
        assert calls(queue) <= 20

"""Two parts of a bulk in flight: guarantees and edge cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
from anyio import create_task_group, fail_after, to_thread

from taskbull.app.app import App
from taskbull.app.producer import JobSpec
from taskbull.errors import EnqueueError
from taskbull.queue import add_bulk
from taskbull.queue.handle import JobHandle
from taskbull.scripts.add import ADD
from taskbull.store.address import parse
from taskbull.testing import connected
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

LIMIT = 60.0
PART = 10
PARTS = 6
JOBS = PART * PARTS

shop = App("shop", redis="redis://localhost:1", enqueue_timeout=LIMIT)

Enqueue = Callable[..., Coroutine[Any, Any, list[JobHandle[Any]]]]


@shop.task(queue="rows")
def row(n: int) -> int:
    return n


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_bulk, "BULK", PART)


@pytest.fixture
def proxy(server: Reachable, admin: Any) -> Iterator[Proxy]:
    admin.script_load(ADD.source)
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running, connected(shop, running.url):
        yield running


async def in_a_thread(*arguments: Any, **more: Any) -> list[JobHandle[Any]]:
    """Enqueue in sync code while the test continues."""
    return await to_thread.run_sync(partial(shop.enqueue, *arguments, **more))


WAYS = [pytest.param(shop.aenqueue, id="async"), pytest.param(in_a_thread, id="sync")]


def rows(count: int = JOBS) -> list[JobSpec[int]]:
    return [row.job(n) for n in range(count)]


def waiting(admin: Any) -> list[int]:
    """Return the numbers of the jobs in the queue, in the order in which they will run."""
    ids = [job_id.decode() for job_id in reversed(admin.lrange("bull:rows:wait", 0, -1))]
    return [json.loads(admin.hget(f"bull:rows:{job_id}", "data"))["n"] for job_id in ids]


async def connect() -> None:
    """Connect from sync and async code, so that later calls only add jobs."""
    await shop.queue("rows").counts()
    await to_thread.run_sync(shop.sync_queue("rows").counts)


async def arrived(admin: Any, jobs: int) -> None:
    """Wait until Redis has added this many jobs."""
    await to_thread.run_sync(
        wait_until, lambda: admin.llen("bull:rows:wait") == jobs, f"{jobs} jobs are there"
    )


@pytest.mark.parametrize("enqueue", WAYS)
async def test_a_part_arrives_before_the_one_ahead_of_it_is_answered_but_no_third(
    enqueue: Enqueue, proxy: Proxy, admin: Any
) -> None:
    await connect()
    proxy.hold_replies()
    handles: list[JobHandle[Any]] = []
    told = [0]
    ahead: list[int] = []

    def streamed() -> Iterator[JobSpec[int]]:
        for n, spec in enumerate(rows()):
            ahead.append(n - told[-1])
            yield spec

    async def add() -> None:
        handles.extend(await enqueue(streamed(), progress=told.append))

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(add)
            await arrived(admin, 2 * PART)
            await to_thread.run_sync(wait_until, lambda: len(ahead) >= 3 * PART, "the third part")
            assert (told, len(waiting(admin))) == ([0], 2 * PART)
            proxy.deliver()
    assert max(ahead) == 3 * PART - 1  # The third part was ready, and waited.
    assert told == list(range(0, JOBS + 1, PART))
    assert [handle.id for handle in handles] == [str(n + 1) for n in range(JOBS)]
    assert waiting(admin) == list(range(JOBS))


@pytest.mark.parametrize("enqueue", WAYS)
async def test_both_parts_under_way_are_lost_and_sent_again(
    enqueue: Enqueue, proxy: Proxy, admin: Any
) -> None:
    await connect()
    proxy.hold_replies()
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(enqueue, rows())
            await arrived(admin, 2 * PART)
            proxy.cut()
            proxy.heal()
    assert waiting(admin) == list(range(JOBS))


@pytest.mark.parametrize("enqueue", WAYS)
async def test_both_parts_under_way_are_in_doubt_if_nobody_answers(
    enqueue: Enqueue, proxy: Proxy, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop.producer, "_timeout", 0.5)
    await connect()
    proxy.hold_replies()
    failed: list[EnqueueError] = []

    async def fail() -> None:
        with pytest.raises(EnqueueError) as error:
            await enqueue(rows())
        failed.append(error.value)

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(fail)
            await arrived(admin, 2 * PART)
            proxy.refuse()
            proxy.cut()
    [error] = failed
    assert [spec.data["n"] for spec in error.spec] == list(range(JOBS))
    in_doubt = [spec.job.ticket.sent_ms is not None for spec in error.spec]
    assert in_doubt == [True] * 2 * PART + [False] * (JOBS - 2 * PART)
    proxy.heal()
    monkeypatch.setattr(shop.producer, "_timeout", LIMIT)
    with fail_after(LIMIT):
        for _ in range(2):
            await enqueue(error.spec)
    assert waiting(admin) == list(range(JOBS))


def cuts(proxy: Proxy) -> list[Callable[[], None]]:
    """Return ways to cut a connection: in every part, on the way there and on the way back."""
    forth = [partial(proxy.cut_after_requests, size) for size in range(1, 6_000, 450)]
    back = [partial(proxy.cut_after, size) for size in range(1, 130, 12)]
    return [*forth, *back]


@pytest.mark.parametrize("enqueue", WAYS)
async def test_a_connection_cut_anywhere_loses_and_doubles_nothing_and_keeps_the_order(
    enqueue: Enqueue, proxy: Proxy, admin: Any
) -> None:
    with fail_after(LIMIT):
        for cut in cuts(proxy):
            admin.flushdb()
            await connect()
            cut()
            handles = await enqueue(rows())
            proxy.heal()
            assert waiting(admin) == list(range(JOBS)), cut
            data = [(await handle.ainfo()).data for handle in handles[::PART]]
            assert data == [{"n": n} for n in range(0, JOBS, PART)]
    assert proxy.cuts >= 20


@pytest.mark.parametrize("enqueue", WAYS)
async def test_what_a_cut_leaves_behind_completes_the_set_in_order(
    enqueue: Enqueue, proxy: Proxy, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fail_after(2 * LIMIT):
        for cut in cuts(proxy)[::2]:
            admin.flushdb()
            monkeypatch.setattr(shop.producer, "_timeout", LIMIT)
            await connect()
            monkeypatch.setattr(shop.producer, "_timeout", 0.2)
            cut()
            proxy.refuse()
            spec, added = [], JOBS
            try:
                await enqueue(rows())
            except EnqueueError as error:
                spec, added = list(error.spec), len(error.added)
            proxy.heal()
            monkeypatch.setattr(shop.producer, "_timeout", LIMIT)
            assert [each.data["n"] for each in spec] == list(range(added, JOBS))
            for _ in range(2):
                await enqueue(spec)
            assert waiting(admin) == list(range(JOBS)), cut
    assert proxy.cuts >= 10


@pytest.mark.parametrize("enqueue", WAYS)
@pytest.mark.parametrize("part", [0, 1, 3, PARTS - 1])
async def test_what_stands_behind_a_refused_part_is_not_added_before_it(
    enqueue: Enqueue, part: int, proxy: Proxy, admin: Any
) -> None:
    jobs = rows()
    later = row.options(delay=60)
    first, after = part * PART, (part + 1) * PART
    jobs[first:after] = [later.job(n) for n in range(first, after)]
    admin.set("bull:rows:delayed", "no set at all")
    with fail_after(LIMIT), pytest.raises(EnqueueError, match="WRONGTYPE") as failed:
        await enqueue(jobs)
    error = failed.value
    assert [spec.data["n"] for spec in error.spec] == list(range(first, JOBS))
    assert not error.may_be_added
    assert [job.id for job in error.added] == [str(n + 1) for n in range(first)]
    assert waiting(admin) == list(range(first))
    admin.delete("bull:rows:delayed")
    with fail_after(LIMIT):
        await enqueue(error.spec)
    assert waiting(admin) == [n for n in range(JOBS) if not first <= n < after]
    assert admin.zcard("bull:rows:delayed") == PART


@pytest.mark.parametrize("enqueue", WAYS)
async def test_a_server_that_does_not_know_the_script_is_taught_once_and_order_is_kept(
    enqueue: Enqueue, proxy: Proxy, admin: Any
) -> None:
    admin.script_flush()
    with fail_after(LIMIT):
        await enqueue(rows())
    assert waiting(admin) == list(range(JOBS))


async def test_who_is_cancelled_leaves_a_connection_that_others_can_use(
    proxy: Proxy, admin: Any
) -> None:
    await connect()
    proxy.hold_replies()
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(shop.aenqueue, rows())
            await arrived(admin, 2 * PART)
            tasks.cancel_scope.cancel()
        proxy.deliver()
        await shop.aenqueue(rows())
    assert waiting(admin) == [*range(2 * PART), *range(JOBS)]


def test_an_interrupt_leaves_a_connection_that_nobody_uses(proxy: Proxy, admin: Any) -> None:
    def told(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.enqueue(rows(), progress=told)
    there = waiting(admin)
    shop.enqueue(rows())
    assert there == list(range(len(there)))
    assert waiting(admin)[-JOBS:] == list(range(JOBS))


async def test_a_bulk_for_many_queues_keeps_the_order_in_each(proxy: Proxy, admin: Any) -> None:
    kinds = [row, *(row.options(queue=f"rows-{number}") for number in range(3))]
    jobs = [kinds[n % 4].job(n) for n in range(4 * JOBS)]
    with fail_after(LIMIT):
        handles = await shop.aenqueue(jobs)
    assert waiting(admin) == list(range(0, 4 * JOBS, 4))
    assert [(await handle.ainfo()).data["n"] for handle in handles[::7]] == list(
        range(0, 4 * JOBS, 7)
    )

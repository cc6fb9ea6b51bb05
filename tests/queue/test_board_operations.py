"""Operations that dashboards need besides reads, with the async and the sync server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskbull import Every, Server, SyncServer
from taskbull.monitor.audit import MOST_OPERATIONS, OperationRecord
from taskbull.queue.queue import SyncQueue
from tests.queue.test_server import Both
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable


@pytest.fixture(params=[Server, SyncServer])
def both(request: pytest.FixtureRequest, server: Reachable, prefix: str) -> Both:
    return Both(request.param(server.url, prefix=prefix))


def record(number: int, **more: Any) -> OperationRecord:
    return OperationRecord(
        id=f"o{number}", action="retry", queue="q", what="x", by="ann", began_ms=number, **more
    )


async def test_a_number_is_claimed_once_and_forgotten_in_time(
    both: Both, admin: Any, prefix: str
) -> None:
    assert await both.claim("f" * 32)
    assert not await both.claim("f" * 32)
    assert await both.claim("e" * 32)
    assert 0 < admin.pttl(f"{prefix}::tb:once:{'f' * 32}") <= 600_000


async def test_operations_are_listed_the_newest_first_and_stopped(
    both: Both, admin: Any, prefix: str
) -> None:
    assert await both.operations() == []
    for number in (1, 3, 2):
        await both.record_operation(record(number))
    await both.record_operation(record(2, count=7))
    assert [(each.id, each.count) for each in await both.operations()] == [
        ("o3", 0), ("o2", 7), ("o1", 0),
    ]  # fmt: skip
    await both.stop_operation("o2")
    assert await both.is_stopped("o2")
    assert not await both.is_stopped("o1")
    assert 0 < admin.pttl(f"{prefix}::tb:operations") <= 3_600_000


async def test_no_more_operations_are_kept_than_anybody_reads(
    both: Both, admin: Any, prefix: str
) -> None:
    for number in range(MOST_OPERATIONS + 5):
        await both.record_operation(record(number))
    admin.hset(f"{prefix}::tb:operations", "odd", b"\xff")
    assert len(await both.operations()) == MOST_OPERATIONS
    assert admin.hlen(f"{prefix}::tb:operations") == MOST_OPERATIONS + 1


async def test_the_next_schedules_of_all_queues_are_merged(
    both: Both, admin: Any, server: Reachable, prefix: str
) -> None:
    now_ms = int(time.time() * 1000)
    for place, name in enumerate(("a", "b")):
        queue = SyncQueue(name, redis=server.url, prefix=prefix)
        for number in range(3):
            schedule = f"{name}{number}"
            queue.upsert_schedule(schedule, Every(3600), queue.job("build", {}))
            admin.zadd(queue.keys.repeat, {schedule: now_ms + 1000 * (2 * number + place)})
        queue.close()
    first = await both.next_schedules(["a", "b"], limit=4)
    assert [each.id for each in first.schedules] == ["a0", "b0", "a1", "b1"]
    assert first.more
    rest = await both.next_schedules(["a", "b"], start=4, limit=4)
    assert ([each.id for each in rest.schedules], rest.more) == (["a2", "b2"], False)
    assert (await both.next_schedules([])).schedules == []


async def test_it_works_in_a_cluster(cluster: Cluster, prefix: str) -> None:
    server = Server(cluster.url, prefix=prefix)
    assert await server.claim("a" * 32)
    assert not await server.claim("a" * 32)
    await server.record_operation(record(1))
    assert [each.id for each in await server.operations()] == ["o1"]
    assert (await server.next_schedules(["a", "b", "c"])).schedules == []

"""BullMQ's counts per minute, written by a taskbull worker and read by Node and taskbull."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import redis

from taskbull.core import events
from taskbull.core.options import WorkerOptions
from taskbull.errors import ConfigurationError, PermanentError
from tests.interop.node import Node, Version
from tests.servers.kinds import Reachable
from tests.worker.bed import HandClock, WorkerBed


async def handler(job: Any) -> None:
    if job.name == "bad":
        raise PermanentError("no")


@pytest.mark.parametrize("version", [5, 6])
async def test_node_reads_what_our_worker_counts(
    node: Node, interop_url: str, prefix: str, version: Version
) -> None:
    with redis.Redis.from_url(interop_url) as admin:
        bed = WorkerBed(Reachable("", interop_url), admin, prefix)
        clock = HandClock()
        async with bed.worker(handler, clock=clock, metrics_data_points=5).running():
            await bed.queue.add_bulk([("good", {})] * 3 + [("bad", {})])
            await bed.record.wait_for(events.Ended, 4)
            clock.turn(180)  # three minutes later: that one, and two without any
            await bed.queue.add("good")
            await bed.record.wait_for(events.Ended, 5)
        at = partial(node.call, version=version, prefix=prefix)
        completed, failed = at("getMetrics", "completed"), at("getMetrics", "failed")
        at("forget")
        ours = await bed.queue.metrics("completed")
    assert int(completed["meta"]["count"]) == 4
    assert int(failed["meta"]["count"]) == 1
    assert [int(point) for point in completed["data"]] == [0, 0, 3]  # the newest first
    assert completed["count"] == 3
    assert (ours.count, ours.points, ours.point_count) == (4, [0, 0, 3], 3)


async def test_a_day_is_kept_unless_somebody_says_otherwise(bed: WorkerBed) -> None:
    assert WorkerOptions().metrics_data_points == 24 * 60
    async with bed.worker(handler).running():
        await bed.queue.add("good")
        await bed.record.wait_for(events.Completed)
    assert bed.admin.hget(bed.keys.metrics_completed, "count") == b"1"


async def test_where_it_is_turned_off_nothing_is_counted(bed: WorkerBed) -> None:
    async with bed.worker(handler, metrics_data_points=0).running():
        await bed.queue.add("good")
        await bed.record.wait_for(events.Completed)
    assert not bed.admin.exists(bed.keys.metrics_completed)
    assert (await bed.queue.metrics()).count == 0


@pytest.mark.parametrize("wrong", [-1, 1.5, 10**9])
def test_the_option_is_checked(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="metrics_data_points"):
        WorkerOptions(metrics_data_points=wrong)

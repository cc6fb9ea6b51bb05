"""Jobs that Node itself adds with numbers that mean "always" or "never": our worker runs them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from redis import Redis

from taskbull.core import events
from taskbull.core.options import WorkerOptions
from taskbull.errors import PermanentError
from taskbull.worker.worker import Worker
from tests.interop.conftest import MakeActor
from tests.worker.bed import Recorder

MOST = sys.float_info.max
"""JavaScript's `Number.MAX_VALUE`."""


async def work(job: Any) -> str:
    if job.name == "fails":
        raise PermanentError("no")
    return "done"


@pytest.mark.parametrize("version", [5, 6])
async def test_jobs_of_node_with_huge_numbers_end(  # F1, F6, F7
    version: Any, new_actor: MakeActor, redis: Redis, interop_url: str
) -> None:
    actor = new_actor(version)
    keep: dict[str, Any] = {"count": MOST, "age": MOST, "limit": MOST}
    options: list[dict[str, Any]] = [
        {"attempts": MOST},
        {"removeOnComplete": MOST, "removeOnFail": MOST},
        {"removeOnComplete": keep, "removeOnFail": keep, "stackTraceLimit": MOST},
        {"backoff": {"type": "exponential", "delay": MOST}, "attempts": 1e300},
    ]
    for one in options:
        actor.add("fine", {}, one)
        actor.add("fails", {}, one)
    odd = actor.add("fine", {}, {"delay": 1})
    record = Recorder()
    worker = Worker(
        "q", work, redis=interop_url, prefix=actor.prefix, options=WorkerOptions(drain_delay=0.5)
    )
    worker.on(events.Event, record)
    # What `changePriority({priority: NaN})` stores.
    redis.hset(f"{actor.prefix}:q:{odd}", "priority", "nan")
    async with worker.running():
        await record.wait_for(events.Completed, 5)
        await record.wait_for(events.Failed, 4)
        never = actor.add("fine", {}, {"delay": MOST})  # the worker waits at the marker now
        last = actor.add("fine", {})
        await record.wait_for(events.Completed, where=lambda event: event.job.id == last)
        actor.promote(never)
        await record.wait_for(events.Completed, where=lambda event: event.job.id == never)
    assert odd in record.jobs(events.Completed)

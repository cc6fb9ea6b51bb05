"""Commands of an idle worker, counted by the server: one wait at the marker per period."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from taskbull.core import events
from taskbull.core.options import WorkerOptions
from taskbull.core.validation import seconds
from taskbull.observability.exporters import OwnMetrics
from taskbull.scripts.change import BLOCK
from taskbull.scripts.records import RECORD_LIFE_MS
from taskbull.worker import records
from tests.worker.bed import WorkerBed, echo, until

PERIOD = 0.2
"""Seconds of one wait here. The test counts commands per wait, so the duration does not matter."""

WAITS = 5
"""Number of observed waits."""

OF_THE_CYCLE = {"hmget", "zadd", "zrangebyscore", "lrange", "zrange", "del", "type", "exists"}
"""Commands of the worker's script."""

OF_COUNTING = {"llen", "zcard"}
"""Commands of the script that counts jobs."""


def executed(admin: redis.Redis) -> Counter[str]:
    """Count the commands that the server has executed, including those of scripts."""
    stats = admin.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): stats[name]["calls"] for name in stats}
    return Counter({name: int(calls) for name, calls in counts.items() if name != "info"})


async def while_idle(bed: WorkerBed, queues: int = 1) -> Counter[str]:
    """Return the commands executed during this many waits of a worker that has just started."""
    await bed.record.wait_for(events.Swept, queues)  # The next sweep is in half a minute.
    await until(lambda: executed(bed.admin)["bzpopmin"] >= 2 * queues)
    before = executed(bed.admin)
    await until(lambda: executed(bed.admin)["bzpopmin"] >= before["bzpopmin"] + WAITS * queues)
    return executed(bed.admin) - before


@pytest.fixture(autouse=True)
def from_nothing(bed: WorkerBed) -> None:
    bed.admin.config_resetstat()


@pytest.mark.parametrize("queues", [["q"], ["a", "b", "c"]])
async def test_an_idle_worker_sends_two_commands_per_wait_of_each_queue(
    bed: WorkerBed, queues: list[str]
) -> None:
    async with bed.worker(echo, queues=queues, drain_delay=PERIOD, records=False).running():
        sent = await while_idle(bed, len(queues))
    assert set(sent) <= {"bzpopmin", "evalsha", "xread", *OF_THE_CYCLE}
    assert sent["xread"] <= 1  # For all queues together.
    assert sent["evalsha"] <= sent["bzpopmin"] + len(queues)


def test_with_the_defaults_that_is_less_than_one_command_in_two_seconds() -> None:
    options = WorkerOptions()
    wait = seconds("drain_delay", options.drain_delay)
    sweep = seconds("stalled_interval", options.stalled_interval)
    assert 2 / wait + 1 / sweep + 1 / BLOCK + 1 / records.IDLE <= 0.5


async def test_an_idle_worker_renews_its_record_seldom(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHECK_INTERVAL", PERIOD / 10)
    async with bed.worker(echo, drain_delay=PERIOD, worker_id="w1").running():
        await until(lambda: executed(bed.admin)["set"] >= 1)
        monkeypatch.setattr(records, "IDLE", 3600)  # Otherwise, a slow machine may reach it.
        sent = await while_idle(bed)
    assert sent["set"] == 0


async def test_a_record_is_renewed_before_it_expires(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * records.IDLE < RECORD_LIFE_MS / 1000
    monkeypatch.setattr(records, "CHECK_INTERVAL", PERIOD / 10)
    monkeypatch.setattr(records, "IDLE", PERIOD)
    async with bed.worker(echo, drain_delay=PERIOD, worker_id="w1").running():
        await until(lambda: executed(bed.admin)["set"] >= 3)
    assert executed(bed.admin)["set"] >= 3


async def test_metrics_add_three_commands_per_sample(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SAMPLING", PERIOD)
    worker = bed.worker(echo, drain_delay=PERIOD, records=False)
    worker.measure(OwnMetrics().metrics)
    async with worker.running():
        sent = await while_idle(bed)
    assert set(sent) <= {
        "bzpopmin",
        "evalsha",
        "xread",
        "get",
        "set",
        *OF_THE_CYCLE,
        *OF_COUNTING,
    }
    assert abs(sent["get"] - sent["set"]) <= 1
    assert sent["evalsha"] <= sent["bzpopmin"] + sent["get"] + 2

"""A Redis out of memory: nothing is fetched, nothing is lost, and one line is logged."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from taskbull.core import events
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.worker.bed import WorkerBed, until


async def test_no_job_is_taken_until_redis_has_memory_again(  # G1
    private_server: PrivateServers, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = private_server({"maxmemory-policy": "noeviction"})
    runs: list[str] = []

    async def note(job: Any) -> None:
        runs.append(job.id)

    with redis.Redis.from_url(server.url) as admin:
        bed = WorkerBed(Reachable(VALKEY_9, server.url), admin, prefix)
        for _ in range(20):
            await bed.queue.add("n", attempts=1)
        admin.config_set("maxmemory", 1)

        def asked() -> int:
            stats: Any = admin.info("commandstats")
            return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])

        def said() -> list[str]:
            told = [record.getMessage() for record in caplog.records]
            return [line for line in told if "out of memory" in line]

        async with bed.worker(note).running():
            await until(lambda: bool(said()))
            before = asked()
            await until(lambda: asked() > before + 4)
            assert runs == []
            assert admin.llen(bed.keys.wait) == 20
            admin.config_set("maxmemory", 0)
            await bed.record.wait_for(events.Completed, 20)
    assert len(said()) == 1
    assert sorted(runs, key=int) == [str(number) for number in range(1, 21)]

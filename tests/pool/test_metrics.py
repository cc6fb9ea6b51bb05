"""Metrics of a process pool."""

from __future__ import annotations

from taskbull.core import events
from taskbull.observability.exporters import OwnMetrics
from taskbull.observability.http_server import MetricsServer
from tests.observability.test_metrics import scraped, shown
from tests.pool.conftest import PoolBed

SIZE, BUSY = "bullmq_pool_processes", "bullmq_pool_processes_busy"
ENDED = "bullmq_pool_processes_ended_total"


async def test_size_use_and_ends_are_measured(bed: PoolBed) -> None:
    own = OwnMetrics()
    with MetricsServer(own, "127.0.0.1", 0) as endpoint:
        async with bed.working(metrics=own.metrics, process_pool=2, process_max_jobs=1) as worker:
            await shown(endpoint.url, SIZE, 2, worker_id=worker.id)
            found = await shown(endpoint.url, BUSY, 0, worker_id=worker.id)
            assert [found.value(ENDED, cause=cause) for cause in ("died", "recycled")] == [0, 0]
            await bed.hold.adelay("open")
            await shown(endpoint.url, BUSY, 1, worker_id=worker.id)
            await bed.ended("crash", "exit")
            await shown(endpoint.url, ENDED, 1, cause="died")
            (bed.folder / "open").touch()
            await bed.record.wait_for(events.ProcessRecycled)
            await shown(endpoint.url, ENDED, 1, cause="recycled")
        found = await scraped(endpoint.url)
    assert found.value(SIZE, worker_id=worker.id) is None

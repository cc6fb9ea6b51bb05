"""One drain by a taskbull worker: python -m benchmarks.drain_worker LOOP URL JOBS CONCURRENCY."""

from __future__ import annotations

import json
import sys
from time import perf_counter, process_time

import anyio

from taskbull.core import events
from taskbull.core.options import WorkerOptions
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker

QUEUE = "drain"


async def noop(_: RunningJob) -> dict[str, bool]:
    return {"ok": True}


async def drain(url: str, jobs: int, concurrency: int) -> tuple[float, float]:
    """Run a worker until so many jobs are done; give the seconds, and those of its own CPU."""
    done = anyio.Event()
    left = jobs

    def count(_: events.Completed) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    options = WorkerOptions(concurrency=concurrency)
    worker = Worker(QUEUE, noop, redis=url, options=options, on={events.Completed: count})
    began, cpu = perf_counter(), process_time()
    async with worker.running():
        await done.wait()
        return perf_counter() - began, process_time() - cpu


def main() -> None:
    loop, url, jobs, concurrency = sys.argv[1:]
    backend = {"uvloop": "asyncio"}.get(loop, loop)
    settings = {"use_uvloop": True} if loop == "uvloop" else {}
    seconds, cpu = anyio.run(
        drain, url, int(jobs), int(concurrency), backend=backend, backend_options=settings
    )
    print(json.dumps({"seconds": seconds, "cpu_us": cpu / int(jobs) * 1e6}))


if __name__ == "__main__":
    main()

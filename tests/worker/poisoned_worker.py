"""A worker process that a job of the name `poison` kills.

`python -m tests.worker.poisoned_worker <url> <prefix> <event loop>`
"""

from __future__ import annotations

import os
import sys

import anyio

from taskbull.core.options import WorkerOptions
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker


async def main(url: str, prefix: str) -> None:
    async def handler(job: RunningJob) -> str:
        if job.name == "poison":
            os._exit(86)
        await anyio.sleep(0.2)  # the others are still running when it dies
        return "done"

    options = WorkerOptions(
        concurrency=10,
        stalled_interval=0.3,
        drain_delay=0.2,
    )
    await Worker(["a", "b"], handler, redis=url, prefix=prefix, options=options).run()


if __name__ == "__main__":
    url, prefix, event_loop = sys.argv[1:]
    anyio.run(main, url, prefix, backend=event_loop)

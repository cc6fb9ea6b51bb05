"""A worker process to be killed: notes each run in a list in Redis before it begins.

`python -m tests.worker.killed_worker <url> <prefix> <list> <event loop> <worker id>`
"""

from __future__ import annotations

import sys
from random import random

import anyio
import redis
from anyio import sleep

from taskbull.core.options import WorkerOptions
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker

STALLED_INTERVAL = 0.5


async def main(url: str, prefix: str, ledger: str, worker_id: str) -> None:
    notes = redis.Redis.from_url(url)

    async def handler(job: RunningJob) -> None:
        notes.rpush(ledger, job.id)
        await sleep(random() * 0.02)

    options = WorkerOptions(
        worker_id=worker_id,
        concurrency=10,
        lock_duration=60,  # the test deletes the locks of a killed worker
        heartbeat_interval=0.2,
        stalled_interval=STALLED_INTERVAL,
        max_stalled_count=1000,
        drain_delay=0.2,
    )
    await Worker("q", handler, redis=url, prefix=prefix, options=options).run()


if __name__ == "__main__":
    url, prefix, ledger, event_loop, worker_id = sys.argv[1:]
    anyio.run(main, url, prefix, ledger, worker_id, backend=event_loop)

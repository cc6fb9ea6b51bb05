"""A worker process to be killed: each step of its jobs notes its effect in Redis.

`python -m tests.worker.stepping_worker <url> <prefix> <steps> <event loop> <worker id>`
"""

from __future__ import annotations

import sys
from random import random

import anyio
import redis
from anyio import sleep

from taskbull import step
from taskbull.core.keys import QueueKeys
from taskbull.core.options import WorkerOptions
from taskbull.worker.running_job import RunningJob, current_job
from taskbull.worker.worker import Worker


async def main(url: str, prefix: str, count: int, worker_id: str) -> None:
    notes, keys = redis.Redis.from_url(url), QueueKeys("q", prefix=prefix)

    @step
    async def effect(number: int) -> int:
        job_id = current_job().id
        await sleep(random() * 0.004)
        if notes.hexists(keys.steps(job_id), f"step:effect#{number}"):
            notes.rpush(f"{prefix}-after-store", f"{job_id} {number}")
        notes.rpush(f"{prefix}-effects", f"{job_id} {number}")
        await sleep(random() * 0.004)
        return number

    async def handler(_: RunningJob) -> int:
        return sum([await effect(number) for number in range(1, count + 1)])

    options = WorkerOptions(
        worker_id=worker_id,
        concurrency=10,
        lock_duration=60,  # the test deletes the locks of a killed worker
        heartbeat_interval=0.2,
        stalled_interval=0.5,
        max_stalled_count=1000,
        drain_delay=0.2,
    )
    await Worker("q", handler, redis=url, prefix=prefix, options=options).run()


if __name__ == "__main__":
    url, prefix, steps, event_loop, worker_id = sys.argv[1:]
    anyio.run(main, url, prefix, int(steps), worker_id, backend=event_loop)

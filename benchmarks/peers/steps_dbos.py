"""Jobs of several steps on DBOS: `steps_dbos.py <url> <mode> <jobs> <steps> <at once>`."""

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS

url, mode = sys.argv[1:3]
jobs, steps, at_once = map(int, sys.argv[3:6])
DBOS(
    config={
        "name": "steps",
        "system_database_url": url,
        "log_level": "WARNING",
        "sys_db_pool_size": 20,
    }
)
WARM_UP = 20


@DBOS.step()
async def add(total: int, number: int) -> int:
    return total + number


@DBOS.workflow()
async def work() -> int:
    total = 0
    for number in range(steps):
        total = await add(total, number)
    return total


@DBOS.step()
def add_plainly(total: int, number: int) -> int:
    return total + number


@DBOS.workflow()
def work_plainly() -> int:
    total = 0
    for number in range(steps):
        total = add_plainly(total, number)
    return total


async def in_loop(count: int) -> None:
    slots = asyncio.Semaphore(at_once)

    async def run() -> None:
        async with slots:
            await work()

    await asyncio.gather(*(run() for _ in range(count)))


async def from_queue(count: int) -> None:
    await DBOS.register_queue_async("steps", worker_concurrency=at_once, polling_interval_sec=0.05)
    each = [DBOS.enqueue_workflow_async("steps", work) for _ in range(count)]
    for handle in await asyncio.gather(*each):
        await handle.get_result()


async def in_threads(count: int) -> None:
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(lambda _: work_plainly(), range(count)))


async def main() -> None:
    DBOS.launch()
    run = {"loop": in_loop, "threads": in_threads, "queue": from_queue}[mode]
    await run(WARM_UP)
    began, began_cpu = time.monotonic(), time.process_time()
    await run(jobs)
    seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
    print(json.dumps({"rate": jobs / seconds, "cpu": 1e6 * cpu / jobs}), flush=True)
    os._exit(0)  # Its threads wait for a minute otherwise.


asyncio.run(main())

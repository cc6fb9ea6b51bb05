"""Jobs of several steps on taskbull: `steps_taskbull.py <url> <jobs> <steps> <at once>`."""

from __future__ import annotations

import json
import sys
import time
from itertools import count

import anyio

from taskbull import App, step

url, jobs, steps, at_once = sys.argv[1], *map(int, sys.argv[2:5])
app = App("steps", redis=url, prefix=f"b{time.time_ns()}")
WARM_UP = 20
ended = anyio.Event()
numbers = count(1)
began: list[float] = []


@step
async def add(total: int, number: int) -> int:
    return total + number


@app.task
async def work() -> int:
    total = 0
    for number in range(steps):
        total = await add(total, number)
    done = next(numbers)
    if done == WARM_UP:
        began.extend((time.monotonic(), time.process_time()))
    if done == WARM_UP + jobs:
        ended.set()
    return total


async def main() -> None:
    await app.aenqueue([work.job() for _ in range(WARM_UP + jobs)])
    async with app.worker(concurrency=at_once).running():
        await ended.wait()
        seconds, cpu = time.monotonic() - began[0], time.process_time() - began[1]
    print(json.dumps({"rate": jobs / seconds, "cpu": 1e6 * cpu / jobs}))


anyio.run(main)

"""Streams of many jobs: delay of items, calls and CPU per item.

    python -m benchmarks.streams [--jobs N] [--rate N] [--seconds N] [--loop asyncio|trio]

A worker, a reader of all jobs and a Redis server run in processes of their own. An item is the time
when it was yielded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from statistics import median, quantiles
from typing import Any

import anyio
import redis

from benchmarks import servers
from taskbull import App
from taskbull.store.server_process import ServerProcess


def app_of(given: Namespace) -> App:
    app = App("streams", redis=given.url, queue="streams")

    @app.task(reduce=None)
    async def tick() -> AsyncIterator[float]:
        begin = time.monotonic() + 1 / given.rate
        for number in range(round(given.rate * given.seconds)):
            await anyio.sleep(max(0.0, begin + number / given.rate - time.monotonic()))
            yield time.monotonic()

    return app


async def work(given: Namespace) -> dict[str, Any]:
    """Run all jobs, and give the CPU time that it took."""
    app = app_of(given)
    async with app.worker(concurrency=given.jobs).running():
        before = time.process_time()
        ended = 0
        async for event in app.queue("streams").events(last_id="0"):
            ended += event.name in {"completed", "failed"}
            if ended == given.jobs:
                break
        return {"cpu": time.process_time() - before}


async def read(given: Namespace) -> dict[str, Any]:
    """Follow all jobs, and give the delays of their items."""
    app = app_of(given)
    delays: list[float] = []
    jobs = await app.aenqueue([app.tasks["tick"].job() for _ in range(given.jobs)])
    before = time.process_time()

    async def follow(job: Any) -> None:
        async for yielded in job.astream():
            delays.append(time.monotonic() - yielded)  # noqa: PERF401 - each when it arrives

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(follow, job)
    return {"cpu": time.process_time() - before, "delays": delays}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rate", type=float, default=50.0, help="items per second of each job")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--loop", default="asyncio")
    parser.add_argument("--server", default="valkey", help="valkey, redis, or a program")
    parser.add_argument("--role", choices=["work", "read"])
    parser.add_argument("--url")
    given = parser.parse_args()
    if given.role is not None:
        role = work if given.role == "work" else read
        print(json.dumps(anyio.run(role, given, backend=given.loop)))
        return
    with (
        ServerProcess(servers.binary(given.server)) as server,
        redis.Redis(port=server.port) as admin,
    ):
        words = [sys.executable, "-m", "benchmarks.streams", *sys.argv[1:], "--url", server.url]
        before = servers.spent([admin])
        sides = {
            role: subprocess.Popen([*words, "--role", role], stdout=subprocess.PIPE)
            for role in ("work", "read")
        }
        said = {role: json.loads(side.communicate()[0]) for role, side in sides.items()}
        spent = servers.spent([admin]) - before
        stats: Any = admin.info("commandstats")
        calls, reads = (stats[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "xread"))
    delays = [1000 * each for each in said["read"]["delays"]]
    count = len(delays)
    print(f"{given.jobs} jobs, {given.rate:g} items/s each, {count:,} items, {given.loop}")
    print(f"delay: median {median(delays):.1f} ms, 95 % {quantiles(delays, n=20)[-1]:.1f} ms")
    print(f"script calls: {calls:,}, one per {count / calls:.1f} items; reads: {reads:,}")
    for name, seconds in (
        ("worker", said["work"]["cpu"]),
        ("reader", said["read"]["cpu"]),
        ("server", spent.cpu),
    ):
        print(f"CPU of the {name}: {1e6 * seconds / count:.0f} µs per item")


if __name__ == "__main__":
    main()

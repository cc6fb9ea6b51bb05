"""Taskiq with a stream of Redis, which confirms jobs; results in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from .assignment import GIVEN, nap, perform

LOOP = "uvloop"
broker = RedisStreamBroker(url=GIVEN.url, queue_name=GIVEN.queues[0])
broker = broker.with_result_backend(RedisAsyncResultBackend(GIVEN.url))


@broker.task(task_name="quick")
async def quick(data: dict[str, Any]) -> dict[str, bool]:
    return perform(data["i"])


@broker.task(task_name="nap")
def plain(data: dict[str, Any]) -> dict[str, bool]:
    return nap(data["i"])


task = plain if GIVEN.task == "nap" else quick


class Producer:
    async def open(self) -> None:
        await broker.startup()

    async def add(self, data: dict[str, Any]) -> Any:
        return await task.kiq(data)

    async def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for at in range(0, len(datas), 100):
            await asyncio.gather(*[task.kiq(data) for data in datas[at : at + 100]])

    async def wait(self, added: Any) -> Any:
        return await added.wait_result(check_interval=0.001)

    async def close(self) -> None:
        await broker.shutdown()


def worker(at_once: int) -> list[str]:
    return [
        *("taskiq", "worker", "peers.taskiq:broker", "--workers", "1", "--log-level", "WARNING"),
        *("--max-async-tasks", str(at_once), "--max-threadpool-threads", str(at_once)),
    ]

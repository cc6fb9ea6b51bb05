"""arq, which looks for jobs in intervals: more often than by default."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import run_worker

from .assignment import GIVEN, HOST, PORT, body

LOOP = "uvloop"


async def task(context: dict[str, Any], data: dict[str, Any]) -> dict[str, bool]:
    return body(data["i"])


class WorkerSettings:
    functions = (task,)
    redis_settings = RedisSettings(host=HOST, port=int(PORT))
    max_jobs = GIVEN.at_once
    poll_delay = 0.01
    queue_read_limit = 1000


class Producer:
    async def open(self) -> None:
        self.pool = await create_pool(WorkerSettings.redis_settings)

    async def add(self, data: dict[str, Any], delay: float | None = None) -> Any:
        return await self.pool.enqueue_job("task", data, _defer_by=delay)

    async def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for at in range(0, len(datas), 100):
            await asyncio.gather(*[self.add(data) for data in datas[at : at + 100]])

    async def wait(self, job: Any) -> Any:
        return await job.result(poll_delay=0.001)

    async def close(self) -> None:
        await self.pool.aclose()


def worker(at_once: int) -> None:
    asyncio.set_event_loop(uvloop.new_event_loop())
    run_worker(WorkerSettings)

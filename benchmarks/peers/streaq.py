"""streaq, on asyncio with uvloop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from streaq import Worker

from .assignment import GIVEN, REST, nap, perform

LOOP = "uvloop"
queue = Worker(
    redis_url=GIVEN.url,
    queue_name=GIVEN.queues[0],
    concurrency=GIVEN.at_once,
    anyio_kwargs={"use_uvloop": True},
)


@queue.task(name="quick")
async def quick(data: dict[str, Any]) -> dict[str, bool]:
    return perform(data["i"])


@queue.task(name="nap")
def plain(data: dict[str, Any]) -> dict[str, bool]:
    return nap(data["i"])


@queue.task(name="rest")
async def rest(data: dict[str, Any]) -> dict[str, bool]:
    await asyncio.sleep(REST)
    return perform(data["i"])


task = {"nap": plain, "rest": rest}.get(GIVEN.task, quick)


class Producer:
    async def open(self) -> None:
        await queue.__aenter__()

    async def add(self, data: dict[str, Any], delay: float | None = None) -> Any:
        if delay is None:
            return await task.enqueue(data)
        return await task.enqueue(data).start(delay=delay)

    async def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        await queue.enqueue_many([task.enqueue(data) for data in datas])

    async def wait(self, job: Any) -> Any:
        return await job.result()

    async def close(self) -> None:
        await queue.__aexit__(None, None, None)


def worker(at_once: int) -> None:
    logging.disable(logging.INFO)
    queue.run_sync()

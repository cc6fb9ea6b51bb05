"""SAQ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvloop
from saq import Queue
from saq.worker import start

from .assignment import GIVEN, body

LOOP = "uvloop"
queue = Queue.from_url(GIVEN.url, name=GIVEN.queues[0])


async def task(context: dict[str, Any], *, data: dict[str, Any]) -> dict[str, bool]:
    return body(data["i"])


settings = {"queue": queue, "functions": [("task", task)], "concurrency": GIVEN.at_once}


class Producer:
    async def open(self) -> None:
        await queue.connect()

    async def add(self, data: dict[str, Any]) -> Any:
        return await queue.enqueue("task", data=data)

    async def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for at in range(0, len(datas), 100):
            await asyncio.gather(*[self.add(data) for data in datas[at : at + 100]])

    async def wait(self, job: Any) -> None:
        """Ask each ms, as `queue.apply(poll_interval=0.001)` does."""
        while not job.completed:
            await asyncio.sleep(0.001)
            await job.refresh()

    async def close(self) -> None:
        await queue.disconnect()


def worker(at_once: int) -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    start("peers.saq.settings")

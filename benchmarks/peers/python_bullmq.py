"""The port of BullMQ on PyPI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvloop
from bullmq import Queue, QueueEvents, Worker

from .assignment import GIVEN, body

LOOP = "uvloop"
OPTIONS = {"connection": GIVEN.url}
NAME = GIVEN.queues[0]


class Producer:
    async def open(self) -> None:
        self.queue = Queue(NAME, OPTIONS)
        self.ended: set[str] = set()
        self.waiting: dict[str, asyncio.Future[None]] = {}
        if GIVEN.results:
            self.events = QueueEvents(NAME, OPTIONS)
            self.events.on("completed", self._completed)
            await asyncio.sleep(0.5)  # it does not say when it has begun to listen

    async def add(self, data: dict[str, Any], **options: Any) -> Any:
        return await self.queue.add("quick", data, in_ms(options))

    async def add_many(self, datas: Sequence[dict[str, Any]], **options: Any) -> None:
        opts = in_ms(options)
        await self.queue.addBulk([{"name": "quick", "data": one, "opts": opts} for one in datas])

    async def wait(self, job: Any) -> None:
        """Wait by hand: it has no waitUntilFinished."""
        if job.id in self.ended:
            self.ended.discard(job.id)
            return
        self.waiting[job.id] = asyncio.get_running_loop().create_future()
        await self.waiting[job.id]

    async def close(self) -> None:
        await self.queue.close()

    def _completed(self, event: dict[str, Any], *_: Any) -> None:
        future = self.waiting.pop(event["jobId"], None)
        if future is None:
            self.ended.add(event["jobId"])
        else:
            future.set_result(None)


def in_ms(options: dict[str, Any]) -> dict[str, Any]:
    if "delay" in options:
        options = {**options, "delay": round(options["delay"] * 1000)}
    return options


async def process(job: Any, token: str) -> dict[str, bool]:
    return body(job.data["i"])


def worker(at_once: int) -> None:
    async def main() -> None:
        Worker(NAME, process, {**OPTIONS, "concurrency": at_once})
        await asyncio.Event().wait()

    uvloop.run(main())

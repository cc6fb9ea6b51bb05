"""Docket, on asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from docket import Docket, Worker

from .assignment import GIVEN, REST, perform

LOOP = "asyncio"


async def quick(data: dict[str, Any]) -> dict[str, bool]:
    return perform(data["i"])


async def rest(data: dict[str, Any]) -> dict[str, bool]:
    await asyncio.sleep(REST)
    return perform(data["i"])


task = rest if GIVEN.task == "rest" else quick


def opened() -> Docket:
    docket = Docket(name=GIVEN.queues[0], url=GIVEN.url)
    docket.register(task)
    return docket


class Producer:
    async def open(self) -> None:
        self.docket = await opened().__aenter__()

    async def add(self, data: dict[str, Any]) -> Any:
        return await self.docket.add(task)(data)

    async def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for data in datas:
            await self.docket.add(task)(data)

    async def close(self) -> None:
        await self.docket.__aexit__(None, None, None)


def worker(at_once: int) -> None:
    logging.disable(logging.INFO)

    async def run() -> None:
        often = timedelta(milliseconds=10)
        async with (
            opened() as docket,
            Worker(docket, concurrency=at_once, minimum_check_interval=often) as made,
        ):
            await made.run_forever()

    asyncio.run(run())

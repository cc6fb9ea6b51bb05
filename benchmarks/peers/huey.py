"""Huey with threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huey import RedisHuey

from .assignment import GIVEN, body

LOOP = "sync"
# Without `notify_result` a waiter asks again and again; with it a job costs more.
huey = RedisHuey(GIVEN.queues[0], url=GIVEN.url, notify_result=GIVEN.results)


@huey.task(name="quick")
def task(data: dict[str, Any]) -> dict[str, bool]:
    return body(data["i"])


class Producer:
    def open(self) -> None:
        pass

    def add(self, data: dict[str, Any]) -> Any:
        return task(data)

    def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for data in datas:
            task(data)

    def wait(self, result: Any) -> Any:
        return result(blocking=True)

    def close(self) -> None:
        pass


def worker(at_once: int) -> list[str]:
    return ["huey_consumer", "peers.huey.huey", "-w", str(at_once), "-k", "thread", "-q"]

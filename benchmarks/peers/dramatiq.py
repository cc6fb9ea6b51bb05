"""Dramatiq with its Redis broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from .assignment import CORES, GIVEN, body

LOOP = "sync"
broker = RedisBroker(url=GIVEN.url)
if GIVEN.results:
    broker.add_middleware(Results(backend=RedisBackend(url=GIVEN.url), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=GIVEN.queues[0])
def task(data: dict[str, Any]) -> dict[str, bool] | None:
    result = body(data["i"])
    return result if GIVEN.results else None  # it warns of a result that nobody keeps


class Producer:
    def open(self) -> None:
        pass

    def add(self, data: dict[str, Any], delay: float | None = None) -> Any:
        if delay is None:
            return task.send(data)
        return task.send_with_options(args=(data,), delay=round(delay * 1000))

    def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for data in datas:
            task.send(data)

    def wait(self, message: Any) -> Any:
        return message.get_result(block=True)

    def close(self) -> None:
        pass


def worker(at_once: int) -> list[str]:
    count = ["-p", "1", "-t", str(at_once)]
    if GIVEN.task == "compute":
        count = ["-p", str(CORES), "-t", "1"]
    return ["dramatiq", "peers.dramatiq", *count, "--skip-logging"]

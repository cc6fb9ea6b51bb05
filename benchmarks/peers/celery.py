"""Celery with Redis as its broker and for results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery

from .assignment import CORES, GIVEN, body

LOOP = "sync"
app = Celery("benchmark", broker=GIVEN.url, backend=GIVEN.url)
app.conf.update(
    task_default_queue=GIVEN.queues[0],
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="quick")
def task(data: dict[str, Any]) -> dict[str, bool]:
    return body(data["i"])


class Producer:
    def open(self) -> None:
        self.producer = app.producer_pool.acquire(block=True)

    def add(self, data: dict[str, Any], delay: float | None = None) -> Any:
        if delay is None:
            return task.delay(data)
        return task.apply_async((data,), countdown=delay)

    def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        for data in datas:
            task.apply_async((data,), producer=self.producer)

    def wait(self, result: Any) -> Any:
        return result.get()

    def close(self) -> None:
        pass


def worker(at_once: int) -> list[str]:
    if GIVEN.task in ("nap", "rest"):
        pool = ["-P", "threads", "-c", str(at_once)]
    elif at_once == 1:
        pool = ["-P", "solo"]
    else:
        pool = ["-P", "prefork", "-c", str(min(at_once, CORES))]
    quiet = ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    return ["celery", "-A", "peers.celery", "worker", *pool, *quiet]

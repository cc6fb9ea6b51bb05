"""RQ without a fork per job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue

from .assignment import CORES, GIVEN, body

LOOP = "sync"
NAME = GIVEN.queues[0]
TASK = "peers.rq.task"


def task(data: dict[str, Any]) -> dict[str, bool]:
    return body(data["i"])


class Producer:
    def open(self) -> None:
        self.queue = Queue(NAME, connection=Redis.from_url(GIVEN.url))

    def add(self, data: dict[str, Any]) -> Any:
        return self.queue.enqueue(TASK, data)

    def add_many(self, datas: Sequence[dict[str, Any]]) -> None:
        self.queue.enqueue_many([Queue.prepare_data(TASK, args=(data,)) for data in datas])

    def wait(self, job: Any) -> Any:
        return job.latest_result(timeout=10)

    def close(self) -> None:
        pass


def worker(at_once: int) -> list[str]:
    kind = ["-w", "rq.worker.SimpleWorker", "-u", GIVEN.url]
    if at_once == 1:
        return ["rq", "worker", "-q", *kind, NAME]
    return ["rq", "worker-pool", "-q", *kind, "-n", str(min(at_once, CORES)), NAME]

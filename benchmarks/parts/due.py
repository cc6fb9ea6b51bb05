"""Many jobs that are due at one moment: when are they done, and who else has to wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import redis

from benchmarks.catalogue import Side
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, SideFailed, Stage
from benchmarks.table import percentile

JOBS = 20_000
ADDING = (5_000, 1_500)
"""Jobs per second that are surely added before the moment: on most machines, and on busy ones."""
PING_EVERY = 0.002


class Bystander:
    """Another user of the same server, who asks for little and notes how long it takes."""

    def __init__(self, port: int) -> None:
        self.ms: list[float] = []
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ping)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ping(self) -> None:
        with redis.Redis(port=self._port) as client:
            while not self._over.wait(PING_EVERY):
                began = time.perf_counter()
                client.ping()
                self.ms.append((time.perf_counter() - began) * 1000)


def due(bench: Bench, side: Side) -> Values:
    """Let jobs become due at one moment in front of a worker that waits for them."""
    jobs = bench.count(JOBS)
    for speed in ADDING:
        with Stage(bench, side, Setting(slots=jobs, at_once=100)) as stage:
            stage.start_idle()
            stage.ticks.clear()
            moment = stage.produce("in_bulk", count=jobs, due_in=0.5 + jobs / speed)["moment"]
            if time.monotonic() < moment:
                return watched(stage, jobs, moment)
    raise SideFailed(f"{side.name}: the jobs were due before all were added")


def watched(stage: Stage, jobs: int, moment: float) -> Values:
    """Look on from the moment until all jobs have run."""
    time.sleep(max(0.0, moment - time.monotonic() - 0.1))
    admin = stage.admins[0]
    admin.slowlog_reset()
    with Bystander(stage.ports[0]) as bystander:
        if not stage.await_jobs(jobs, 30.0):
            raise SideFailed(f"{stage.name}: not all jobs ran in 30 s")
    slow: Any = admin.slowlog_get(1000)
    return {
        "seconds": max(stage.ticks.times()) / 1e9 - moment,
        "slowest": max((one["duration"] / 1000 for one in slow), default=1.0),
        "ping_p99": percentile(bystander.ms, 99),
        "ping_max": max(bystander.ms),
    }


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    return [Case(side, f"{bench.count(JOBS):,} due", partial(due, bench, side)) for side in sides]


PART = Part(
    "due",
    "20,000 delayed jobs become due at the same time, while a worker with concurrency 100 "
    "waits. The slowest call comes from the server's SLOWLOG, where 1 ms is the minimum. "
    "Another client sends a PING every 2 ms.",
    (
        Metric("seconds", "s until all have run", 2, compared=True),
        Metric("slowest", "slowest call, ms"),
        Metric("ping_p99", "PING p99, ms"),
        Metric("ping_max", "PING max, ms"),
    ),
    cases,
)

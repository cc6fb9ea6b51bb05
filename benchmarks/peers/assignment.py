"""What a process of a benchmark is told to do, and the body of the task that every peer runs."""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from typing import Any, NamedTuple


class Assignment(NamedTuple):
    """Comes from the environment, so that a peer's own command line can start a worker."""

    url: str
    ticks: str
    """The file where each job notes when it ran."""
    slots: int
    """How many jobs it has room for, eight bytes each."""
    queues: list[str]
    variant: str = ""
    task: str = "quick"
    at_once: int = 10
    processes: int = 0
    """If not 0: by the peer's own command line, which runs so many."""
    results: bool = False
    """Whether results are asked for: not all peers keep them unless told to."""


GIVEN = Assignment(**json.loads(os.environ["BENCHMARK"]))
HOST, PORT = GIVEN.url.split("//")[1].split(",")[0].split("/")[0].split(":")
CORES = os.cpu_count() or 1
RESULT = {"ok": True}
REST = 0.020

with open(GIVEN.ticks, "r+b") as _file:
    _ticks = memoryview(mmap.mmap(_file.fileno(), 0)).cast("q")


def data(index: int, size: int = 78) -> dict[str, Any]:
    """Give the data of a job: about 100 bytes of JSON, unless told."""
    return {"i": index, "pad": "x" * size}


def perform(index: int) -> dict[str, bool]:
    """Note the time in the job's slot (0.2 µs) and give a small result."""
    if 0 <= index < len(_ticks):
        _ticks[index] = time.monotonic_ns()
    return RESULT


def nap(index: int) -> dict[str, bool]:
    """Wait for a millisecond, as a function does that talks to something else."""
    time.sleep(0.001)
    return perform(index)


def rest(index: int) -> dict[str, bool]:
    """Wait for 20 ms, as most jobs wait for something else."""
    time.sleep(REST)
    return perform(index)


def compute(index: int) -> dict[str, bool]:
    """Keep a core busy for 5 to 10 ms, in pure Python."""
    total = 0
    for number in range(100_000):
        total += number * number
    return perform(index)


def infer(indices: list[int]) -> list[dict[str, bool]]:
    """Do what a model does for some items, one call at a time."""
    with _model:
        time.sleep(0.020 + 0.0001 * len(indices))
    return [perform(index) for index in indices]


_model = threading.Lock()

body = {"nap": nap, "rest": rest, "compute": compute}.get(GIVEN.task, perform)

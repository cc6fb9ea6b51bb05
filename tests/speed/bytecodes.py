"""Bytecode instructions per job, counted in a separate process.

    python -m tests.speed.bytecodes URL asyncio|trio

Counted in the main thread, by tracing: the same on any machine, but not on every version of Python.
Prints one JSON object: for each way to add or run jobs, all instructions per job and those of
taskbull's own code among them.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import anyio

import taskbull
from taskbull import App, Keep

ALONE = 200
TOGETHER = 1000
AT_ONCE = {1: ALONE, 100: 2 * TOGETHER}
"""The concurrency, and the number of counted jobs: batches blur both ends."""

WARM_UP = 200
_OURS = str(Path(taskbull.__file__).parent)


class Meter:
    """Counts instructions by the code they are of, while it runs."""

    def __init__(self) -> None:
        self._counts: dict[CodeType, int] = {}

    def start(self) -> None:
        self._counts = {}
        gc.collect()
        gc.disable()
        sys.settrace(self._enter)

    def stop(self, jobs: int) -> dict[str, float]:
        """Give what was counted, per job."""
        sys.settrace(None)
        gc.enable()
        ours = sum(n for code, n in self._counts.items() if code.co_filename.startswith(_OURS))
        return {"all": sum(self._counts.values()) / jobs, "taskbull": ours / jobs}

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts, code = self._counts, frame.f_code
        counts.setdefault(code, 0)

        def count(frame: FrameType, event: str, arg: object) -> Any:
            if event == "opcode":
                counts[code] += 1
            return count

        return count


class Bench:
    """An app whose jobs do nothing, and the figures that were found."""

    def __init__(self, url: str) -> None:
        self.app = App(
            "counted", redis=url, queue="q", keep_completed=Keep.all(), keep_failed=Keep.all()
        )
        self.found: dict[str, dict[str, float]] = {}
        self._meter = Meter()
        self._begun = 0
        self._first = self._last = sys.maxsize
        self._name = ""
        self._counted = anyio.Event()

        @self.app.task(name="noop")
        async def noop(number: int) -> None:
            self._note()

        self.noop = noop

    def _note(self) -> None:
        self._begun += 1
        if self._begun == self._first:
            self._meter.start()
        elif self._begun == self._last:
            self.found[self._name] = self._meter.stop(self._last - self._first)
            self._counted.set()

    @contextmanager
    def counted(self, name: str, jobs: int) -> Iterator[None]:
        self._meter.start()
        yield
        self.found[name] = self._meter.stop(jobs)

    def add(self) -> None:
        """Add jobs without an event loop."""
        for number in range(WARM_UP):
            self.noop.delay(number)
        with self.counted("delay", ALONE):
            for number in range(ALONE):
                self.noop.delay(number)
        self.app.enqueue([self.noop.job(number) for number in range(WARM_UP)])
        with self.counted("enqueue", TOGETHER):
            self.app.enqueue([self.noop.job(number) for number in range(TOGETHER)])

    async def add_async(self) -> None:
        """Add jobs in an event loop: one by one, from many tasks, in bulk."""
        for number in range(WARM_UP):
            await self.noop.adelay(number)
        with self.counted("adelay", ALONE):
            await self._add_alone()
        with self.counted("adelay from 100 tasks", TOGETHER):
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(self._add_alone, TOGETHER // 100)
        with self.counted("aenqueue", TOGETHER):
            await self.app.aenqueue([self.noop.job(number) for number in range(TOGETHER)])

    async def _add_alone(self, jobs: int = ALONE) -> None:
        for number in range(jobs):
            await self.noop.adelay(number)

    async def work(self, at_once: int, jobs: int) -> None:
        """Run jobs in a worker, and count between two of them."""
        await self.app.aenqueue([self.noop.job(n) for n in range(WARM_UP + jobs + at_once)])
        self._name, self._counted = f"worker at {at_once}", anyio.Event()
        self._first = self._begun + WARM_UP
        self._last = self._first + jobs
        async with self.app.worker(["q"], concurrency=at_once).running():
            await self._counted.wait()


async def _in_loop(bench: Bench) -> None:
    await bench.add_async()
    await bench.app.queue("q").obliterate(force=True)
    for at_once, jobs in AT_ONCE.items():
        await bench.work(at_once, jobs)
        await bench.app.queue("q").obliterate(force=True)


def main() -> None:
    if sys.gettrace() is not None:
        sys.exit("somebody else traces this process: coverage, or a debugger")
    url, loop = sys.argv[1:]
    bench = Bench(url)
    if loop == "asyncio":
        bench.add()
    anyio.run(_in_loop, bench, backend=loop)
    print(json.dumps(bench.found))


if __name__ == "__main__":
    main()

"""taskbull itself; variants: sync, asyncio, uvloop, trio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyio import sleep
from msgspec import Struct

from taskbull import App, JobHandle, Keep

from .assignment import CORES, GIVEN, REST, compute, infer, nap, perform

LOOP = GIVEN.variant
app = App(
    "benchmark",
    redis=GIVEN.url,
    queue=GIVEN.queues[0],
    keep_completed=Keep.all(),
    keep_failed=Keep.all(),
)


@app.task
async def quick(i: int, pad: str) -> dict[str, bool]:
    return perform(i)


@app.task(name="nap")
def plain(i: int, pad: str) -> dict[str, bool]:
    return nap(i)


@app.task(name="rest")
async def rest(i: int, pad: str) -> dict[str, bool]:
    await sleep(REST)
    return perform(i)


class Item(Struct):
    i: int
    pad: str


@app.task
def model(i: int, pad: str) -> dict[str, bool]:
    return infer([i])[0]


TASKS: dict[str, Any] = {"nap": plain, "rest": rest, "model": model}
task = TASKS.get(GIVEN.task, quick)

# What an older checkout may not know is asked of it only where it is measured.
if GIVEN.task == "compute":

    @app.task(name="compute", process=True)
    def heavy(i: int, pad: str) -> dict[str, bool]:
        return compute(i)

    task = heavy

if GIVEN.task == "batch":  # else its worker would need as many slots

    @app.batch_task(size=32)
    def batch(items: list[Item]) -> list[dict[str, bool]]:
        return infer([item.i for item in items])

    task = batch


class SyncProducer:
    def open(self) -> None:
        pass

    def add(self, data: dict[str, Any], **options: Any) -> JobHandle[Any]:
        made = task.options(**options) if options else task
        job: JobHandle[Any] = made.delay(**data)
        return job

    def add_many(self, datas: Sequence[dict[str, Any]], **options: Any) -> None:
        app.enqueue(specs(datas, options))

    def add_flow(self, data: dict[str, Any], datas: Sequence[dict[str, Any]]) -> None:
        task.after(task.job(**each) for each in datas).delay(**data)

    def wait(self, job: JobHandle[Any]) -> Any:
        return job.result(timeout=30)

    def close(self) -> None:
        app.close()


class AsyncProducer:
    async def open(self) -> None:
        pass

    async def add(self, data: dict[str, Any], **options: Any) -> JobHandle[Any]:
        made = task.options(**options) if options else task
        job: JobHandle[Any] = await made.adelay(**data)
        return job

    async def add_many(self, datas: Sequence[dict[str, Any]], **options: Any) -> None:
        await app.aenqueue(specs(datas, options))

    async def add_flow(self, data: dict[str, Any], datas: Sequence[dict[str, Any]]) -> None:
        await task.after(task.job(**each) for each in datas).adelay(**data)

    async def wait(self, job: JobHandle[Any]) -> Any:
        return await job.aresult(timeout=30)

    async def close(self) -> None:
        pass


def specs(datas: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[Any]:
    """Make the jobs, shared out over the queues."""
    if len(GIVEN.queues) == 1 and not options:
        return [task.job(**data) for data in datas]
    made = [task.options(queue=queue, **options) for queue in GIVEN.queues]
    return [made[data["i"] % len(made)].job(**data) for data in datas]


Producer = SyncProducer if LOOP == "sync" else AsyncProducer


def worker(at_once: int) -> list[str] | None:
    backend = "trio" if LOOP == "trio" else "asyncio"
    if GIVEN.processes:
        return [
            *("taskbull", "worker", "peers.taskbull:app", "-q", ",".join(GIVEN.queues)),
            "--any-queue",
            *("--processes", str(GIVEN.processes), "-c", str(at_once), "--log-level", "warning"),
        ]
    if GIVEN.task == "compute":
        at_once = 2 * CORES  # so that each process finds its next job; others prefetch more
    threads: dict[str, Any] = {}
    if GIVEN.task == "nap":
        threads = {"threads": at_once}
        at_once *= 2  # so that each thread finds its next job; Dramatiq prefetches as many
    app.run(GIVEN.queues, backend=backend, uvloop=LOOP == "uvloop", concurrency=at_once, **threads)
    return None

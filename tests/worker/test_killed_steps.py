"""Workers are killed while jobs run steps: a step is repeated only if a kill hit it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from anyio import sleep, to_thread

from tests.worker.bed import WorkerBed, until
from tests.worker.scale import ROUGH_KINDS, SEED

pytestmark = pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)

LIMIT = 600.0


def text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode()


class Crew:
    """Worker processes on one queue, and the kills that hit each job."""

    def __init__(self, bed: WorkerBed, event_loop: str, steps: int, stack: ExitStack) -> None:
        self._bed, self._event_loop, self._steps, self._stack = bed, event_loop, steps, stack
        self._started = 0
        self.hit: Counter[str] = Counter()

    def _active(self, worker_id: str) -> list[str]:
        keys, admin = self._bed.keys, self._bed.admin
        ids = [text(raw) for raw in admin.lrange(keys.active, 0, -1)]
        return [one for one in ids if admin.hget(keys.job(one), "pb") == worker_id.encode()]

    async def start(self) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a worker, and return when it runs jobs or none is left."""
        self._started += 1
        worker_id = f"worker-{self._started}"
        process = await to_thread.run_sync(self._spawn, worker_id)
        await until(lambda: bool(self._active(worker_id)) or self.is_over(), LIMIT)
        return worker_id, process

    def _spawn(self, worker_id: str) -> subprocess.Popen[bytes]:
        words = [self._bed.url, self._bed.prefix, str(self._steps), self._event_loop, worker_id]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.stepping_worker", *words],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def kill(self, worker_id: str, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for job_id in self._active(worker_id):
            self.hit[job_id] += 1
            self._bed.admin.delete(self._bed.keys.lock(job_id))

    def is_over(self) -> bool:
        keys, admin = self._bed.keys, self._bed.admin
        return not (admin.llen(keys.wait) or admin.llen(keys.active) or admin.zcard(keys.delayed))


@pytest.mark.parametrize("event_loop", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("jobs", "steps", "kills"),
    [(40, 5, 2), pytest.param(2_000, 20, 40, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_only_the_interrupted_step_repeats_after_a_worker_is_killed(
    bed: WorkerBed, event_loop: str, jobs: int, steps: int, kills: int
) -> None:
    random = Random(SEED)
    with ExitStack() as stack:
        crew = Crew(bed, event_loop, steps, stack)
        specs = [bed.queue.job("work", keep_completed=None, attempts=1)] * jobs
        ids = [handle.id for handle in await bed.queue.add_bulk(specs)]
        working = [await crew.start()]
        for _ in range(kills):
            working.append(await crew.start())
            await sleep(random.random() * 0.2)
            crew.kill(*working.pop(0))
        await until(crew.is_over, LIMIT)
    admin, keys = bed.admin, bed.keys
    assert admin.zcard(keys.completed) == jobs
    assert {admin.hget(keys.job(one), "returnvalue") for one in ids} == {
        str(sum(range(1, steps + 1))).encode()
    }
    assert admin.lrange(f"{bed.prefix}-after-store", 0, -1) == []
    effects = Counter(text(raw) for raw in admin.lrange(f"{bed.prefix}-effects", 0, -1))
    assert len(effects) == jobs * steps
    repeated = {each: count for each, count in effects.items() if count > 1}
    assert all(count <= 1 + crew.hit[each.split()[0]] for each, count in repeated.items())
    per_job = Counter(each.split()[0] for each in repeated)
    assert all(count <= crew.hit[job_id] for job_id, count in per_job.items())
    admin.delete(f"{bed.prefix}-effects", f"{bed.prefix}-after-store")

"""Workers are killed under load: all jobs finish, and only those that were running repeat."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic

import pytest
from anyio import fail_after, sleep, to_thread

from tests.worker.bed import WorkerBed, until
from tests.worker.killed_worker import STALLED_INTERVAL
from tests.worker.looking import ends, keep_all_entries, listed
from tests.worker.scale import ROUGH_KINDS, SEED, scaled

KILLS = scaled(2, 20)  # per event loop
BACKLOG = 200

pytestmark = pytest.mark.parametrize("server", ROUGH_KINDS, indirect=True)


class Herd:
    """Worker processes on one queue, and the ledger of their runs."""

    def __init__(self, bed: WorkerBed, event_loop: str, stack: ExitStack) -> None:
        self._bed = bed
        self._event_loop = event_loop
        self._stack = stack
        self._ledger = f"{bed.prefix}-ledger"
        self._started = 0
        self.ids: list[str] = []
        self.interrupted: Counter[str] = Counter()
        keep_all_entries(bed)

    @property
    def runs(self) -> Counter[str]:
        return Counter(listed(self._bed, self._ledger))

    @property
    def completed(self) -> int:
        return int(self._bed.admin.zcard(self._bed.keys.completed))

    async def start(self) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a worker, and return when it runs jobs."""
        await self.feed()
        self._started += 1
        worker_id = f"worker-{self._started}"
        words = (self._bed.url, self._bed.prefix, self._ledger, self._event_loop, worker_id)
        process = await to_thread.run_sync(self._spawn, words)
        while not self.active(worker_id):
            await self.feed()
            await sleep(0.01)
        return worker_id, process

    def _spawn(self, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.killed_worker", *words],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    async def feed(self) -> None:
        """See to it that there is work."""
        while self._bed.admin.llen(self._bed.keys.wait) < BACKLOG:
            jobs = [self._bed.queue.job("work", keep_completed=None)] * BACKLOG
            self.ids += [handle.id for handle in await self._bed.queue.add_bulk(jobs)]

    def active(self, worker_id: str) -> list[str]:
        """Give the jobs that a worker runs, as Redis has it."""
        keys, name = self._bed.keys, worker_id.encode()
        return [
            job_id
            for job_id in listed(self._bed, keys.active)
            if self._bed.admin.hget(keys.job(job_id), "pb") == name
        ]

    async def kill(self, worker_id: str, process: subprocess.Popen[bytes]) -> float:
        """Kill a worker. Return the seconds until the last of its jobs was waiting again."""
        process.kill()
        process.wait()
        killed_at = monotonic()
        left = self.active(worker_id)
        self.interrupted.update(left)
        expired: set[str] = set()
        with fail_after(60):
            # Redis may execute a last command of the dead worker only now.
            while left := self.active(worker_id):
                for job_id in set(left) - expired:  # only once: the next lock is another worker's
                    self._bed.admin.delete(self._bed.keys.lock(job_id))
                expired.update(left)
                await self.feed()
                await sleep(0.01)
        return monotonic() - killed_at


@pytest.fixture
def herd(bed: WorkerBed, anyio_backend_name: str) -> Iterator[Herd]:
    with ExitStack() as stack:
        yield Herd(bed, anyio_backend_name, stack)


async def test_no_job_is_lost_when_workers_are_killed(
    herd: Herd, bed: WorkerBed
) -> None:  # NFR-2, FR-3
    random = Random(SEED)
    delays: list[float] = []
    with fail_after(120 + 10 * KILLS):
        victim = await herd.start()
        for _ in range(KILLS):
            successor = await herd.start()
            await herd.feed()
            await sleep(random.random() * 0.1)
            delays.append(await herd.kill(*victim))
            victim = successor
        await until(lambda: herd.completed == len(herd.ids), 60)
    runs = herd.runs
    repeats = {job_id: count - 1 for job_id, count in runs.items() if count > 1}
    print(
        f"{len(herd.ids)} jobs, {KILLS} kills of workers with {herd.interrupted.total()} jobs, "
        f"{sum(repeats.values())} runs repeated; put back after {max(delays):.2f} s at the most "
        f"(a sweep is due every {STALLED_INTERVAL} s), seed {SEED}"
    )
    assert herd.interrupted.total() > 0
    assert set(runs) == set(herd.ids)
    for job_id, count in repeats.items():
        assert count <= herd.interrupted[job_id], f"job {job_id} was repeated without need"
    assert ends(bed) == Counter(herd.ids)
    assert await bed.count("active") == 0

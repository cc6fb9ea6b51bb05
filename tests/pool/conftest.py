"""A module with an app, a worker with a pool, and a check for leftovers."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taskbull.app.app import App, load_app
from taskbull.core import events
from taskbull.worker.worker import Worker
from tests.pool.tasks import TASKS
from tests.servers.kinds import KINDS, Reachable, SharedServers
from tests.worker.bed import Recorder, until

CHILD = b"taskbull.app.pool.child"


def pool_processes(worker: int | None = None) -> set[int]:
    """Find the processes of the pools of a worker process, this one's unless named."""
    parent = str(worker or os.getpid()).encode()
    return {pid for pid, words in _programs() if CHILD in words and parent in words}


def _programs() -> Iterator[tuple[int, list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue


def lives(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_there(pid: int) -> bool:
    """Return True if a process exists, even as a zombie."""
    return Path(f"/proc/{pid}").exists()


class PoolBed:
    """An app in its own module, whose tasks run in processes."""

    def __init__(self, app: App, folder: Path) -> None:
        self.app = app
        self.folder = folder
        self.record = Recorder()
        self.seen: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return self.app.tasks[name]

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        """Run a worker, and check that none of its processes is left, not even as a zombie."""
        options.setdefault("process_pool", 1)
        metrics = options.pop("metrics", None)
        worker = self.app.worker(**options)
        if metrics is not None:
            worker.measure(metrics)
        worker.on(events.Event, self.record)
        try:
            async with worker.running():
                self.seen |= worker.pids
                yield worker
                self.seen |= worker.pids
        finally:
            assert pool_processes() == set()
            assert [pid for pid in self.seen if is_there(pid)] == []

    async def result(self, task: str, *args: Any, **kwargs: Any) -> Any:
        """Add a job and wait for its result."""
        handle = await self.app.tasks[task].adelay(*args, **kwargs)
        return await handle.aresult(timeout=60)

    async def ended(self, task: str, *args: Any, **kwargs: Any) -> Any:
        """Add a job, and return the event about its end."""
        handle = await self.app.tasks[task].adelay(*args, **kwargs)
        [event] = await self.record.wait_for(
            events.Ended, where=lambda event: event.job.id == handle.id, limit=30
        )
        return event

    async def file(self, name: str) -> str:
        """Wait for a file that a task writes, and return its content."""
        path = self.folder / name
        await until(path.exists)
        return path.read_text()


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind is enough here, because lower layers handle the differences."""
    return shared_servers.emptied(KINDS[0])


@pytest.fixture
def write_app(
    server: Reachable, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """Write a module with an app, and more code at its end. Return the app's target."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    modules: list[str] = []

    def write(more: str = "") -> str:
        module = f"pool_{uuid.uuid4().hex[:8]}"
        source = TASKS.format(url=server.url, prefix=prefix)
        (tmp_path / f"{module}.py").write_text(source + more)
        modules.append(module)
        return f"{module}:app"

    yield write
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def make_bed(write_app: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[[str], PoolBed]]:
    beds: list[PoolBed] = []

    def make(more: str = "") -> PoolBed:
        beds.append(PoolBed(load_app(write_app(more)), tmp_path))
        return beds[-1]

    yield make
    for bed in beds:
        bed.app.close()


@pytest.fixture
def bed(make_bed: Callable[[str], PoolBed]) -> PoolBed:
    return make_bed("")

"""Two terminals and no server installed: producer and worker meet on the embedded one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskbull.queue.queue import SyncQueue
from taskbull.store import embedded
from tests.cli.programs import Terminal
from tests.servers.waiting import wait_until

TASKS = """
import anyio
from taskbull import App, current_job

app = App("notes", redis="embedded://")

@app.task
async def note(n: int) -> int:
    await anyio.sleep(0.01)
    return n
"""

SEND = """
import sys
from tasks import app, note
handles = app.enqueue([note.job(n) for n in range(int(sys.argv[1]))])
print(handles[-1].id)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "send.py").write_text(SEND)
    yield tmp_path
    embedded.stop(tmp_path / ".taskbull")


@pytest.fixture
def queue(folder: Path) -> Iterator[SyncQueue]:
    queue = SyncQueue("default", redis=f"embedded://{folder}/.taskbull")
    yield queue
    queue.close()


def send(folder: Path, count: int) -> str:
    words = [sys.executable, "send.py", str(count)]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_jobs_continue_after_the_worker_was_killed_and_started_again(
    folder: Path, queue: SyncQueue, backend: str
) -> None:
    send(folder, 300)
    # Few lines: nobody reads them while we wait, and a full terminal would hold the worker up.
    words = ["worker", "tasks:app", "--backend", backend, "-c", "5", "--log-level", "error"]
    with Terminal(*words, cwd=folder) as first:
        wait_until(lambda: queue.counts()["completed"] > 20, "some jobs are done")
        first.send(signal.SIGKILL)
        first.end()
    left = queue.counts()
    assert left["completed"] < 300
    with Terminal(*words, cwd=folder) as second:
        # Those that ran when it died come back when their locks have expired.
        done = 300 - left["active"]
        wait_until(lambda: queue.counts()["completed"] >= done, "the others are done")
        second.send(signal.SIGTERM)
        assert second.end() == 0
    counts = queue.counts()
    assert counts["completed"] + counts["active"] + counts["waiting"] == 300


@pytest.mark.full
def test_jobs_survive_a_restart_of_the_server(folder: Path) -> None:
    last = send(folder, 20)
    embedded.stop(folder / ".taskbull")
    with Terminal("worker", "tasks:app", "--burst", cwd=folder) as worker:
        assert worker.end() == 0
    assert f"Job {last} (note) in queue default completed" in worker.seen

"""`taskbull stop` stops a project's embedded server and keeps its jobs."""

from __future__ import annotations

from pathlib import Path

from taskbull.queue.queue import SyncQueue
from tests.cli.programs import run


def test_the_server_is_stopped_and_its_jobs_are_kept(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/.taskbull"
    queue = SyncQueue("q", redis=url)
    queue.add("work")
    queue.close()
    done = run("stop", cwd=tmp_path)
    assert (done.returncode, "stopped the server" in done.stdout) == (0, True)
    assert "no server is running" in run("stop", cwd=tmp_path).stdout
    again = SyncQueue("q", redis=url)
    assert again.counts()["waiting"] == 1
    again.close()
    assert run("stop", ".taskbull", cwd=tmp_path).returncode == 0

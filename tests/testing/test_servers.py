"""The fixture that gives a test its own real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskbull import App
from taskbull.testing import connected, private_server

TEST = """
import pytest
from taskbull import App
from taskbull.testing import server

def test_a_job_is_added(server):
    app = App("x", redis=server.url)

    @app.task
    def noop(): ...

    assert noop.delay().state() == "waiting"
"""


def test_a_private_server_serves_an_app() -> None:
    with private_server() as server:
        assert App("x", redis=server.url).sync_queue("q").counts()["waiting"] == 0


@pytest.mark.full
def test_the_fixture_works_in_a_users_test(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        words, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_without_pytest_there_is_still_the_block() -> None:
    code = "import sys; sys.modules['pytest'] = None; from taskbull.testing import recorded, server"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_an_app_of_a_module_is_connected_to_it(anyio_backend: str) -> None:
    app = App("x", redis="redis://127.0.0.1:1/0")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    with private_server() as server, connected(app, server.url):
        handle = await double.adelay(21)
        await app.run_worker(burst=True)
        assert await handle.aresult(timeout=60) == 42
        assert (await app.queue("default").counts())["completed"] == 1
    assert app.producer.stores.address.endpoints[0].port == 1

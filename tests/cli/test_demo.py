"""The command line and the examples as a new user runs them, in separate processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import taskbull
from taskbull.store import embedded
from tests.cli.conftest import CommandLine

ROOT = Path(__file__).parent.parent.parent


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_demo_runs_without_any_set_up_and_leaves_nothing(tmp_path: Path) -> None:
    done = run("-m", "taskbull", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for backend in ("asyncio", "trio"):
        assert f"{backend}: an async task said: Hello, Ann!" in done.stdout
        assert f"{backend}: flaky task succeeded on attempt 2" in done.stdout
        assert f"{backend}: in total: 5,003 completed, 1 retried" in done.stdout
    assert done.stdout.endswith("server stopped, nothing left behind\n")
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_reported(cli: CommandLine) -> None:
    assert taskbull.__version__ in cli.run("--version").stdout


@pytest.mark.parametrize("words", [["dmo"], ["demo", "--what"]])
def test_wrong_usage_is_reported_in_few_words(words: list[str], cli: CommandLine) -> None:
    done = cli.run(*words)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    assert "No such" in done.stderr


@pytest.mark.full
def test_the_example_of_a_queue_runs(tmp_path: Path) -> None:
    try:
        done = run(str(ROOT / "examples" / "fill_a_queue.py"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "added 1 and 10 more" in done.stdout
        assert done.stdout.count("the second digest is the first one: True") == 2
    finally:
        embedded.stop(tmp_path / ".taskbull")

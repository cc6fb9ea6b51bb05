"""Every Python sample in the README and in docs/ runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from taskbull.cli.main import commands
from tests.docs.samples import PAGES_WITH_SAMPLES, ROOT
from tests.servers.kinds import PrivateServers

LIMIT = 300.0
ELSEWHERE = {
    "django.md": "tests/docs/test_django_page.py",
    "tutorial.md": "tests/docs/test_tutorial.py",
    "typescript.md": "tests/interop/test_contract.py",
}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES_WITH_SAMPLES if page.name not in ELSEWHERE],
    ids=lambda page: page.name,
)
def test_the_samples_of_a_page_run(
    page: Path, tmp_path: Path, private_server: PrivateServers
) -> None:
    url = private_server().url
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKBULL_REDIS_URL": url}
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_page", str(page)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_pages_that_are_run_elsewhere_have_a_test() -> None:
    assert [file for file in ELSEWHERE.values() if not (ROOT / file).exists()] == []


def test_no_page_has_a_conflict_marker() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    marker = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert [page for page in pages if marker.search(page.read_text())] == []


def test_the_command_line_page_lists_every_command() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    names = re.findall(r"`([a-z-]+)`", page.partition("\n## ")[0])
    known = commands.list_commands(click.Context(commands))
    assert [name for name in known if name not in names] == []

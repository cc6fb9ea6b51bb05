"""The page of guarantees names tests. Each of them exists and is part of the default run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[a-z_/]+\.py)(?:::(test_\w+))?`")
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def test_each_guarantee_names_a_test_of_the_default_run() -> None:
    found = NAMED.findall(PAGE)
    assert len(found) > 20
    missing = [f"{file}::{name}" for file, name in found if not _runs_by_default(file, name)]
    assert missing == []


def test_each_row_of_a_table_names_one() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert [row for row in rows if not NAMED.search(row)] == []


def _runs_by_default(file: str, name: str) -> bool:
    path = ROOT / file
    if not path.exists():
        return False
    source = path.read_text()
    if re.search(r"^pytestmark = .*\bfull\b", source, re.MULTILINE):
        return False
    found = re.search(rf"((?:^@.*\n)*)^(?:async )?def {name}\(", source, re.MULTILINE)
    return not name or (found is not None and "pytest.mark.full" not in found[1])

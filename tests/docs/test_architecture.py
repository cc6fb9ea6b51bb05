"""The architecture page names every module, and only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "taskbull"
TEXT = (ROOT / "docs/architecture.md").read_text()
TABLES, _, REST = TEXT.partition("## Layers and modules\n")[2].partition("## The life of a call\n")


def _in_tables() -> list[str]:
    """Return the modules in the first column of the tables, as paths in the package."""
    found: list[str] = []
    package = ""
    for line in TABLES.splitlines():
        if heading := re.match(r"### `([a-z]+/)`", line):
            package = heading[1]
        elif line.startswith("| `"):
            for name in re.findall(r"`([\w/]+\.py)`", line.split("|")[1]):
                is_inside = (PACKAGE / package / name).exists()
                found.append(package + name if is_inside else name)
    return found


def test_every_module_is_in_one_table_row() -> None:
    paths = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    modules = {path for path in paths if not path.rpartition("/")[2].startswith("__")}
    named = _in_tables()
    assert sorted(modules - set(named)) == []
    assert sorted(named) == sorted(modules)


def test_every_file_that_the_page_names_exists() -> None:
    names = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|lua|md|ts|acl))`", REST))
    assert names
    assert [name for name in sorted(names) if not _exists(name)] == []


def _exists(name: str) -> bool:
    return any((folder / name).exists() for folder in (ROOT, PACKAGE, ROOT / "docs"))

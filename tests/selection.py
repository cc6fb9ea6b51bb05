"""Which tests a run selects: `nox` runs each case once, `nox -s full` runs it everywhere.

A case can run on three kinds of servers, on two event loops, and through the sync or the async
store. The default run draws one of these places for each case, by a hash of its name, so every
server and every loop sees a part of everything. The transport differs between the event loops, and
so do starting, running, cancelling and stopping jobs: tests of these always run on both.

Two markers change this: `full` leaves a test to the full run, and `everywhere` runs a test in each
place by default, too. A test named on the command line (`file.py::test_name`) always runs in full.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from taskbull.monitor.server import SyncServer
from tests.servers.kinds import KINDS, is_expected

FULL = bool(os.environ.get("TASKBULL_FULL"))
"""True in the full run. `nox -s full` sets it."""

MARKERS = (
    "full: leave this test to the full run",
    "everywhere: run this test on each server and each event loop in the default run, too",
)

LOOPS = ("asyncio", "trio", "uvloop")
STORE = "runner"
BOTH_LOOPS = (
    "store/",
    "worker/test_cancelling.py",
    "worker/test_consuming.py",
    "worker/test_event_loops.py",
    "worker/test_expiry.py",
    "worker/test_outcomes.py",
    "worker/test_ready.py",
    "worker/test_stopping.py",
    "worker/test_threads.py",
    "worker/test_unattended.py",
)
"""Folders and files whose tests run on both event loops."""

Calls = list[Any]


def in_full(*values: Any) -> ParameterSet:
    """Return the values of a parameter set that is left to the full run."""
    return pytest.param(*values, marks=pytest.mark.full)


def is_full(config: pytest.Config) -> bool:
    """Return True if every test runs in every place."""
    return FULL or any("::" in argument for argument in config.args)


def select_calls(metafunc: pytest.Metafunc) -> None:
    """Drop the parameter sets of one test function that the default run leaves out.

    They are dropped before pytest creates items, because an item costs as much as many tests.
    """
    calls: Calls = metafunc._calls
    test = metafunc.definition
    if not calls or is_full(metafunc.config):
        return
    if test.get_closest_marker("full"):
        del calls[1:]  # `deselect` drops the remaining one.
    elif not test.get_closest_marker("everywhere"):
        file = test.path.relative_to(Path(__file__).parent).as_posix()
        calls[:] = draw(calls, f"{file}::{test.name}", file.startswith(BOTH_LOOPS))


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are left to the full run."""
    if is_full(config):
        return
    dropped = [item for item in items if item.get_closest_marker("full")]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def draw(calls: Iterable[Any], name: str, both_loops: bool) -> Calls:
    """Return one parameter set for each case of the test `name`, or one for each event loop."""
    cases: dict[Hashable, Calls] = defaultdict(list)
    for call in calls:
        case = [
            (argument, call.indices[argument])
            for argument, value in call.params.items()
            if not _is_place(argument, value)
        ]
        if both_loops and not _is_sync(call.params):
            case += [
                (argument, value) for argument, value in call.params.items() if _is(value, LOOPS)
            ]
        cases[tuple(case)].append(call)
    kept = []
    for key, places in cases.items():
        if any(mark.name == "everywhere" for call in places for mark in call.marks):
            kept += places
            continue
        here = [call for call in places if _is_here(call.params)] or places
        kept.append(here[zlib.crc32(f"{name} {key}".encode()) % len(here)])
    return [call for call in kept if all(mark.name != "full" for mark in call.marks)] or kept[:1]


def _is_place(argument: str, value: object) -> bool:
    return argument == STORE or _is(value, KINDS) or _is(value, LOOPS)


def _is(value: object, names: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value in names


def _is_here(parameters: Mapping[str, Any]) -> bool:
    return all(is_expected(value) for value in parameters.values() if _is(value, KINDS))


def _is_sync(parameters: Mapping[str, Any]) -> bool:
    by_server = any(value is SyncServer for value in parameters.values())
    return by_server or "sync" in (parameters.get("queue"), parameters.get("way"))

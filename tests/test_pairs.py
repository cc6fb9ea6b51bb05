from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from taskbull.queue.server import Server
from taskbull.queue.sync_server import SyncServer
from tests.pairs import spare

LOOPS = ["asyncio", "trio"]
KINDS = ["valkey-9", "redis-6.2", "redis-7"]

Params = dict[str, Any]


def all_of(**more: Any) -> list[Params]:
    return [{"anyio_backend": loop, "server": kind, **more} for loop, kind in product(LOOPS, KINDS)]


def run(*tests: Params) -> list[Params]:
    """Give what is left of the tests of one function."""
    spared = spare((number, "test", params) for number, params in enumerate(tests))
    return [params for number, params in enumerate(tests) if number not in spared]


def pairs(tests: list[Params]) -> set[tuple[str, str]]:
    return {(test["anyio_backend"], test["server"]) for test in tests}


def test_each_loop_and_each_server_is_met_and_both_loops_where_there_is_but_valkey() -> None:
    left = pairs(run(*all_of()))
    assert len(left) == 4
    assert {loop for loop, _ in left} == set(LOOPS)
    assert {kind for _, kind in left} == set(KINDS)
    assert {loop for loop, kind in left if kind == "valkey-9"} == set(LOOPS)


@pytest.mark.parametrize("more", [{"queue": "sync"}, {"looks": SyncServer}])
def test_what_needs_no_loop_meets_each_server_once(more: Params) -> None:
    assert pairs(run(*all_of(**more))) == {("asyncio", kind) for kind in KINDS}


@pytest.mark.parametrize("more", [{"queue": "async"}, {"looks": Server}, {"function": "sync"}])
def test_a_plain_function_in_a_worker_is_not_mistaken_for_a_sync_store(more: Params) -> None:
    assert len(run(*all_of(**more))) == 4


def test_each_value_of_another_parameter_is_met_by_each_loop_and_server() -> None:
    left = run(*all_of(size=1), *all_of(size=2), *all_of(size=2, queue="sync"))
    assert len(left) == 4 + 4 + 3


@pytest.mark.parametrize(
    "asked",
    [
        [{}, {"anyio_backend": "trio"}, {"server": "redis-6.2"}],
        [test for test in all_of() if test["server"] == "redis-6.2"],
        [test for test in all_of() if test["anyio_backend"] == "trio"],
        all_of()[1:],
    ],
)
def test_what_was_asked_for_by_name_is_run(asked: list[Params]) -> None:
    assert run(*asked) == asked


def test_functions_are_told_apart() -> None:
    tests = [*((n, "one", p) for n, p in enumerate(all_of()[:3]))]
    tests += [(n + 3, "other", p) for n, p in enumerate(all_of()[3:])]
    assert spare(tests) == []

"""The default run keeps every case, in one of the places where it can run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from taskbull.monitor.server import Server, SyncServer
from tests.selection import draw
from tests.servers.kinds import KINDS, is_expected

LOOPS = ("asyncio", "trio")


def calls(marks: Sequence[str] = (), **cases: Sequence[Any]) -> list[Any]:
    """Return the parameter sets of a test that runs on each loop, each server and in each case."""
    values = {"anyio_backend": LOOPS, "server": KINDS, **cases}
    return [
        SimpleNamespace(
            params={name: values[name][index] for name, index in zip(values, chosen, strict=True)},
            indices=dict(zip(values, chosen, strict=True)),
            marks=[SimpleNamespace(name=mark) for mark in marks],
        )
        for chosen in product(*(range(len(options)) for options in values.values()))
    ]


def drawn(all_of_them: list[Any], name: str = "test", both_loops: bool = False) -> list[Any]:
    return [call.params for call in draw(all_of_them, name, both_loops)]


def test_a_case_runs_once_and_each_case_does() -> None:
    kept = drawn(calls(size=[1, 2, 3]))
    assert [call["size"] for call in kept] == [1, 2, 3]


def test_the_same_is_drawn_each_time_and_all_places_by_many_tests() -> None:
    names = [f"test_{number}" for number in range(100)]
    found = [drawn(calls(), name) for name in names]
    assert found == [drawn(calls(), name) for name in names]
    places = {(call["anyio_backend"], call["server"]) for [call] in found}
    assert places == set(product(LOOPS, filter(is_expected, KINDS)))


def test_code_that_waits_runs_on_both_loops() -> None:
    kept = drawn(calls(size=[1, 2]), both_loops=True)
    assert [(call["size"], call["anyio_backend"]) for call in kept] == [
        (size, loop) for loop in LOOPS for size in (1, 2)
    ]


@pytest.mark.parametrize(
    ("more", "loops"),
    [
        ({"queue": ["sync"]}, 1),
        ({"looks": [SyncServer]}, 1),
        ({"queue": ["async"]}, 2),
        ({"looks": [Server]}, 2),
        ({"function": ["sync"]}, 2),
    ],
)
def test_what_needs_no_loop_runs_once(more: dict[str, Any], loops: int) -> None:
    assert len(drawn(calls(**more), both_loops=True)) == loops


def test_marks_widen_and_narrow_the_draw() -> None:
    assert len(drawn(calls(marks=["everywhere"]))) == len(LOOPS) * len(KINDS)
    left = drawn(calls(marks=["full"]) + calls(size=[1]))
    assert [call.get("size") for call in left] == [1]

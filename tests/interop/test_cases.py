"""Every case, by Node against Node: alike twice, in both versions, and by both together."""

from __future__ import annotations

import inspect
import re

import pytest
from redis import Redis

from tests.interop import cases
from tests.interop.actor import Actor, ManualWorker
from tests.interop.cases import CASES
from tests.interop.compare import ANY_VERSION, Difference
from tests.interop.conftest import MakeActor, Solo
from tests.interop.node import HERE, Version
from tests.interop.stage import Case, compare, play
from tests.interop.turns import by_turns

SHARED = [case for case in CASES if not (case.versions_differ or case.mixing_differs)]


def report(found: list[Difference]) -> str:
    return "\n".join(str(difference) for difference in found)


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_gives_the_same_twice(
    case: Case, version: Version, redis: Redis, new_actor: MakeActor, solo: Solo
) -> None:
    found = compare(solo(case, version), play(case, redis, new_actor(version)))
    assert not found, report(found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_versions_do_a_case_alike(case: Case, solo: Solo) -> None:
    found = compare(solo(case, 5), solo(case, 6), exempt=ANY_VERSION)
    if case.versions_differ is None:
        assert not found, report(found)
    else:
        assert found, f"no difference any more: {case.versions_differ}"


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_both_versions_share_a_queue(
    case: Case, redis: Redis, new_actor: MakeActor, solo: Solo
) -> None:
    versions: tuple[Version, Version] = (5, 6) if case.number % 2 else (6, 5)
    one = new_actor(versions[0])
    other = new_actor(versions[1], one.prefix)
    together = play(case, redis, by_turns(one, other), other)
    found = compare(solo(case, 5), together, exempt=ANY_VERSION)
    assert not found, report(found)


def test_every_method_of_an_actor_is_used() -> None:
    modules = [*(HERE / "cases").glob("*.py"), HERE / "live.py", HERE / "pausing.py"]
    text = "\n".join(path.read_text() for path in modules)
    for protocol in (Actor, ManualWorker):
        for name, _ in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_") and name != "set_clock":
                assert re.search(rf"\.{name}\b", text), f"no case uses {protocol.__name__}.{name}"


def test_every_number_of_the_list_is_there() -> None:
    numbers = {case.number for case in cases.CASES} | cases.LIVE
    assert sorted(numbers) == list(range(1, 94))

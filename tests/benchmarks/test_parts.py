"""Every benchmark part runs with a few taskbull jobs, against real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import catalogue
from benchmarks.parts import PARTS
from benchmarks.rounds import take
from benchmarks.stage import Bench
from benchmarks.table import Tables
from tests.servers.kinds import VALKEY_9, binary

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.full
def test_a_part_measures_taskbull(name: str, tmp_path: Path) -> None:
    bench = Bench(binary(VALKEY_9), tmp_path, shrink=1000, at_once=(10,))
    part = PARTS[name]
    sides = catalogue.choose(catalogue.read(), name, ["taskbull-asyncio"])

    cases = [case for case in part.cases(bench, sides) if case.side.tree]
    # The last case of a part does all that the others do, but for the ways to add and to look.
    whole = name in {"enqueue", "dashboard", "viewers"}
    taken = take(cases if whole else cases[-1:], rounds=1)

    assert not taken.failures
    assert all(len(samples) == 1 for samples in taken.samples.values())
    keys = {metric.key for metric in part.metrics}
    assert all(sample.values.keys() <= keys for sample in taken.all())
    assert "| taskbull-asyncio" in Tables(taken, part.metrics, {}).text()


@pytest.mark.full
def test_another_checkout_is_measured_beside_this_one(tmp_path: Path) -> None:
    bench = Bench(binary(VALKEY_9), tmp_path, shrink=1000, at_once=(10,))
    sides = catalogue.choose(
        catalogue.read(), "drain", ["taskbull-asyncio"], against=catalogue.ROOT
    )

    taken = take(PARTS["drain"].cases(bench, sides), rounds=1)

    assert [side for _, side in taken.samples] == [
        "taskbull-asyncio",
        f"taskbull-asyncio {catalogue.ROOT.name}",
    ]
    assert not taken.failures


def test_each_peer_has_an_adapter_and_takes_part_in_parts_that_exist() -> None:
    peers = Path(catalogue.__file__).with_name("peers")
    for peer in catalogue.read().values():
        suffix = ".mjs" if peer.npm else ".py"
        assert (peers / f"{peer.adapter}{suffix}").exists()
        assert set(peer.parts) <= PARTS.keys()

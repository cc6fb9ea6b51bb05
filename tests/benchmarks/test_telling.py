"""Formatting of benchmark figures: pure functions."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import kept, picture, report
from benchmarks.catalogue import ROOT, choose, read
from benchmarks.parts.drain import rate
from benchmarks.rounds import Case, Metric, Sample, Taken, take
from benchmarks.stage import SideFailed
from benchmarks.table import Tables, number, percentile, ratio, spread

RATE = Metric("rate", "jobs/s", 0, compared=True)


def samples(*rates: float, stolen: float = 0.0) -> list[Sample]:
    return [Sample({"rate": rate}, stolen) for rate in rates]


def test_a_spread_is_the_median_with_the_least_and_the_most() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.0 [1.0-3.0]"
    assert spread([2.0]) == "2.0"
    assert number(12_345.6) == "12,346"


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([5.0, 1.0, 3.0], 50) == 3.0
    assert percentile([float(one) for one in range(1, 101)], 99) == 99.0


def test_a_ratio_is_the_median_of_those_of_each_round() -> None:
    assert ratio([10, 20, 90], [5, 10, 10]) == 2.0
    assert ratio([10], []) is None


def test_the_warm_up_does_not_count() -> None:
    second = 10**9
    slow_then_quick = [1, second, 2 * second + 1, 2 * second + second // 2]
    assert rate(slow_then_quick, 1.5) == pytest.approx(2.0)
    assert rate([second, 2 * second], 5.0) == 1.0


def test_a_table_compares_within_rounds_and_marks_what_was_disturbed() -> None:
    taken = Taken({("at 1", "us"): samples(10, 30, stolen=0.5), ("at 1", "node"): samples(5, 10)})

    text = Tables(taken, [RATE], {"us": "node", "node": "node"}).text()

    assert "| at 1 | jobs/s | x |" in text
    assert "| us ** | 20 [10-30] | 2.50 |" in text
    assert "| node | 8 [5-10] | 1.00 |" in text


def test_a_side_that_fails_is_left_out_and_told_of() -> None:
    [side] = choose(read(), "drain", ["node"])

    def fail() -> dict[str, float]:
        raise SideFailed("node: no job has run")

    taken = take([Case(side, "at 1", fail)], rounds=2)

    assert taken.failures == {"node": "node: no job has run"}
    text = Tables(taken, [RATE], {}).text()
    assert "**at 1**: nothing could be measured." in text
    assert "node failed: node: no job has run." in text


def test_one_round_is_measured_whatever_it_takes() -> None:
    [side] = choose(read(), "drain", ["node"])

    taken = take([Case(side, "at 1", lambda: {"rate": 1.0})], rounds=3, budget=0.0)

    assert len(taken.all()) == 1


def test_taskbull_means_all_its_forms_and_two_checkouts_stand_side_by_side() -> None:
    sides = choose(read(), "drain", ["taskbull"], against=ROOT)
    assert len(sides) == 6
    assert {side.tree for side in sides} == {ROOT}
    assert [side.name for side in choose(read(), "payloads", ["node"])] == ["node", "plain-set"]


def test_the_picture_is_valid_and_has_a_bar_per_side() -> None:
    taken = Taken({("100 at once", "a<b"): samples(10), ("100 at once", "node"): samples(20)})
    drawn = picture.panels({"drain": taken})

    svg = ET.fromstring(picture.draw(drawn))

    assert [side for side, _ in drawn[0].bars] == ["node", "a<b"]
    assert len(svg.findall("{http://www.w3.org/2000/svg}rect")) == 2


def test_the_versions_of_all_peers_are_listed() -> None:
    text = report.versions(read())
    assert "| node | bullmq@6.7.0, ioredis@6.0.0 |" in text
    assert "celery[redis] 5.7.0" in text


def test_the_last_result_of_a_part_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    taken = Taken({("at 1", "us"): samples(10, 30), ("at 1", "node"): samples(5)})
    kept.keep("drain", "python -m benchmarks", "old", Taken())
    made = kept.keep("drain", "python -m benchmarks", "text", taken)
    assert kept.load(["enqueue", "drain"]) == [made]
    assert made.taken.samples == taken.samples

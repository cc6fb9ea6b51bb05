"""CPU instructions of the server per job: figures that do not depend on the machine's load."""

from __future__ import annotations

import pytest

from tests.servers.kinds import REDIS_7, VALKEY_9, binary
from tests.speed.bounds import check_not_grown
from tests.speed.callgrind import has_valgrind, measure, measure_calls

PER_JOB_WERE = {
    REDIS_7: {
        "add": 46_400,
        "add alone": 137_600,
        "cycle of 50": 126_200,
        "cycle of 10": 142_000,
        "cycle of 1": 267_900,
        "add a child": 60_000,
        "cycle of 50 children": 162_000,
        "cycle of 10 children": 194_000,
        "cycle of 1 child": 340_000,
    },
    VALKEY_9: {
        "add": 57_700,
        "add alone": 157_900,
        "cycle of 50": 153_800,
        "cycle of 10": 173_300,
        "cycle of 1": 326_600,
        "add a child": 80_000,
        "cycle of 50 children": 197_000,
        "cycle of 10 children": 230_000,
        "cycle of 1 child": 413_000,
    },
}
"""Per job, on Redis 7.0.15 and Valkey 9.0, when the bounds were set. Write less when it is less."""

CALLS_WERE = {
    REDIS_7: {
        "add in bulk": 11_670_000,
        "add 100 kB in bulk": 14_620_000,
        "run what is due at one moment": 9_979_000,
        "promote all": 2_273_000,
        "retry all": 4_748_000,
        "clean completed": 5_077_000,
        "sweep, all dead": 6_307_000,
    },
    VALKEY_9: {
        "add in bulk": 15_960_000,
        "add 100 kB in bulk": 6_304_000,
        "run what is due at one moment": 11_720_000,
        "promote all": 2_841_000,
        "retry all": 5_407_000,
        "clean completed": 4_521_000,
        "sweep, all dead": 6_958_000,
    },
}
"""Of a call that is full. A server executes a few millions per ms."""

SLACK = 0.08
CALLS_SLACK = 0.12

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not has_valgrind(), reason="valgrind is not installed: apt install valgrind"
    ),
]


@pytest.mark.parametrize("kind", PER_JOB_WERE)
def test_a_job_costs_the_server_no_more_than_it_did(kind: str) -> None:
    found = measure(binary(kind))
    cycles = {f"cycle of {at_once}": cost for at_once, cost in found.cycle.items()}
    cycles |= {
        f"cycle of {at_once} {'child' if at_once == 1 else 'children'}": cost
        for at_once, cost in found.cycle_children.items()
    }
    added = {"add": found.add, "add alone": found.add_alone, "add a child": found.add_child}
    check_not_grown({**added, **cycles}, PER_JOB_WERE[kind], SLACK)


@pytest.mark.parametrize("kind", CALLS_WERE)
def test_no_call_costs_the_server_more_than_it_did(kind: str) -> None:
    check_not_grown(measure_calls(binary(kind)), CALLS_WERE[kind], CALLS_SLACK)

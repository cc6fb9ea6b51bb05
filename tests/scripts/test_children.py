"""Results of children are read in pieces, however many there are."""

from __future__ import annotations

from taskbull.core.wire.flow import encode_order
from taskbull.scripts.read import get_results
from tests.scripts.bed import Bed

MANY = 1_000


def seed(bed: Bed, count: int, *, in_order: bool) -> None:
    """Have a parent whose children are done: `in_order` as ours, else as Node's."""
    names = [f"c{number:04}" for number in range(count)]
    for name in names:
        bed.job(name, "", parentKey=bed.queue.job("parent"))
    bed.job("parent", "active")
    bed.hset("parent:processed", {bed.queue.job(name): f'"{name}"' for name in names})
    if in_order:
        order = encode_order(("n", bed.queue.base, name) for name in reversed(names))
        bed.hset("parent", {"tbch": order})


def read(bed: Bed, chunk: int = 100) -> tuple[int, list[bytes]]:
    """Give how many calls it takes to read the results of all children, and these."""
    calls: list[None] = []
    steps = get_results(bed.queue, "parent", "n", chunk=chunk)
    results = bed.go(steps, lambda: calls.append(None))
    return len(calls), results


def test_thousands_of_results_of_a_flow_of_ours_take_a_call_per_piece(bed: Bed) -> None:
    seed(bed, MANY, in_order=True)
    calls, results = read(bed)
    assert results == [f'"c{number:04}"'.encode() for number in reversed(range(MANY))]
    assert calls == 1 + MANY // 100


def test_thousands_of_results_of_a_flow_of_node_take_a_call_per_piece(bed: Bed) -> None:
    seed(bed, MANY, in_order=False)
    calls, results = read(bed)
    assert results == [f'"c{number:04}"'.encode() for number in range(MANY)]
    # A scan gives about as many as it is asked for.
    assert MANY // 200 <= calls <= 2 * MANY // 100


def test_of_a_flow_of_node_only_children_of_that_name_are_taken(bed: Bed) -> None:
    seed(bed, 4, in_order=False)
    bed.hset("c0001", {"name": "another"})
    bed.admin.delete(bed.queue.job("c0002"))
    bed.admin.delete(bed.queue.job("c0003"))
    bed.admin.set(bed.queue.job("c0003"), "not a job")
    assert read(bed)[1] == [b'"c0000"']


def test_a_job_without_children_has_no_results(bed: Bed) -> None:
    bed.job("parent", "active")
    assert read(bed)[1] == []

"""Children that finish in one call update their parents as if they finished one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskbull.core.outcome import Complete
from taskbull.scripts.cycle import FetchOptions, cycle
from tests.scripts.bed import NOW, Bed, without
from tests.scripts.test_cycle import MEMO, OUTCOMES, TAKING, by_job, pack, take

PARENTS = ("p0", "p1")


def seed(bed: Bed, parents: list[str | None], **fields: Any) -> None:
    """Add parents that wait for children, which run in this order. Some jobs have no parent."""
    for name in PARENTS:
        bed.job(name, "waiting-children", **fields)
    for number, parent in enumerate(parents):
        if parent is None:
            bed.job(f"c{number}")
        else:
            bed.child(f"c{number}", parent)


def complete(bed: Bed, jobs: Any, token: str = "t:1", want: int = 0) -> Any:
    ends = [pack(job, Complete(job.id.encode().join([b'"', b'"']))) for job in jobs]
    return bed.run(cycle(bed.queue, NOW, ends, want, token, TAKING))


def told(bed: Bed, parent: str) -> dict[str, str]:
    """Give the results that a parent has, by the ids of its children."""
    found = bed.state().get(f"{parent}:processed", {})
    return {key.rpartition(":")[2]: value for key, value in found.items()}


def test_a_new_child_is_taken_with_the_key_of_its_parent(bed: Bed) -> None:
    seed(bed, ["p0", None])
    child, single = take(bed, 2).jobs
    assert (child.id, child.fresh, child.parent_key) == ("c0", True, bed.queue.job("p0"))
    assert (single.id, single.fresh, single.parent_key) == ("c1", True, None)


@pytest.mark.parametrize("field", ["parent", "parentKey"])
def test_a_job_with_eight_other_fields_than_a_child_is_not_taken_for_new(
    bed: Bed, field: str
) -> None:
    seed(bed, ["p0"])
    bed.admin.hdel(bed.queue.job("c0"), field)
    bed.admin.hset(bed.queue.job("c0"), "deid", "key")
    [job] = take(bed, 1).jobs
    assert (job.fresh, job.dedup_key) == (False, "key")


def test_the_last_child_lets_its_parent_run_when_it_is_its_turn(bed: Bed) -> None:
    seed(bed, ["p0", "p1", None, "p0", "p1"])
    jobs = take(bed, 4).jobs
    bed.admin.delete(bed.queue.events)
    assert complete(bed, jobs).codes == [0] * 4
    assert told(bed, "p0") == {"c0": '"c0"', "c3": '"c3"'}
    assert told(bed, "p1") == {"c1": '"c1"'}
    state = bed.state()
    assert state["wait"] == ["c4", "p0"]
    assert state["p1:dependencies"] == {bed.queue.job("c4")}
    assert "p0:dependencies" not in state
    # The parent is updated right before its last child, as if each had finished alone.
    assert [(event["event"], event["jobId"]) for event in bed.events()] == [
        ("completed", "c0"),
        ("completed", "c1"),
        ("completed", "c2"),
        ("waiting", "p0"),
        ("completed", "c3"),
    ]


def test_a_child_does_not_update_a_parent_that_does_not_wait_for_it(bed: Bed) -> None:
    seed(bed, ["p0", "p0", "p0"])
    bed.admin.srem(bed.queue.dependencies("p0"), bed.queue.job("c1"))
    assert complete(bed, take(bed, 3).jobs).codes == [0] * 3
    assert told(bed, "p0") == {"c0": '"c0"', "c2": '"c2"'}
    assert bed.state()["wait"] == ["p0"]


def test_a_child_updates_a_parent_that_it_gets_while_it_runs(bed: Bed) -> None:
    seed(bed, ["p0", "p0"])
    jobs = take(bed, 2).jobs
    stored = f'{{"id":"p1","queueKey":"{bed.queue.qualified_name}"}}'
    bed.hset("c1", {"parentKey": bed.queue.job("p1"), "parent": stored})
    bed.admin.sadd(bed.queue.dependencies("p1"), bed.queue.job("c1"))
    assert complete(bed, jobs).codes == [0, 0]
    assert (told(bed, "p0"), told(bed, "p1")) == ({"c0": '"c0"'}, {"c1": '"c1"'})


def test_a_parent_that_cannot_be_updated_delays_only_its_own_children(bed: Bed) -> None:
    seed(bed, ["p0", "p1", "p0", None, "p1"])
    jobs = take(bed, 5).jobs
    bed.admin.set(bed.queue.job("p0") + ":processed", "not a hash")
    cycled = complete(bed, jobs)
    assert cycled.codes == [-10, 0, -10, 0, 0]
    assert all("WRONGTYPE" in reason for reason in cycled.reasons)
    state = bed.state()
    assert sorted(state["completed"]) == ["c1", "c3", "c4"]
    assert sorted(state["active"]) == ["c0", "c2"]
    assert {state[name].get("atm", "0") for name in ("c0", "c2")} == {"0"}
    assert state["wait"] == ["p1"]
    bed.admin.delete(bed.queue.job("p0") + ":processed")
    assert complete(bed, [jobs[0], jobs[2]], "t:2").codes == [0, 0]
    assert told(bed, "p0") == {"c0": '"c0"', "c2": '"c2"'}
    assert bed.state()["wait"] == ["p1", "p0"]


def test_children_of_an_invalid_parent_finish_anyway(bed: Bed) -> None:
    seed(bed, ["p0", "p0", None])
    jobs = take(bed, 3).jobs
    bed.admin.delete(bed.queue.dependencies("p0"))
    bed.admin.set(bed.queue.dependencies("p0"), "not a set")
    assert complete(bed, jobs).codes == [0] * 3
    assert sorted(bed.state()["completed"]) == ["c0", "c1", "c2"]


def test_a_parent_that_cannot_run_is_waited_for_by_its_last_child(bed: Bed) -> None:
    seed(bed, ["p0", "p0", None])
    jobs = take(bed, 3).jobs
    bed.admin.rename(bed.queue.waiting_children, bed.queue.base + "aside")
    bed.admin.set(bed.queue.waiting_children, "not a set")
    assert complete(bed, jobs).codes == [0, -10, 0]
    state = bed.state()
    assert (state["active"], state["p0:dependencies"]) == (["c1"], {bed.queue.job("c1")})
    bed.admin.rename(bed.queue.base + "aside", bed.queue.waiting_children)
    assert complete(bed, [jobs[1]], "t:2").codes == [0]
    assert bed.state()["wait"] == ["p0"]
    assert told(bed, "p0") == {"c0": '"c0"', "c1": '"c1"'}


plans = st.lists(st.sampled_from([*PARENTS, None]), min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parents=plans,
    more=st.booleans(),
    delay=st.sampled_from([0, 5]),
    priority=st.sampled_from([0, 3]),
    odd=st.sets(st.integers(0, 11), max_size=3),
)
@example(parents=["p0"] * 3, more=False, delay=0, priority=0, odd=set())
def test_a_batch_of_children_leaves_what_they_leave_one_by_one(
    bed: Bed, parents: list[str | None], more: bool, delay: int, priority: int, odd: set[int]
) -> None:
    taking = FetchOptions(30_000, worker_name="w")

    def run(at_once: int) -> dict[str, Any]:
        bed.admin.flushall()
        seed(bed, parents, delay=delay, priority=priority)
        if more:
            bed.admin.sadd(bed.queue.dependencies("p0"), bed.queue.job("other"))
        jobs = take(bed, len(parents), taking=taking).jobs
        for number in odd & set(range(len(parents))):
            bed.admin.hset(bed.queue.job(f"c{number}"), "progress", "50")
        ends = [pack(job, OUTCOMES["completed"]) for job in jobs]
        for first in range(0, len(ends), at_once):
            part = ends[first : first + at_once]
            assert set(bed.run(cycle(bed.queue, NOW, part, 0, "t:1", taking)).codes) == {0}
        return by_job(without(bed.state(), MEMO))

    assert run(len(parents)) == run(1)

"""Adding jobs: calls that are repeated, late, or use many options together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import Dedup, JobOptions
from taskbull.core.wire.job import EncodedJob, ParentLink, encode_job
from taskbull.errors import OutOfTurn
from taskbull.scripts.add import (
    ADD,
    ADD_PLAIN,
    MEMO_LIFE_MS,
    Added,
    CallSequence,
    Result,
    add_jobs,
)
from tests.scripts.bed import NOW, Bed


def job(name: str = "n", **options: Any) -> EncodedJob:
    return encode_job(NewJob(name, {}, JobOptions(**options)), NOW)


def test_a_repeated_call_adds_nothing_and_gives_its_first_answer(bed: Bed) -> None:
    sequence = CallSequence("p", 0, 1)
    first = bed.run(add_jobs(bed.queue, [job("a"), job("b")], NOW, sequence))
    before = bed.state()
    assert bed.run(add_jobs(bed.queue, [job("a"), job("b")], NOW, sequence)) == first
    assert bed.state() == before


def test_a_call_that_comes_after_the_next_one_is_not_executed(bed: Bed) -> None:
    bed.run(add_jobs(bed.queue, [job("second")], NOW, CallSequence("p", 0, 10)))
    before = bed.state()
    assert bed.run(add_jobs(bed.queue, [job("first")], NOW, CallSequence("p", 0, 9))) == []
    assert bed.state() == before


def test_one_job_that_is_sent_again_is_known_to_both_scripts(bed: Bed) -> None:
    one, sequence = job("a"), CallSequence("p", 0, 1)
    plain = add_jobs(bed.queue, [one], NOW, sequence)
    assert plain.script is ADD_PLAIN
    first = bed.run(plain)
    before = bed.state()
    general = add_jobs(bed.queue, [replace(one, place=1)], NOW, sequence)
    assert general.script is ADD
    for _ in range(2):
        assert bed.run(general) == first == [Added("1", Result.ADDED)]
        assert bed.run(plain) == first
    assert bed.state() == before


@pytest.mark.parametrize(
    "memo", [b"", b"x", b"9", b"9:", b"2:ab:\x90", b"1:cd:\x94\x01\xa13\x00\x01"]
)
def test_a_number_that_another_has_used_adds_nothing_whatever_stands_there(
    bed: Bed, memo: bytes
) -> None:
    bed.admin.set(bed.queue.private("add", "p", "0"), memo)
    added = bed.run(add_jobs(bed.queue, [job("a")], NOW, CallSequence("p", 0, 1, "ab")))
    is_free = not memo[:1].isdigit()
    assert [one.id for one in added] == (["1"] if is_free else [])
    assert bed.state().get("id", "0") == ("1" if is_free else "0")
    if not is_free:
        assert bed.admin.get(bed.queue.private("add", "p", "0")) == memo
        assert set(bed.state()) == {"id", "tb:add:p:0"}


def test_a_call_out_of_turn_does_nothing_until_the_one_before_was_executed(bed: Bed) -> None:
    before, sequence = CallSequence("p", 0, 4), CallSequence("p", 1, 1)
    ahead = add_jobs(bed.queue, [job("a"), job("b")], NOW, before)
    behind = add_jobs(bed.queue, [job("c"), job("d")], NOW, sequence, after=before)
    with pytest.raises(OutOfTurn):
        bed.run(behind)
    assert bed.state() == {}
    bed.run(ahead)
    assert [one.id for one in bed.run(behind)] == ["3", "4"]
    bed.run(add_jobs(bed.queue, [job("e"), job("f")], NOW, CallSequence("p", 0, 5)))
    assert [one.id for one in bed.run(behind)] == ["3", "4"]  # it has its answer


def test_the_rest_of_a_call_of_which_a_part_was_answered_is_added_around_it(bed: Bed) -> None:
    jobs = [replace(job(f"job-{place // 3}"), place=place) for place in range(1, 8)]
    sequence = CallSequence("p", 0, 1, "ab")
    part = bed.run(add_jobs(bed.queue, [jobs[4], jobs[1]], NOW, sequence))
    assert [one.id for one in part] == ["1", "2"]
    whole = bed.run(add_jobs(bed.queue, jobs, NOW, sequence))
    assert [one.id for one in whole] == ["3", "2", "4", "5", "1", "6", "7"]
    assert bed.run(add_jobs(bed.queue, jobs[::-1], NOW, sequence)) == whole[::-1]
    assert bed.state()["id"] == "7"
    assert [bed.state()[one.id]["name"] for one in whole] == [each.name for each in jobs]


def test_equal_jobs_are_reported_once(bed: Bed) -> None:
    data = [{"n": number} for number in range(250)]
    jobs = [encode_job(NewJob("n", each, JobOptions()), NOW) for each in data]
    call = add_jobs(bed.queue, jobs, NOW, CallSequence("p", 0, 1))
    assert len(str(call.args[6])) < 300
    assert [one.id for one in bed.run(call)] == [str(number) for number in range(1, 251)]
    assert [bed.state()[str(number)]["data"] for number in (1, 250)] == ['{"n":0}', '{"n":249}']


@pytest.mark.parametrize("last", [0, 7, 95, 998, -7, 2**53 - 20])
def test_ids_count_on_from_the_last_whatever_jobs_are_between(bed: Bed, last: int) -> None:
    bed.admin.set(bed.queue.id, last)
    jobs = [job("a")] * 8 + [job("b", priority=1)] + [job("a")] * 6
    added = bed.run(add_jobs(bed.queue, jobs, NOW, CallSequence("p", 0, 1)))
    ids = [str(last + n) for n in range(1, 16)]
    assert [one.id for one in added] == ids
    names = [bed.admin.hget(bed.queue.job(id_), "name") for id_ in ids]
    assert names == [b"a"] * 8 + [b"b"] + [b"a"] * 6
    waiting = [id_ for id_ in reversed(ids) if id_ != ids[8]]
    assert bed.admin.lrange(bed.queue.wait, 0, -1) == [id_.encode() for id_ in waiting]


def test_a_child_among_equals_has_its_parent_and_they_have_none(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    parent = ParentLink(bed.queue.job("top"), "top", bed.queue.qualified_name, b"{}")
    gone = ParentLink(bed.queue.job("gone"), "gone", bed.queue.qualified_name, b"{}")
    jobs = [job(), replace(job(), parent=parent), replace(job(), parent=gone), job(), job()]
    added = bed.run(add_jobs(bed.queue, jobs, NOW, CallSequence("p", 0, 1)))
    assert [(one.id, one.result) for one in added] == [
        ("1", Result.ADDED),
        ("2", Result.ADDED),
        ("", Result.NO_PARENT),
        ("3", Result.ADDED),
        ("4", Result.ADDED),
    ]
    assert bed.state()["top:dependencies"] == {bed.queue.job("2")}
    assert bed.state()["wait"] == ["4", "3", "2", "1"]


def test_sequences_do_not_know_of_each_other(bed: Bed) -> None:
    for sequence in (CallSequence("p", 0, 1), CallSequence("p", 1, 1), CallSequence("other", 0, 1)):
        [added] = bed.run(add_jobs(bed.queue, [job()], NOW, sequence))
        assert added.result is Result.ADDED
    assert bed.state()["wait"] == ["3", "2", "1"]


def test_the_memory_of_a_call_expires(bed: Bed) -> None:
    bed.run(add_jobs(bed.queue, [job()], NOW, CallSequence("p", 7, 1)))
    [memory] = [key for key in bed.admin.scan_iter(match=f"{bed.prefix}:q:tb:*")]  # noqa: C416
    assert 0 < bed.admin.pttl(memory) <= MEMO_LIFE_MS


def test_a_number_beyond_the_exact_ones_of_a_format_is_written_out(bed: Bed) -> None:
    bed.admin.set(bed.queue.id, 10**15)
    [added] = bed.run(add_jobs(bed.queue, [job()], NOW, CallSequence("p", 0, 1)))
    assert added == Added("1000000000000001", Result.ADDED)


options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 3),
        "delay": st.sampled_from([0, 0.001, 0.002, 60]),
        "lifo": st.booleans(),
        "job_id": st.sampled_from(["own", "other"]),
        "dedup": st.builds(
            Dedup, st.sampled_from(["one", "two"]), ttl=st.none(), replace=st.booleans()
        ),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(options, min_size=1, max_size=12))
def test_a_bulk_leaves_what_its_jobs_leave_one_by_one(bed: Bed, kinds: list[Any]) -> None:
    bed.admin.flushall()
    jobs = [job(f"job-{number}", **kind) for number, kind in enumerate(kinds)]
    together = bed.run(add_jobs(bed.queue, jobs, NOW, CallSequence("p", 0, 1)))
    at_once = without_memory(bed.state())
    bed.admin.flushall()
    alone = [
        bed.run(add_jobs(bed.queue, [one], NOW, CallSequence("p", 0, number + 1)))[0]
        for number, one in enumerate(jobs)
    ]
    assert together == alone
    assert without_memory(bed.state()) == at_once


def without_memory(state: dict[str, Any]) -> dict[str, Any]:
    """Leave out our own keys, and the delay marker: one by one, that of a replaced job stays."""
    state.get("marker", {}).pop("1", None)
    return {name: value for name, value in state.items() if not name.startswith("tb:")}


def test_a_cluster_finds_all_keys_in_one_slot() -> None:
    keys = add_jobs(QueueKeys("q", cluster=True), [job()], NOW, CallSequence("p", 0, 1)).keys
    assert all(key.startswith("bull:{q}:") for key in keys)

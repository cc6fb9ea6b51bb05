"""Flows are added completely and once, in one call or several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import JobOptions
from taskbull.core.wire.job import EncodedJob, ParentLink, encode_job
from taskbull.scripts.add import (
    ADD_FLOW,
    Added,
    CallSequence,
    FlowChunk,
    FlowNode,
    FlowRefused,
    Result,
    Waits,
    add_flow,
    undo_flows,
)
from tests.scripts.bed import NOW, Bed, without


def encoded(job_id: str, parent: FlowNode | None = None, **options: Any) -> EncodedJob:
    job = encode_job(NewJob("n", {"of": job_id}, JobOptions(**options)), NOW)
    if parent is None:
        return replace(job, job_id=job_id)
    queue, own = parent.queue, parent.job.job_id
    stored = json.dumps({"id": own, "queueKey": queue.qualified_name}).encode()
    link = ParentLink(queue.job(own), own, queue.qualified_name, stored)
    return replace(job, job_id=job_id, parent=link)


def node(
    queue: QueueKeys,
    job_id: str,
    parent: FlowNode | None = None,
    waits: Waits = Waits.FOR_NONE,
    **options: Any,
) -> FlowNode:
    return FlowNode(queue, encoded(job_id, parent, **options), waits)


def add(bed: Bed, nodes: Sequence[FlowNode], call: int = 1, **chunk: Any) -> list[Added]:
    sequence, root = CallSequence("p", 0, call), node(bed.queue, "top")
    return bed.run(add_flow(root, FlowChunk(nodes, **chunk), NOW, sequence))


def tree(bed: Bed, waits: Waits = Waits.FOR_THESE) -> list[FlowNode]:
    other = QueueKeys("other", bed.prefix)
    top = node(bed.queue, "top", waits=waits)
    return [top, node(other, "a", top), node(bed.queue, "b", top, delay=5)]


def test_a_call_is_what_the_header_says(bed: Bed) -> None:
    nodes = tree(bed)
    call = add_flow(nodes[0], FlowChunk(nodes), NOW, CallSequence("p", 2, 3))
    assert call.keys == (bed.queue.private("add", "p", "2"), bed.queue.private("flows"))
    assert len(call.keys) == len(ADD_FLOW.keys)
    assert len(call.args) == len(ADD_FLOW.args) + 3
    assert call.args[:3] == (bed.queue.job("top"), NOW, 3)


def test_all_jobs_of_a_flow_are_where_they_belong(bed: Bed) -> None:
    added = add(bed, tree(bed))
    assert added == [Added(job_id, Result.ADDED) for job_id in ("top", "a", "b")]
    state = bed.state()
    assert list(state["waiting-children"]) == ["top"]
    assert list(state["delayed"]) == ["b"]
    assert state[f"{bed.prefix}:other:wait"] == ["a"]
    assert state["top:dependencies"] == {bed.queue.job("b"), f"{bed.prefix}:other:a"}
    assert "tb:flows" not in state


def test_a_flow_that_is_sent_again_is_added_once(bed: Bed) -> None:
    first = add(bed, tree(bed))
    before = bed.state()
    assert add(bed, tree(bed)) == first
    assert bed.state() == before


def test_a_late_call_is_not_executed(bed: Bed) -> None:
    add(bed, tree(bed), call=2)
    before = bed.state()
    assert add(bed, [node(bed.queue, "late")], call=1) == []
    assert bed.state() == before


def test_a_child_of_another_parent_refuses_the_flow(bed: Bed) -> None:
    bed.job("mother", "waiting-children")
    bed.child("b", "mother")
    before = bed.state()
    with pytest.raises(FlowRefused, match=r"job 'b' in queue 'q' has another parent") as refused:
        add(bed, tree(bed))
    assert refused.value.result is Result.OTHER_PARENT
    assert bed.state() == before


def test_a_child_without_its_parent_refuses_the_flow(bed: Bed) -> None:
    nodes = tree(bed)
    with pytest.raises(FlowRefused, match=r"job 'a' in queue 'other' no longer has a parent"):
        add(bed, nodes[1:])
    assert bed.state() == {}


def test_a_parent_in_pieces_waits_for_the_last_one(bed: Bed) -> None:
    top, early, late = tree(bed, Waits.FOR_MORE)
    add(bed, [top, early], 1, deadline_ms=NOW + 1000)
    assert bed.state()["tb:flows"] == {bed.queue.job("top"): NOW + 1000}
    bed.admin.srem(bed.queue.dependencies("top"), early.queue.job("a"))  # it has ended
    assert list(bed.state()["waiting-children"]) == ["top"]
    add(bed, [late], 2, complete=[(bed.queue, "top")])
    state = bed.state()
    assert state["top:dependencies"] == {bed.queue.job("b")}
    assert list(state["waiting-children"]) == ["top"]
    assert "tb:flows" not in state


def test_a_parent_in_pieces_is_released_if_all_its_children_have_ended(bed: Bed) -> None:
    top, early, _ = tree(bed, Waits.FOR_MORE)
    add(bed, [top, early], 1, deadline_ms=NOW + 1000)
    bed.admin.srem(bed.queue.dependencies("top"), early.queue.job("a"))
    bed.job("done", "completed", returnvalue="7")
    add(bed, [node(bed.queue, "done", top)], 2, complete=[(bed.queue, "top")])
    state = bed.state()
    assert state["wait"] == ["top"]
    assert state["top:processed"] == {bed.queue.job("done"): "7"}
    assert "top:dependencies" not in state


def test_the_order_of_children_stands_in_a_field_of_our_own(bed: Bed) -> None:
    top, *children = tree(bed)
    add(bed, [replace(top, order="[1]"), *children])
    assert bed.state()["top"]["tbch"] == "[1]"
    assert without(bed.state()["top"], "tbch", "data", "opts") == {
        "name": "n",
        "timestamp": str(NOW),
        "delay": "0",
        "priority": "0",
    }


def broken_off(bed: Bed, children: int, deadline_ms: int = NOW - 1) -> None:
    """Add a flow without its last chunk."""
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    below = [node(bed.queue, f"c{n}", top) for n in range(children)]
    add(bed, [top, *below], 1, deadline_ms=deadline_ms)


def test_a_flow_that_was_broken_off_is_undone_in_pieces(bed: Bed) -> None:
    broken_off(bed, 7)
    bed.job("other")
    assert bed.go(undo_flows(bed.queue, NOW, chunk=3)) == [bed.queue.job("top")]
    state = without(bed.state(events=False), "id", "meta", "marker", "tb:add:p:0")
    assert set(state) == {"wait", "other"}
    assert state["wait"] == ["other"]
    assert bed.go(undo_flows(bed.queue, NOW)) == []


def test_a_flow_that_still_has_time_is_left_alone(bed: Bed) -> None:
    broken_off(bed, 3, deadline_ms=NOW + 1)
    before = bed.state()
    assert bed.go(undo_flows(bed.queue, NOW)) == []
    assert bed.state() == before


def test_children_of_an_undone_flow_that_run_or_have_ended_stay(bed: Bed) -> None:
    broken_off(bed, 4)
    bed.admin.lrem(bed.queue.wait, 0, "c1")
    bed.put("c1", "active")
    bed.lock("c1")
    bed.admin.lrem(bed.queue.wait, 0, "c2")
    bed.put("c2", "failed")
    bed.go(undo_flows(bed.queue, NOW))
    state = bed.state()
    assert (state["active"], list(state["failed"])) == (["c1"], ["c2"])
    assert "c1" in state
    assert not {"wait", "top", "top:dependencies", "waiting-children", "tb:flows"} & set(state)


def test_an_undone_flow_takes_its_unfinished_branches_with_it(bed: Bed) -> None:
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    middle = node(bed.queue, "middle", top, waits=Waits.FOR_MORE)
    add(bed, [top, middle, node(bed.queue, "leaf", middle)], 1, deadline_ms=NOW - 1)
    bed.go(undo_flows(bed.queue, NOW))
    state = without(bed.state(events=False), "id", "meta", "marker", "tb:add:p:0")
    assert state == {}


def broken_off_over(bed: Bed, *children: FlowNode, top: FlowNode) -> None:
    """Add an incomplete flow with these jobs. Some of them existed before."""
    add(bed, [top, *children], 2, deadline_ms=NOW - 1)


def test_a_root_that_waited_before_keeps_its_older_children(bed: Bed) -> None:
    old = node(bed.queue, "top", waits=Waits.FOR_THESE)
    add(bed, [old, *(node(bed.queue, f"old{n}", old) for n in range(3))])
    before = bed.state(events=False)
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    broken_off_over(bed, *(node(bed.queue, f"new{n}", top) for n in range(5)), top=top)
    assert bed.go(undo_flows(bed.queue, NOW, chunk=2)) == [bed.queue.job("top")]
    volatile = ("id", "marker", "tb:add:p:0")
    assert without(bed.state(events=False), *volatile) == without(before, *volatile)


def test_a_root_whose_older_children_have_ended_meanwhile_runs(bed: Bed) -> None:
    old = node(bed.queue, "top", waits=Waits.FOR_THESE)
    add(bed, [old, node(bed.queue, "old", old)])
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    broken_off_over(bed, node(bed.queue, "new", top), top=top)
    bed.admin.srem(bed.queue.dependencies("top"), bed.queue.job("old"))
    assert bed.go(undo_flows(bed.queue, NOW)) == [bed.queue.job("top")]
    state = bed.state()
    assert state["wait"] == ["old", "top"]
    assert not {"new", "top:dependencies", "waiting-children", "tb:flows"} & set(state)


def test_a_job_that_an_undone_flow_has_adopted_stays(bed: Bed) -> None:
    for name in ("child", "leaf"):
        bed.job(name)
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    middle = node(bed.queue, "middle", top, waits=Waits.FOR_MORE)
    children = [middle, node(bed.queue, "child", top), node(bed.queue, "leaf", middle)]
    broken_off_over(bed, *children, node(bed.queue, "new", middle), top=top)
    bed.go(undo_flows(bed.queue, NOW))
    state = without(bed.state(events=False), "id", "meta", "marker", "tb:add:p:0")
    assert set(state) == {"wait", "child", "leaf"}
    assert sorted(state["wait"]) == ["child", "leaf"]


@pytest.mark.parametrize("waits", [Waits.FOR_MORE, Waits.FOR_THESE])
def test_a_parent_that_an_undone_flow_has_adopted_waits_as_before(bed: Bed, waits: Waits) -> None:
    other = node(bed.queue, "middle", waits=Waits.FOR_THESE)
    add(bed, [other, node(bed.queue, "old", other)])
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    middle = node(bed.queue, "middle", top, waits=waits)
    children = [node(bed.queue, f"new{n}", middle) for n in range(3)]
    broken_off_over(bed, middle, *children, top=top)
    assert bed.go(undo_flows(bed.queue, NOW, chunk=2)) == [bed.queue.job("top")]
    state = without(bed.state(events=False), "id", "meta", "marker", "tb:add:p:0")
    assert set(state) == {"wait", "middle", "middle:dependencies", "old", "waiting-children"}
    assert state["middle:dependencies"] == {bed.queue.job("old")}
    assert (state["wait"], list(state["waiting-children"])) == (["old"], ["middle"])


def test_nothing_of_a_flow_in_pieces_is_left_when_all_has_come(bed: Bed) -> None:
    old = node(bed.queue, "top", waits=Waits.FOR_THESE)
    add(bed, [old, node(bed.queue, "old", old)])
    top = node(bed.queue, "top", waits=Waits.FOR_MORE)
    broken_off_over(bed, node(bed.queue, "a", top), top=top)
    add(bed, [node(bed.queue, "b", top)], 3, complete=[(bed.queue, "top")])
    state = bed.state()
    assert state["top:dependencies"] == {bed.queue.job(name) for name in ("old", "a", "b")}
    assert not [key for key in state if ":tb:" in key or key == "tb:flows"]


def test_a_root_that_has_been_started_is_not_removed(bed: Bed) -> None:
    broken_off(bed, 2)
    bed.admin.zrem(bed.queue.waiting_children, "top")
    bed.put("top", "active")
    bed.go(undo_flows(bed.queue, NOW))
    state = bed.state()
    assert state["active"] == ["top"]
    assert not {"c0", "c1", "top:dependencies", "tb:flows"} & set(state)

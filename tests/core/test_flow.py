"""The tree of a flow: its order, its ids, and what cannot be one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskbull.core.job import Branch, Need, NewJob, arrange
from taskbull.core.keys import QueueKeys
from taskbull.core.options import Dedup, JobOptions, Keep, OnFailure
from taskbull.core.wire.flow import decode_order, encode_members, encode_order
from taskbull.errors import ConfigurationError

QUEUE, OTHER = QueueKeys("q"), QueueKeys("other")
NOW = 1_800_000_000_000


def branch(
    name: str,
    *children: Branch | tuple[Branch, OnFailure],
    queue: QueueKeys = QUEUE,
    needs: tuple[Need, ...] = (),
    **options: Any,
) -> Branch:
    below: list[tuple[Branch, OnFailure]] = [
        (child, "fail") if isinstance(child, Branch) else child for child in children
    ]
    return Branch(queue, NewJob(name, {}, JobOptions(**options)), below, needs)


def drawn(place: int) -> str:
    return f"id{place}"


def test_jobs_stand_level_by_level_and_know_their_parents_and_children() -> None:
    tree = branch("top", branch("left", branch("ll"), branch("lr")), branch("right", branch("rl")))
    members = arrange(tree, drawn)
    assert [(one.branch.job.name, one.id, one.parent, list(one.children)) for one in members] == [
        ("top", "id0", None, [1, 2]),
        ("left", "id1", 0, [3, 4]),
        ("right", "id2", 0, [5]),
        ("ll", "id3", 1, []),
        ("lr", "id4", 1, []),
        ("rl", "id5", 2, []),
    ]


def test_a_job_keeps_its_own_id_also_the_same_in_two_queues() -> None:
    tree = branch("top", branch("a", job_id="mine"), branch("b", queue=OTHER, job_id="mine"))
    assert [one.id for one in arrange(tree, drawn)] == ["id0", "mine", "mine"]


FLAGS: dict[OnFailure, dict[str, bool]] = {
    "fail": {"fpof": True},
    "ignore": {"idof": True},
    "continue": {"cpof": True},
    "drop": {"rdof": True},
    "wait": {},
}


@pytest.mark.parametrize("policy", FLAGS)
@pytest.mark.parametrize("said_by", ["parent", "child"])
def test_each_policy_is_a_flag_of_bullmq(policy: OnFailure, said_by: str) -> None:
    child = branch("c", queue=OTHER, on_failure=policy if said_by == "child" else None)
    default: OnFailure = policy if said_by == "parent" else "drop"
    _, encoded = encode_members(arrange(branch("top", (child, default)), drawn), NOW)
    options = json.loads(encoded.options)
    assert options["parent"] == {"id": "id0", "queue": "bull:q"}
    assert {name: options[name] for name in options if name.endswith("of")} == FLAGS[policy]
    assert encoded.parent is not None
    assert json.loads(encoded.parent.stored) == {"id": "id0", "queueKey": "bull:q", **FLAGS[policy]}
    assert (encoded.parent.key, encoded.job_id) == ("bull:q:id0", "id1")


def test_the_trace_context_stays_at_the_end_of_the_options() -> None:
    child = Branch(QUEUE, NewJob("c", {}, telemetry='{"traceparent":"x"}'))
    _, encoded = encode_members(arrange(branch("top", child), drawn), NOW)
    assert encoded.options.endswith(b',"tm":"{\\"traceparent\\":\\"x\\"}"}')
    assert json.loads(encoded.options)["parent"]["id"] == "id0"


NEED = Need("text", "fetch", one=True)

REFUSED: dict[str, tuple[Branch, str]] = {
    "twice": (
        branch("top", branch("a", job_id="x"), branch("b", job_id="x")),
        "job x of queue q is in the flow twice",
    ),
    "its own parent": (
        branch("top", branch("a", job_id="x"), job_id="x"),
        "job x of queue q would wait for itself",
    ),
    "its own grandparent": (
        branch("top", branch("a", branch("b", job_id="x")), job_id="x"),
        "job x of queue q would wait for itself",
    ),
    "a dedup key": (
        branch("top", branch("a", dedup=Dedup("k"))),
        "Job 'a' of a flow cannot have a dedup",
    ),
    "a dedup key of the root": (branch("top", branch("a"), dedup="k"), "Job 'top' of a flow"),
    "a child that waits and is not kept": (
        branch("top", (branch("a", keep_failed=Keep.none()), "wait")),
        "would run as if it had completed",
    ),
    "no child to take from": (
        branch("count", branch("other"), needs=(NEED,)),
        "Parameter 'text' of task 'count' needs exactly one child 'fetch', but the job has none",
    ),
    "two children to take from": (
        branch("count", branch("fetch"), branch("fetch"), needs=(NEED,)),
        "the job has 2: use from_children for several",
    ),
    "a child that lacks its child": (
        branch("top", branch("count", needs=(NEED,))),
        "Parameter 'text' of task 'count'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_flow_is_refused(case: str) -> None:
    tree, told = REFUSED[case]
    with pytest.raises(ConfigurationError, match=told):
        arrange(tree, drawn)


def test_what_only_looks_wrong_is_accepted() -> None:
    arrange(branch("top", branch("a", on_failure="wait")), drawn)
    arrange(branch("top", (branch("a", keep_failed=Keep.none()), "ignore")), drawn)
    arrange(branch("report", needs=(Need("counts", "count", one=False),)), drawn)
    same = branch("a")
    arrange(branch("top", same, same), drawn)


def test_the_order_of_children_is_stored_in_runs() -> None:
    children = [("a", "q:", "1"), ("a", "q:", "2"), ("b", "q:", "3"), ("b", "r:", "3")]
    stored = encode_order(children)
    assert stored == '[["a","q:",["1","2"]],["b","q:",["3"]],["b","r:",["3"]]]'
    assert decode_order(stored.encode()) == children


@pytest.mark.parametrize("stored", [None, b"", b"{}", b"[1]", b"nonsense", b"\xff"])
def test_an_order_that_cannot_be_read_is_none(stored: bytes | None) -> None:
    assert decode_order(stored) is None

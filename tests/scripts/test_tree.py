"""Finding the children of a job by their keys, and the size of one call."""

from __future__ import annotations

import pytest

from taskbull.core.keys import JobState, QueueKeys
from taskbull.scripts.read import ChildKeys, Place, child_place, get_nodes, scan_children
from tests.scripts.bed import Bed

OWN = QueueKeys("q", "bull")
TAGGED = QueueKeys("q", "bull", cluster=True)


@pytest.mark.parametrize(
    ("beside", "key", "prefix", "queue", "job_id"),
    [
        (OWN, "bull:q:1", "bull", "q", "1"),
        (OWN, "bull:other:1", "bull", "other", "1"),
        (OWN, "bull:q:a:b:c", "bull", "q", "a:b:c"),
        (OWN, "bull:q:repeat:s:t:17", "bull", "q", "repeat:s:t:17"),
        (OWN, "bull:repeat:5", "bull", "repeat", "5"),
        (OWN, "else:q:1", "else", "q", "1"),
        (OWN, "a:b:q:1", "a:b", "q", "1"),
        (OWN, "bull:x:q:1", "bull:x", "q", "1"),
        (OWN, "bull:{q}:1", "bull", "{q}", "1"),
        (TAGGED, "bull:{q}:1", "bull", "q", "1"),
        (TAGGED, "bull:{other}:1", "bull", "other", "1"),
        (TAGGED, "{x}:other:1", "{x}", "other", "1"),
    ],
)
def test_a_child_is_found_by_its_key(
    beside: QueueKeys, key: str, prefix: str, queue: str, job_id: str
) -> None:
    place = child_place(Place(beside, "top"), key)
    assert place is not None
    assert (place.queue.prefix, place.queue.queue, place.job_id) == (prefix, queue, job_id)
    assert place.key == key
    assert place.parent_key == beside.job("top")


@pytest.mark.parametrize("key", ["a:b", "", "nothing", ":", "a::1", "::", f"bull:{'x' * 300}:1"])
def test_what_is_not_the_key_of_a_job_is_left_out(key: str) -> None:
    assert child_place(Place(OWN, "top"), key) is None


@pytest.mark.parametrize("length", [10, 1500])
def test_states_are_found_however_long_the_lists_are(bed: Bed, length: int) -> None:
    bed.job("runs", "active")
    bed.lock("runs")
    bed.job("waits", "wait")
    bed.job("parked", "paused")
    for state in ("completed", "failed", "delayed", "prioritized", "waiting-children"):
        bed.job(f"is-{state}", state)
    for place in ("active", "wait"):
        bed.admin.lpush(bed.queue.base + place, *[f"x{n}" for n in range(length)])
    expected = {
        "runs": "active",
        "waits": "waiting",
        "parked": "waiting",
        "is-completed": "completed",
        "is-failed": "failed",
        "is-delayed": "delayed",
        "is-prioritized": "prioritized",
        "is-waiting-children": "waiting-children",
    }
    nodes = bed.run(get_nodes([Place(bed.queue, job_id) for job_id in expected]))
    assert [node.state for node in nodes] == [JobState(state) for state in expected.values()]
    assert [node.job.id for node in nodes] == list(expected)


def test_a_job_in_no_list_is_in_no_known_state(bed: Bed) -> None:
    bed.job("lost", "")
    [node] = bed.run(get_nodes([Place(bed.queue, "lost")]))
    assert (node.state, node.removed) == (JobState.UNKNOWN, False)


def test_a_call_reads_so_many_bytes(bed: Bed) -> None:
    for job_id in ("a", "b", "c"):
        bed.job(job_id, data="x" * 30_000)
    nodes = bed.run(get_nodes([Place(bed.queue, job_id) for job_id in "abc"]))
    assert [node.job.id for node in nodes] == ["a", "b"]


def test_keys_of_the_wrong_type_are_as_if_they_were_not_there(bed: Bed) -> None:
    bed.job("top")
    for part in ("processed", "failed", "unsuccessful", "dependencies"):
        bed.admin.set(bed.queue.job("top") + f":{part}", "text")
    bed.admin.set(bed.queue.job("text"), "text")
    places = [Place(bed.queue, "top"), Place(bed.queue, "text", bed.queue.job("top"))]
    top, text = bed.run(get_nodes(places))
    assert (top.child_count, top.removed) == (0, False)
    assert (text.state, text.removed) == (JobState.UNKNOWN, True)
    page = bed.run(scan_children(places[0], ChildKeys(1, "0", []), 10))
    assert (page.place, page.keys) == (0, [])

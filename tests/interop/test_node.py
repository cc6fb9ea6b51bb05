"""The Node process itself: calls, errors, events, the clock, and its exit."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop.conftest import MakeActor
from tests.interop.node import UNDEFINED, Node, NodeStoppedError, Refused, Version, encode

pytestmark = pytest.mark.full  # Tests of the driver itself.


def test_an_unknown_operation_is_refused(node: Node) -> None:
    with pytest.raises(Refused, match="no such op: dance"):
        node.call("dance")


def test_a_refusal_has_the_code_of_bullmq(new_actor: MakeActor) -> None:
    with pytest.raises(Refused) as caught:
        new_actor(5).promote("missing")
    assert caught.value.code == -3


def test_a_call_has_a_deadline(node: Node, new_actor: MakeActor) -> None:
    actor = new_actor(5)
    job = actor.add("n")
    with pytest.raises(NodeStoppedError, match="no answer to waitUntilFinished"):
        actor.call("waitUntilFinished", job, 500, deadline=0.05)


def test_calls_from_many_threads_get_their_own_answers(new_actor: MakeActor) -> None:
    actor = new_actor(6)
    jobs = [actor.add("n", n) for n in range(50)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(actor.job, jobs))
    assert [job and job["data"] for job in found] == list(range(50))


def test_the_clock_can_be_set(node: Node, new_actor: MakeActor) -> None:
    actor = new_actor(5)
    actor.set_clock(1_700_000_000_000)
    node.call("tick", 5)
    assert (actor.job(actor.add("n")) or {})["timestamp"] == 1_700_000_000_005
    assert abs(node.call("realClock") - time.time() * 1000) < 60_000


def test_values_that_json_does_not_have() -> None:
    assert encode([UNDEFINED, float("inf"), {"x": float("-inf")}]) == [
        {"$undefined": True},
        {"$number": "Infinity"},
        {"x": {"$number": "-Infinity"}},
    ]
    assert encode(float("nan")) == {"$number": "NaN"}


def test_waiting_for_an_event_has_a_deadline(node: Node) -> None:
    with (
        node.events(deadline=0.05) as events,
        pytest.raises(NodeStoppedError, match="no event completed"),
    ):
        events.wait_for("completed")


def test_a_process_that_dies_says_so(interop_url: str, node: Node) -> None:
    with Node(interop_url) as dying:
        with pytest.raises(NodeStoppedError, match="last words"):
            dying.call("crash", "last words")
        with pytest.raises(NodeStoppedError):
            dying.call("ping")


def test_the_process_ends_with_its_block(interop_url: str, node: Node) -> None:
    with Node(interop_url) as brief:
        assert brief.call("ping") == "pong"
    with pytest.raises(NodeStoppedError):
        brief.call("ping")


@pytest.mark.parametrize("version", [5, 6])
def test_a_trace_goes_through_a_job(version: Version, node: Node, new_actor: MakeActor) -> None:
    actor = new_actor(version)
    node.call("spans")
    job = actor.call("add", "n", {}, None, queueOptions={"telemetry": True})
    carrier = json.loads(job["opts"]["telemetry"]["metadata"])
    worker = actor.worker(telemetry=True)
    worker.take()
    worker.process(job["id"], {"*": [[["return", 1]]]})
    traces = {span["traceId"] for span in node.call("spans") if span["name"].startswith("process")}
    assert traces == {carrier["traceparent"].split("-")[1]}


def test_a_process_that_cannot_start_says_why(interop_url: str, node: Node) -> None:
    with (
        pytest.raises(NodeStoppedError, match="Cannot find module"),
        Node(interop_url, driver="missing.mjs"),
    ):
        pass

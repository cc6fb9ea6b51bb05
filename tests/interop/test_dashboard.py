"""The dashboard on queues that only Node has touched, of both versions."""

from __future__ import annotations

import re

import pytest

from taskbull.dashboard import Dashboard
from tests.dashboard.conftest import Visitor
from tests.dashboard.test_pages import texts
from tests.interop.actor import Behaviour
from tests.interop.conftest import MakeActor
from tests.interop.node import Version


@pytest.mark.parametrize("version", [5, 6])
async def test_a_queue_of_node_is_shown_and_changed(
    new_actor: MakeActor, interop_url: str, version: Version
) -> None:
    actor = new_actor(version)
    actor.add_bulk([{"name": "greet", "data": {"to": "ann", "token": "s3cret"}}] * 3)
    worker = actor.worker()
    failed, done = worker.take(), worker.take()
    assert failed is not None
    assert done is not None
    worker.fail(failed, "no such user 42", name="TypeError")
    worker.complete(done, {"sent": True})
    actor.add("later", {}, {"delay": 3_600_000})
    actor.pause()
    visitor = Visitor(Dashboard(redis=interop_url, prefix=actor.prefix))

    overview = texts((await visitor.get("")).text)
    assert "q paused" in overview
    queue = await visitor.get("queue?q=q")
    read = texts(queue.text)
    assert f"bullmq:{version}." in read
    assert "Waiting 1 Active 0 Delayed 1 Prioritized 0 Children 0 Failed 1 Done 1" in read
    assert "s3cret" not in queue.text
    assert "no such user 42" in texts((await visitor.get("errors?q=q")).text)
    job = texts((await visitor.get(f"job?q=q&id={failed}")).text)
    assert "It failed permanently" in job
    assert "no such user 42" in job
    asked = await visitor.post("confirm", {"action": "pause", "q": "q"})
    assert ("BullMQ 5 uses this queue" in texts(asked.text)) is (version == 5)

    await visitor.act("resume", q="q")
    assert not actor.is_paused()
    [group] = set(re.findall(r'name="group" value="(\w+)"', (await visitor.get("errors?q=q")).text))
    await visitor.act("retry-group", q="q", group=group, most="all")
    assert actor.worker().take() is not None
    assert actor.worker().take() is not None
    assert actor.worker().take() is None


@pytest.mark.parametrize("version", [5, 6])
async def test_errors_that_retries_of_node_hide_are_shown(
    new_actor: MakeActor, interop_url: str, version: Version
) -> None:
    actor = new_actor(version)
    refused = ["throw", {"name": "TypeError", "message": "port 25 refused"}]
    behaviour: Behaviour = {
        "later": [[refused]],
        "soon": [[refused], [["progress", 1], ["wait", None], ["return", 1]]],
        "fine": [[["return", 1]]],
    }
    backoff = {"type": "fixed", "delay": 3_600_000}
    with actor.running(behaviour, concurrency=5) as worker:
        later = actor.add("later", {}, {"attempts": 3, "backoff": backoff})
        worker.wait_for("failed", jobId=later)
        worker.wait_for("failed", jobId=actor.add("later", {}, {"attempts": 3, "backoff": backoff}))
        worker.wait_for("completed", jobId=actor.add("fine", {}, {"attempts": 3}))
        soon = actor.add("soon", {}, {"attempts": 3})
        worker.wait_for("progress", jobId=soon)  # its second attempt runs
        visitor = Visitor(Dashboard(redis=interop_url, prefix=actor.prefix))
        page = (await visitor.get("errors?q=q")).text
        worker.release(soon)
        worker.wait_for("completed", jobId=soon)
    assert "No failed jobs." in texts(page)
    [hidden] = re.findall(r'id="hidden">(.*?)</tbody>', page)
    rows = sorted(texts(row) for row in re.findall(r"<tr>(.*?)</tr>", hidden))
    assert rows == [
        f"1 – TypeError: port 25 refused example: {soon} soon",
        f"2 – TypeError: port 25 refused example: {later} later",
    ]

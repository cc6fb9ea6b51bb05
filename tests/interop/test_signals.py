"""Node sends signals to jobs that wait here, and sees their states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import fail_after

from taskbull import App, JobState, SignalTimeout, current_job, step
from taskbull.queue.handle import JobHandle
from tests.interop.conftest import MakeActor
from tests.interop.node import Version
from tests.interop.node_actor import NodeActor

LIMIT = 60.0

VERSIONS = pytest.mark.parametrize("version", [5, 6])


class Publisher:
    """A task that waits for an answer, on a queue that Node uses as well."""

    def __init__(self, url: str, prefix: str) -> None:
        self.app = app = App("publisher", redis=url, prefix=prefix)
        self.drafts: list[str] = []

        @step
        async def draft(text: str) -> str:
            self.drafts.append(text)
            return text.upper()

        @app.task(queue="q", attempts=1)
        async def publish(text: str, timeout: float | None = None) -> list[Any]:
            drafted = await draft(text)
            try:
                answer = await current_job().await_signal("approval", dict, timeout=timeout)
            except SignalTimeout:
                return [drafted, "too late"]
            return [drafted, answer]

        self.publish = publish

    async def until_waiting(self, job: JobHandle[Any]) -> None:
        while await job.astate() is not JobState.WAITING_CHILDREN:  # noqa: ASYNC110 - no event
            await anyio.sleep(0.01)


@pytest.fixture
def publisher(interop_url: str) -> Callable[[NodeActor], Publisher]:
    return lambda node: Publisher(interop_url, node.prefix)


@VERSIONS
async def test_node_answers_with_update_data_and_promote(
    version: Version, new_actor: MakeActor, publisher: Callable[[NodeActor], Publisher]
) -> None:
    node = new_actor(version)
    ours = publisher(node)
    with fail_after(LIMIT):
        async with ours.app.worker(["q"]).running():
            job = await ours.publish.adelay("text")
            await ours.until_waiting(job)
            assert node.state(job.id) == "waiting-children"
            wait = f"{job.id}-signal-approval-1"
            seen = node.job(wait)
            assert seen is not None
            assert node.state(wait) == "delayed"
            assert seen["data"] == {"job": job.id, "signal": "approval", "until": None}
            node.update_data(wait, {**seen["data"], "value": {"ok": True, "by": "ann"}})
            node.promote(wait)
            assert await job.aresult() == ["TEXT", {"ok": True, "by": "ann"}]
            assert node.state(job.id) == "completed"
            assert node.job(wait) is None
            assert (await job.ainfo()).attempts_made == 1
    assert ours.drafts == ["text"]


@VERSIONS
async def test_node_adds_a_signal_as_a_job_before_and_during_a_wait(
    version: Version, new_actor: MakeActor, publisher: Callable[[NodeActor], Publisher]
) -> None:
    node = new_actor(version)
    ours = publisher(node)
    with fail_after(LIMIT):
        early = await ours.publish.adelay("early")
        node.add("taskbull.signal", {"job": early.id, "name": "approval", "value": {"n": 1}})
        async with ours.app.worker(["q"]).running():
            assert await early.aresult() == ["EARLY", {"n": 1}]
            job = await ours.publish.adelay("text")
            await ours.until_waiting(job)
            node.add("taskbull.signal", {"job": job.id, "name": "approval", "value": {"n": 2}})
            assert await job.aresult() == ["TEXT", {"n": 2}]


@VERSIONS
async def test_node_ends_a_wait_by_promoting_or_removing_it(
    version: Version, new_actor: MakeActor, publisher: Callable[[NodeActor], Publisher]
) -> None:
    node = new_actor(version)
    ours = publisher(node)
    with fail_after(LIMIT):
        async with ours.app.worker(["q"]).running():
            job = await ours.publish.adelay("text", 3600)
            await ours.until_waiting(job)
            node.promote(f"{job.id}-signal-approval-1")
            assert await job.aresult() == ["TEXT", "too late"]
            other = await ours.publish.adelay("text", 3600)
            await ours.until_waiting(other)
            node.call("job.remove", other.id)
            assert node.state(other.id) == "unknown"
            assert node.job(f"{other.id}-signal-approval-1") is None


@VERSIONS
@pytest.mark.parametrize("by", ["node", "ours"])
@pytest.mark.parametrize("how", ["clean", "drain", "remove"])
async def test_cleaning_removes_a_waiting_job_and_removing_its_wait_runs_it(
    version: Version,
    new_actor: MakeActor,
    publisher: Callable[[NodeActor], Publisher],
    by: str,
    how: str,
) -> None:
    node = new_actor(version)
    ours = publisher(node)
    queue = ours.app.queue("q")
    with fail_after(LIMIT):
        async with ours.app.worker(["q"]).running():
            job = await ours.publish.adelay("text")
            await ours.until_waiting(job)
            wait = f"{job.id}-signal-approval-1"
            if how == "clean" and by == "node":
                assert node.clean(0, 0, "delayed") == [wait]
            elif how == "clean":
                assert await queue.clean(0, 0, "delayed") == [wait]
            elif how == "drain" and by == "node":
                node.drain(delayed=True)
            elif how == "drain":
                assert await queue.drain(delayed=True) == 1
            elif by == "node":
                node.call("job.remove", wait)
            else:
                await queue.remove(wait)
            if how == "remove":  # The job runs again, and waits again.
                await job.asignal("approval", {"ok": True})
                assert await job.aresult() == ["TEXT", {"ok": True}]
            else:
                assert node.state(job.id) == "unknown"
            assert node.job(wait) is None
    assert ours.drafts == ["text"]


@pytest.mark.parametrize("version", [6])
async def test_removing_orphaned_jobs_keeps_steps(
    version: Version, new_actor: MakeActor, publisher: Callable[[NodeActor], Publisher]
) -> None:
    node = new_actor(version)
    ours = publisher(node)
    with fail_after(LIMIT):
        async with ours.app.worker(["q"]).running():
            job = await ours.publish.adelay("text")
            await ours.until_waiting(job)
            node.call("removeOrphanedJobs")
            await job.asignal("approval", {"ok": True})
            assert await job.aresult() == ["TEXT", {"ok": True}]
    assert ours.drafts == ["text"]

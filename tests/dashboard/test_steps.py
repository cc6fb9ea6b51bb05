"""Steps and waits on the job page, and the form that sends a signal."""

from __future__ import annotations

import html
from typing import Any

import httpx
import pytest
import redis

from taskbull import App, JobState, current_job, step
from taskbull.dashboard import Dashboard
from tests.dashboard.conftest import Visitor
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


@pytest.fixture
def visitor(server: Reachable, prefix: str) -> Visitor:
    return Visitor(Dashboard(redis=server.url, prefix=prefix))


async def test_the_job_page_shows_steps_and_sends_a_signal(
    visitor: Visitor, server: Reachable, prefix: str
) -> None:
    app = App("texts", redis=server.url, prefix=prefix)

    @step
    async def draft(text: str) -> str:
        return text

    @app.task(queue="emails", attempts=1)
    async def publish() -> Any:
        await draft("<secret>")
        return await current_job().await_signal("approval", dict, timeout=86_400)

    job = await publish.adelay()
    await app.run_worker(["emails"], burst=True)
    assert await job.astate() is JobState.WAITING_CHILDREN
    page = (await visitor.get(f"job?q=emails&id={job.id}")).text
    assert "step 'draft'" in html.unescape(page)
    assert "waiting until" in page
    assert "Send…" in page
    assert page.count('class="fill step"') == 1
    assert page.count('class="fill waiting"') == 1
    assert "It has been waiting for the signal" in page

    async def send(**fields: Any) -> httpx.Response:
        return await visitor.act("signal", q="emails", id=job.id, **fields)

    for wrong in ({"signal": "approval", "value": "{"}, {"signal": "a:b", "value": "1"}):
        assert (await send(**wrong)).status_code == 400
    said = await visitor.said(await send(signal="approval", value='{"ok": true}'))
    assert html.unescape(said) == "1 job got signal 'approval'."
    await app.run_worker(["emails"], burst=True)
    assert await job.aresult() == {"ok": True}
    assert 'class="fill signal"' in (await visitor.get(f"job?q=emails&id={job.id}")).text
    assert "Skipped" in await visitor.said(await send(signal="approval", value="1"))


async def test_a_wait_of_a_cancelled_job_has_no_button(
    visitor: Visitor, server: Reachable, prefix: str
) -> None:
    app = App("texts", redis=server.url, prefix=prefix)

    @app.task(queue="emails", attempts=1)
    async def publish() -> None:
        await current_job().await_signal("approval")

    job = await publish.adelay()
    await app.run_worker(["emails"], burst=True)
    await job.acancel()
    page = (await visitor.get(f"job?q=emails&id={job.id}")).text
    assert "not finished" in page
    assert "Send…" not in page


async def test_a_job_without_steps_has_no_table(
    visitor: Visitor, server: Reachable, prefix: str
) -> None:
    app = App("texts", redis=server.url, prefix=prefix)
    job = await app.queue("emails").add("any", {})
    page = (await visitor.get(f"job?q=emails&id={job.id}")).text
    assert 'id="steps" hidden' in page
    assert redis.Redis.from_url(server.url).exists(f"{prefix}:emails:{job.id}:tb:steps") == 0

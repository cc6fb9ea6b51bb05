"""Tests of a web service that adds jobs: without Redis, and on a private server.

pip install 'taskbull[embedded]' fastapi httpx pytest
pytest
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from reports import app, build_report
from web import api, lifespan

from taskbull.testing import Box, Server, connected

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of the tests, the same as uvicorn's."""
    return "asyncio"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service, which runs a worker unless jobs are recorded."""
    transport = httpx.ASGITransport(api)
    async with lifespan(api), httpx.AsyncClient(transport=transport, base_url="http://it") as made:
        yield made


async def test_an_order_adds_a_job(taskbull_recorded: Box, client: httpx.AsyncClient) -> None:
    ordered = await client.post("/reports", json={"customer": "Ann", "pages": 3})
    assert ordered.status_code == 202
    taskbull_recorded.assert_enqueued(build_report, customer="Ann", pages=3)


@pytest.fixture
def redis(taskbull_server: Server) -> Iterator[None]:
    """Let the app use the private server."""
    with connected(app, taskbull_server.url):
        yield


@pytest.mark.usefixtures("redis")
async def test_the_worker_of_the_service_builds_a_report(client: httpx.AsyncClient) -> None:
    ordered = await client.post("/reports", json={"customer": "Ann", "pages": 1})
    job = app.job(build_report.queue, ordered.json()["id"])
    await job.aresult(timeout=30)
    report = (await client.get(f"/reports/{job.id}")).json()
    assert (report["state"], report["result"]) == ("completed", {"customer": "Ann", "pages": 1})

"""A dashboard in this process, called through ASGI as by a web server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from taskbull import SyncQueue
from taskbull.dashboard import Dashboard
from tests.servers.kinds import Reachable

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}

MakeQueue = Callable[[str], SyncQueue]


class Visitor:
    """A browser without JavaScript, on this machine."""

    def __init__(self, dashboard: Any, peer: str = "127.0.0.1", root: str = "") -> None:
        transport = httpx.ASGITransport(app=dashboard, client=(peer, 50_000), root_path=root)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def get(self, address: str, **headers: str) -> httpx.Response:
        return await self.client.get(f"/{address}", headers=_named(headers))

    async def post(self, address: str, form: dict[str, Any], **headers: str) -> httpx.Response:
        given = _named(headers) or SAME_ORIGIN
        return await self.client.post(f"/{address}", data=form, headers=given)

    async def act(self, action: str, **fields: Any) -> httpx.Response:
        """Request an action and confirm it, with the form's fields and these."""
        asked = await self.post("confirm", {"action": action, **fields})
        assert asked.status_code == 200, asked.text
        [once] = re.findall(r'name="once" value="([0-9a-f]+)"', asked.text)
        return await self.post("act", {"action": action, "once": once, **fields})

    async def said(self, answer: httpx.Response) -> str:
        """Return the notice that an action shows."""
        assert answer.status_code == 303, answer.text
        page = await self.get(answer.headers["location"].removeprefix("./"))
        [notice] = re.findall(r'class="notice" role="status">([^<]*)<', page.text)
        return str(notice)


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture(autouse=True)
def whole_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first page wait until all queues are found, even on a busy machine."""
    for module in ("queue_line", "state"):
        monkeypatch.setattr(f"taskbull.dashboard.{module}._SEARCH_SECONDS", 60.0)


@pytest.fixture
def make_queue(server: Reachable, prefix: str) -> Iterator[MakeQueue]:
    made: list[SyncQueue] = []

    def make(name: str) -> SyncQueue:
        made.append(SyncQueue(name, redis=server.url, prefix=prefix))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def dashboard(server: Reachable, prefix: str) -> Dashboard:
    return Dashboard(redis=server.url, prefix=prefix)


@pytest.fixture
def visitor(dashboard: Dashboard) -> Visitor:
    return Visitor(dashboard)

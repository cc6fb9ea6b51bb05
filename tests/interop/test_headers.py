"""Headers of jobs, written by one side and read by the other."""

from __future__ import annotations

from typing import cast

import pytest
from anyio import fail_after

from taskbull import App, current_job
from tests.interop.conftest import MakeActor
from tests.interop.node import Version


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_both_sides_read_the_headers_of_the_other(
    new_actor: MakeActor, interop_url: str, version: int
) -> None:
    node = new_actor(cast("Version", version))
    app = App("shop", redis=interop_url, prefix=node.prefix, queue="q")

    @app.task
    async def headers() -> dict[str, str]:
        return current_job().headers

    ours = await headers.options(headers={"request_id": "ü-1"}).adelay()
    assert (node.job(ours.id) or {})["opts"]["headers"] == {"request_id": "ü-1"}
    theirs = node.add("headers", {}, {"headers": {"tenant": "acme", "number": 3}})
    with fail_after(60):
        async with app.worker().running():
            assert await ours.aresult() == {"request_id": "ü-1"}
            assert await app.job("q", theirs).aresult() == {"tenant": "acme", "number": "3"}
    app.close()

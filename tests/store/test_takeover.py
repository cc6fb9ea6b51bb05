"""A new link closes the previous one on the server, so that requests in flight are dropped."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from anyio import fail_after

from taskbull.errors import MaybeExecuted
from taskbull.scripts.call import Command
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import ConnectionOptions
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy


def ping() -> Command[bytes]:
    return Command(("PING",), "", lambda reply: reply)


def kills(admin: redis.Redis) -> int:
    stats: Any = admin.info("commandstats")
    return int(stats.get("cmdstat_client|kill", {}).get("calls", 0))


async def test_the_former_link_is_ended_on_the_servers_side(private_server: PrivateServers) -> None:
    server = private_server()
    with (
        redis.Redis.from_url(server.url) as admin,
        Proxy(("127.0.0.1", server.port)) as proxy,
    ):
        async with open_store(parse(proxy.url), ConnectionOptions(response_timeout=0.4)) as store:
            await store.run(ping())
            assert kills(admin) == 0
            proxy.black_hole()
            with pytest.raises(MaybeExecuted), fail_after(60):
                await store.run(ping())
            proxy.heal()
            with fail_after(60):
                await store.run(ping())
            assert kills(admin) == 1


async def test_nobody_is_killed_by_the_number_of_a_former_run(
    private_server: PrivateServers,
) -> None:
    server = private_server()
    async with open_store(parse(server.url)) as store:
        await store.run(ping())
        server.kill()
        server.start()
        with fail_after(60):
            while True:
                try:
                    await store.run(ping())
                    break
                except MaybeExecuted:
                    continue
        with redis.Redis.from_url(server.url) as admin:
            assert kills(admin) == 0

"""A new link ends the one before on the server's side: what is still on its way is dropped."""

from __future__ import annotations

import pytest
import redis
from anyio import fail_after

from taskbull.errors import MaybeExecuted
from taskbull.scripts.call import Command
from taskbull.store.address import parse
from taskbull.store.aio import open_store
from taskbull.store.dialing import ConnectionOptions
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy


def ping() -> Command[bytes]:
    return Command(("PING",), "", lambda reply: reply)


def client_ids(admin: redis.Redis) -> set[int]:
    return {int(client["id"]) for client in admin.client_list()}


async def test_the_former_link_is_closed_by_the_server(private_server: PrivateServers) -> None:
    server = private_server()
    admin = redis.Redis.from_url(server.url)
    with Proxy(("127.0.0.1", server.port)) as proxy:
        options = ConnectionOptions(response_timeout=0.4)
        async with open_store(parse(proxy.url), options) as store:
            before = client_ids(admin)
            await store.run(ping())
            [former] = client_ids(admin) - before
            proxy.black_hole()  # the server goes on to believe in the link
            with pytest.raises(MaybeExecuted), fail_after(10):
                await store.run(ping())
            assert former in client_ids(admin)
            proxy.heal()
            with fail_after(10):
                await store.run(ping())
            assert former not in client_ids(admin)
    admin.close()

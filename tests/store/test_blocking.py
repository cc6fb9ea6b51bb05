"""Blocking commands: woken, timed out, cancelled, and never left waiting on a dead peer."""

from __future__ import annotations

from time import monotonic

import anyio
import pytest
import redis
from anyio import create_task_group, fail_after, move_on_after

from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import SLACK, Change, LinkLost
from tests.servers.kinds import PrivateServers, Reachable
from tests.servers.waiting import wait_until
from tests.store.sample import count
from tests.store.test_connection import LIMIT, QUICK, proxy_to


def named(admin: redis.Redis, name: str) -> int:
    """Count the connections of that name."""
    return sum(client["name"] == name for client in admin.client_list())


async def until_blocked(admin: redis.Redis, name: str) -> None:
    await anyio.to_thread.run_sync(
        wait_until,
        lambda: any(
            client["name"] == name and "b" in client["flags"] for client in admin.client_list()
        ),
        f"{name} is blocked",
    )


async def test_a_blocked_command_is_woken(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    replies: list[object] = []
    async with open_store(parse(server.url)) as store:
        line = store.blocking(prefix, name=prefix)

        async def wait() -> None:
            replies.append(await line.execute(("BZPOPMIN", prefix, 10), 10))

        with fail_after(LIMIT):
            async with create_task_group() as tasks:
                tasks.start_soon(wait)
                await until_blocked(admin, prefix)
                admin.zadd(prefix, {"0": 0})
        await line.close()
    assert replies == [[prefix.encode(), b"0", b"0"]]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_replies_come_in_an_event_loop_that_anyio_did_not_start(
    server: Reachable, admin: redis.Redis, prefix: str, loop: str
) -> None:
    run = pytest.importorskip(loop).run
    admin.zadd(prefix, {"0": 0})

    async def wait() -> object:
        async with open_store(parse(server.url)) as store:
            line = store.blocking(prefix)
            try:
                return await line.execute(("BZPOPMIN", prefix, 10), 10)
            finally:
                await line.close()

    assert run(wait()) == [prefix.encode(), b"0", b"0"]


async def test_nothing_comes_of_a_wait_that_times_out(server: Reachable, prefix: str) -> None:
    async with open_store(parse(server.url)) as store:
        line = store.blocking(prefix)
        assert await line.execute(("BZPOPMIN", prefix, 0.05), 0.05) is None
        assert await line.execute(("PING",), 1) == b"PONG"  # The same connection continues.
        await line.close()


async def test_a_cancelled_wait_is_forgotten_by_the_server_too(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    async with open_store(parse(server.url)) as store:
        line = store.blocking(prefix, name=prefix)
        with fail_after(LIMIT):
            async with create_task_group() as tasks:
                tasks.start_soon(line.execute, ("BZPOPMIN", prefix, 60), 60)
                await until_blocked(admin, prefix)
                tasks.cancel_scope.cancel()
            await anyio.to_thread.run_sync(
                wait_until, lambda: named(admin, prefix) == 0, "the connection is gone"
            )
            admin.zadd(prefix, {"0": 0})
            assert await line.execute(("BZPOPMIN", prefix, 1), 1) == [prefix.encode(), b"0", b"0"]
        await line.close()


async def test_a_silent_peer_is_given_up_soon_after_the_servers_own_time_out(
    server: Reachable, prefix: str
) -> None:
    changes: list[Change] = []
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), QUICK, changes.append) as store:
            line = store.blocking(prefix)
            assert await line.execute(("PING",), 1) == b"PONG"
            proxy.black_hole()
            began = monotonic()
            assert await line.execute(("BZPOPMIN", prefix, 0.1), 0.1) is None
            assert monotonic() - began >= 0.1 + SLACK
            proxy.heal()
            assert await line.execute(("PING",), 1) == b"PONG"
            await line.close()
    assert proxy.accepted == 2


async def test_a_cut_wait_counts_as_no_reply_and_the_next_one_works(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    changes: list[Change] = []
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), QUICK, changes.append) as store:
            line = store.blocking(prefix, name=prefix)
            replies: list[object] = []

            async def wait() -> None:
                replies.append(await line.execute(("BZPOPMIN", prefix, 60), 60))

            async with create_task_group() as tasks:
                tasks.start_soon(wait)
                await until_blocked(admin, prefix)
                proxy.cut()
            assert replies == [None]
            assert await line.execute(("PING",), 1) == b"PONG"
            await line.close()
    assert any(isinstance(change, LinkLost) for change in changes)


async def test_a_wait_outlives_a_restart_of_the_server(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    with fail_after(LIMIT):
        async with open_store(parse(server.url), QUICK) as store:
            line = store.blocking(prefix)
            assert await line.execute(("PING",), 1) == b"PONG"
            server.kill()
            assert await line.execute(("BZPOPMIN", prefix, 60), 60) is None
            async with create_task_group() as tasks:
                tasks.start_soon(line.execute, ("BZPOPMIN", prefix, 0.1), 0.1)
                await anyio.to_thread.run_sync(server.start)
            assert await line.execute(("PING",), 1) == b"PONG"
            await line.close()


async def test_a_blocked_command_holds_up_nobody_else(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    async with open_store(parse(server.url)) as store:
        line = store.blocking(prefix, name=prefix)
        with fail_after(LIMIT):
            async with create_task_group() as tasks:
                tasks.start_soon(line.execute, ("BZPOPMIN", f"{prefix}:marker", 60), 60)
                await until_blocked(admin, prefix)
                assert await store.run(count(prefix)) == 1
                tasks.cancel_scope.cancel()


async def test_a_wait_that_is_cancelled_while_it_connects_leaves_nothing(
    server: Reachable, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.refuse()
        async with open_store(parse(proxy.url), QUICK) as store:
            line = store.blocking(prefix)
            with move_on_after(0.05) as scope:
                await line.execute(("PING",), 1)
            assert scope.cancelled_caught
            proxy.accept()
            assert await line.execute(("PING",), 1) == b"PONG"
            await line.close()

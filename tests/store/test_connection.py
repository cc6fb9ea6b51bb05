"""One connection from the callers' view, with a healthy and a broken network."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
import redis
from anyio import create_task_group, fail_after, move_on_after

from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.store.address import parse
from taskbull.store.async_store import Store, ambient_store, open_store
from taskbull.store.connection import Change, Connected, ConnectionOptions, DialFailed, LinkLost
from tests.servers.kinds import PrivateServers, Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until
from tests.store.sample import command, count, echo

LIMIT = 60.0  # for a whole test: nothing here may hang

QUICK = ConnectionOptions(longest_delay=0.1, response_timeout=0.8)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait, in a thread, for a state outside of this program."""
    await anyio.to_thread.run_sync(wait_until, condition, what)


def runs(admin: redis.Redis, key: str) -> int:
    return int(admin.hget(key, "runs") or 0)


def proxy_to(server: Reachable) -> Proxy:
    endpoint = parse(server.url).endpoints[0]
    return Proxy((endpoint.host, endpoint.port))


async def test_each_of_many_callers_gets_its_own_replies(server: Reachable, prefix: str) -> None:
    async with open_store(parse(server.url)) as store:

        async def call_often(caller: int) -> None:
            for number in range(30):
                text = f"{caller}-{number}-" + "x" * (number * 97)
                assert await store.run(echo(prefix, text)) == text

        async with create_task_group() as callers:
            for caller in range(100):
                callers.start_soon(call_often, caller)


async def test_many_callers_share_one_connection(server: Reachable, prefix: str) -> None:
    with proxy_to(server) as proxy:
        async with open_store(parse(proxy.url)) as store, create_task_group() as callers:
            for _ in range(50):
                callers.start_soon(store.run, count(prefix))
        assert proxy.accepted == 1


async def test_several_calls_run_in_order_in_one_trip(server: Reachable, prefix: str) -> None:
    async with open_store(parse(server.url)) as store:
        assert await store.run_all([count(prefix) for _ in range(5)]) == [1, 2, 3, 4, 5]


async def test_an_unused_store_does_not_connect(server: Reachable) -> None:
    with proxy_to(server) as proxy:
        async with open_store(parse(proxy.url)):
            await anyio.lowlevel.checkpoint()
        assert proxy.accepted == 0


async def test_a_command_whose_reply_was_cut_off_may_have_been_executed(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), QUICK) as store:
            await store.run(count(prefix))
            proxy.cut_before_reply(prefix.encode())
            with pytest.raises(MaybeExecuted):
                await store.run(count(prefix))
            assert runs(admin, prefix) == 2
            assert await store.run(count(prefix)) == 3


async def test_a_command_that_was_cut_off_on_its_way_is_not_sent_again(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), QUICK) as store:
            await store.run(count(prefix))
            proxy.cut_before_request(prefix.encode())
            with pytest.raises(MaybeExecuted):
                await store.run(count(prefix))
            assert await store.run(count(prefix)) == 2
            assert runs(admin, prefix) == 2


async def test_what_was_not_yet_sent_goes_out_with_the_next_connection(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    changes: list[Change] = []
    async with open_store(parse(server.url), QUICK, changes.append) as store:
        server.stop()
        results: list[int] = []

        async def call() -> None:
            results.append(await store.run(count(prefix)))

        with fail_after(LIMIT):
            async with create_task_group() as callers:
                for _ in range(10):
                    callers.start_soon(call)
                await until(lambda: DialFailed in map(type, changes), "a first try has failed")
                await anyio.to_thread.run_sync(server.start)
    assert sorted(results) == list(range(1, 11))


async def test_a_cancelled_caller_takes_an_unsent_command_along(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.refuse()
        async with open_store(parse(proxy.url), QUICK) as store:
            with move_on_after(0.05) as scope:
                await store.run(count(prefix))
            assert scope.cancelled_caught
            proxy.accept()
            assert await store.run(count(prefix, "other")) == 1
        assert runs(admin, prefix) == 0


async def test_a_cancelled_caller_leaves_the_others_replies_alone(
    server: Reachable, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url)) as store:
            await store.run(echo(prefix, "first"))
            proxy.slow_down(0.2)
            with move_on_after(0.05):
                await store.run(echo(prefix, "unread"))
            assert await store.run(echo(prefix, "read")) == "read"


async def test_past_its_deadline_an_unsent_command_was_not_executed(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.refuse()
        async with open_store(parse(proxy.url), QUICK) as store:
            with pytest.raises(ConnectionLost, match=r"tried for 0\.\d+ s"):
                await store.run(count(prefix), timeout=0.2)
            proxy.accept()
            await store.run(count(prefix, "other"))
        assert runs(admin, prefix) == 0


async def test_past_its_deadline_a_sent_command_may_have_been_executed(
    server: Reachable, prefix: str
) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url)) as store:
            await store.run(count(prefix))
            proxy.black_hole()
            with pytest.raises(MaybeExecuted, match=r"within 0\.\d+ s"):
                await store.run(count(prefix), timeout=0.2)


async def test_a_peer_that_went_silent_is_given_up(server: Reachable, prefix: str) -> None:
    changes: list[Change] = []
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url), QUICK, changes.append) as store:
            await store.run(count(prefix))
            proxy.black_hole()
            with pytest.raises(MaybeExecuted, match=r"no reply for 0\.8 s"):
                await store.run(count(prefix))
            proxy.heal()
            assert await store.run(count(prefix)) == 2
    assert [type(change) for change in changes if not isinstance(change, DialFailed)] == [
        Connected,
        LinkLost,
        Connected,
    ]


async def test_a_slow_reply_is_not_a_silent_peer(private_server: PrivateServers) -> None:
    server = private_server({"enable-debug-command": "yes"})
    async with open_store(parse(server.url), QUICK) as store:
        # Two commands of less than half the limit each: the oldest is never too old.
        assert await store.run_all([command("DEBUG", "SLEEP", "0.4")] * 2) == [b"OK", b"OK"]


async def test_several_calls_have_a_limit(server: Reachable, prefix: str) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url)) as store:
            assert await store.run_all([count(prefix)] * 2, timeout=20) == [1, 2]
            proxy.black_hole()
            with pytest.raises(MaybeExecuted, match=r"within 0\.1 s"):
                await store.run_all([count(prefix)] * 2, timeout=0.1)


async def test_callers_wait_for_room_when_much_waits_to_be_sent(
    server: Reachable, prefix: str
) -> None:
    megabyte = "x" * (1 << 20)
    done: list[int] = []
    with proxy_to(server) as proxy, fail_after(60):
        async with open_store(parse(proxy.url)) as store, create_task_group() as callers:

            async def call(number: int) -> None:
                assert len(await store.run(echo(prefix, megabyte))) == len(megabyte)
                done.append(number)

            for number in range(60):
                callers.start_soon(call, number)
    assert len(done) == 60


async def test_after_its_block_a_store_refuses_calls(server: Reachable, prefix: str) -> None:
    async with open_store(parse(server.url)) as store:
        await store.run(count(prefix))
    with pytest.raises(ConnectionLost, match="closed"):
        await store.run(count(prefix))


async def test_waiting_calls_fail_when_a_store_closes(server: Reachable, prefix: str) -> None:
    errors: list[Exception] = []
    changes: list[Change] = []
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.refuse()
        async with create_task_group() as callers:

            async def call(store: Store) -> None:
                try:
                    await store.run(count(prefix))
                except ConnectionLost as error:
                    errors.append(error)

            async with open_store(parse(proxy.url), QUICK, changes.append) as store:
                callers.start_soon(call, store)
                await until(lambda: len(changes) > 0, "a first try has failed")
    assert len(errors) == 1


async def test_an_error_in_the_block_comes_out_as_it_is(server: Reachable) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_store(parse(server.url)):
            raise LookupError("mine")


async def test_a_limit_of_attempts_ends_the_store(server: Reachable, prefix: str) -> None:
    options = ConnectionOptions(max_reconnect_attempts=3, longest_delay=0.01)
    changes: list[Change] = []
    with proxy_to(server) as proxy, fail_after(LIMIT):
        proxy.refuse()
        with pytest.raises(ConnectionLost, match="cannot connect"):
            async with open_store(parse(proxy.url), options, changes.append) as store:
                await store.run(count(prefix))
    assert [change.attempts for change in changes if isinstance(change, DialFailed)] == [1, 2]


async def test_a_store_without_a_block_lives_with_the_event_loop(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    store = ambient_store(parse(server.url))
    assert await store.run(count(prefix)) == 1
    admin.client_kill_filter(_type="normal", skipme=True)
    with fail_after(LIMIT):
        while True:
            try:
                assert await store.run(count(prefix)) >= 2
                break
            except MaybeExecuted:
                continue


async def test_database_user_and_socket_are_taken_from_the_url(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    url = f"unix://ann:s%40crêt@{server.socket}?db=3"
    with redis.Redis(port=server.port, db=3) as admin:
        admin.acl_setuser("ann", enabled=True, passwords=["+s@crêt"], keys="*", commands=["+@all"])
        async with open_store(parse(url)) as store:
            assert await store.run(count(prefix)) == 1
            assert await store.run(command("ACL", "WHOAMI")) == b"ann"
        assert runs(admin, prefix) == 1


async def test_a_name_that_is_no_host_is_reported_and_tried_again(prefix: str) -> None:
    changes: list[Change] = []
    address = parse("redis://no-such-host.invalid:1")
    async with open_store(address, QUICK, changes.append) as store:
        with pytest.raises(ConnectionLost):
            await store.run(count(prefix), timeout=1.0)
    assert any(
        isinstance(change, DialFailed) and "no-such-host.invalid:1" in change.reason
        for change in changes
    )

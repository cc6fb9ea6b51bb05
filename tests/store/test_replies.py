"""Each error reply leads to the documented reaction, with real servers, in every store."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import pytest
import redis
from anyio import create_task_group, fail_after, to_thread

from taskbull.errors import (
    ConnectionLost,
    MaybeExecuted,
    ServerRefused,
    ServerUnavailable,
)
from taskbull.scripts.call import Request
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import ConnectionOptions
from taskbull.store.run_server import ask
from taskbull.store.server_process import ServerProcess
from taskbull.store.sync_store import SyncStore
from tests.servers.cluster import Cluster
from tests.servers.kinds import REDIS_6, REDIS_7, VALKEY_9, PrivateServers
from tests.servers.proxy import Proxy
from tests.servers.waiting import plain_client, wait_until
from tests.store.sample import ECHO, Peer, Words, command, count, echo, greet, stop_half_way

T = TypeVar("T")

LIMIT = 60.0  # For a whole test, because nothing here may hang.
ENDLESS = "while true do end"
QUICK = ConnectionOptions(longest_delay=0.1)


@pytest.fixture(scope="module", params=["asyncio", "trio", "sync"])
def way(request: pytest.FixtureRequest) -> str:
    """A way to run calls: with the store of an event loop, or with the sync one in threads."""
    return str(request.param)


@pytest.fixture(scope="module")
def anyio_backend(way: str) -> str:
    return "trio" if way == "trio" else "asyncio"


@pytest.fixture(params=[VALKEY_9, REDIS_6, REDIS_7])
def own(request: pytest.FixtureRequest, private_server: PrivateServers) -> ServerProcess:
    """A private server of each kind in turn."""
    return private_server(kind=request.param)


@pytest.fixture
def client(own: ServerProcess) -> Iterator[Any]:
    with plain_client(own) as client:
        yield client


class Run(Protocol):
    """`run` of any store."""

    def __call__(self, call: Request[T], /, *, timeout: float | None = None) -> Awaitable[T]: ...


@asynccontextmanager
async def running(way: str, url: str) -> AsyncIterator[Run]:
    """Open a store, and limit the time of the test in the block."""
    with fail_after(LIMIT):
        if way != "sync":
            async with open_store(parse(url), QUICK) as store:
                yield store.run
            return
        sync = SyncStore(parse(url))

        async def run(call: Request[T], /, *, timeout: float | None = None) -> T:
            return await to_thread.run_sync(partial(sync.run, call, timeout=timeout))

        try:
            yield run
        finally:
            sync.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    await to_thread.run_sync(wait_until, condition, what)


def calls_of(client: Any, name: str) -> int:
    """Return the calls of a command since the server's statistics were reset."""
    stats = client.execute_command("INFO", "commandstats")
    for line in stats.splitlines():
        if line.lower().startswith(f"cmdstat_{name}:calls="):
            return int(line.partition("=")[2].partition(",")[0])
    return 0


def runs(client: Any, key: str) -> int:
    return int(client.hget(key, "runs") or 0)


async def refusal(run: Awaitable[Any]) -> ServerRefused:
    with pytest.raises(ServerRefused) as caught:
        await run
    return caught.value


# Temporary refusals.


LOADING_SLOWLY = {"key-load-delay": "3000", "rdbcompression": "no"}


def fill(server: ServerProcess) -> None:
    with plain_client(server) as client, client.pipeline() as pipeline:
        for number in range(100):
            pipeline.set(f"filling:{number}", "x" * 100_000)
        pipeline.execute()


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6, REDIS_7])
async def test_a_server_that_still_loads_its_data_is_waited_for(
    private_server: PrivateServers, kind: str, way: str, prefix: str
) -> None:
    server = private_server(LOADING_SLOWLY, kind=kind)
    fill(server)
    with plain_client(server) as client:
        client.execute_command("SAVE")
    server.kill()
    server._spawn()
    await until(lambda: (ask(server.socket, "PING") or "").startswith("-LOADING"), "it loads")
    async with running(way, server.url) as run:
        assert await run(count(prefix)) == 1


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6, REDIS_7])
async def test_a_server_that_loads_its_data_again_is_waited_for(
    private_server: PrivateServers, kind: str, way: str, prefix: str
) -> None:
    debugging = {} if kind == REDIS_6 else {"enable-debug-command": "yes"}
    server = private_server(LOADING_SLOWLY | debugging, kind=kind)
    fill(server)
    with plain_client(server) as client:
        async with running(way, server.url) as run:
            assert await run(count(prefix)) == 1
            async with create_task_group() as others:
                others.start_soon(to_thread.run_sync, client.execute_command, "DEBUG", "RELOAD")
                await until(
                    lambda: (ask(server.socket, "PING") or "").startswith("-LOADING"), "it loads"
                )
                assert await run(count(prefix)) == 2


async def test_a_primary_that_becomes_a_replica_is_waited_for(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    async with running(way, own.url) as run:
        assert await run(count(prefix)) == 1
        client.execute_command("CONFIG", "RESETSTAT")
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        results: list[int] = []

        async def call() -> None:
            results.append(await run(count(prefix)))

        async with create_task_group() as callers:
            callers.start_soon(call)
            await until(lambda: calls_of(client, "evalsha") >= 3, "it was tried in vain")
            assert await run(echo(prefix, "reading")) == "reading"
            assert results == []
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert results == [2]
    assert runs(client, prefix) == 2


async def test_a_replica_for_good_is_reported_when_time_is_up(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    async with running(way, own.url) as run:
        refused = await refusal(run(count(prefix), timeout=1.5))
    assert refused.code == "READONLY"
    assert isinstance(refused, ServerUnavailable)
    assert runs(client, prefix) == 0


async def test_too_few_replicas_are_waited_for(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    async with running(way, own.url) as run:
        client.execute_command("CONFIG", "SET", "min-replicas-to-write", "1")
        assert (await refusal(run(count(prefix), timeout=1.5))).code == "NOREPLICAS"
        client.execute_command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert await run(count(prefix)) == 1


async def test_a_server_that_runs_somebodys_endless_script_is_waited_for(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    client.execute_command("CONFIG", "SET", "lua-time-limit", "10")
    async with running(way, own.url) as run:
        assert await run(count(prefix)) == 1
        async with create_task_group() as others:
            others.start_soon(to_thread.run_sync, run_endless_script, own)
            await until(lambda: (ask(own.socket, "PING") or "").startswith("-BUSY"), "it is busy")
            refused = await refusal(run(count(prefix), timeout=1.5))  # N5: with time for a reply.
            assert refused.code == "BUSY"
            results: list[int] = []

            async def call() -> None:
                results.append(await run(count(prefix)))

            async with create_task_group() as callers:
                callers.start_soon(call)
                await anyio.lowlevel.checkpoint()
                assert results == []
                await to_thread.run_sync(client.execute_command, "SCRIPT", "KILL")
            assert results == [2]


def run_endless_script(server: ServerProcess) -> None:
    with plain_client(server) as client, suppress(redis.RedisError):
        client.execute_command("EVAL", ENDLESS, 0)


async def test_a_new_connection_to_a_busy_server_is_waited_for(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    client.execute_command("CONFIG", "SET", "lua-time-limit", "10")
    async with create_task_group() as others:
        others.start_soon(to_thread.run_sync, run_endless_script, own)
        await until(lambda: (ask(own.socket, "PING") or "").startswith("-BUSY"), "it is busy")
        async with running(way, own.url) as run:
            with pytest.raises((ConnectionLost, ServerUnavailable)):
                await run(count(prefix), timeout=0.3)
            await to_thread.run_sync(client.execute_command, "SCRIPT", "KILL")
            assert await run(count(prefix)) == 1


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6, REDIS_7])
async def test_a_slot_that_nobody_serves_is_reported_when_time_is_up(
    private_server: PrivateServers, kind: str, way: str, prefix: str
) -> None:
    server = private_server({"cluster-enabled": "yes"}, kind=kind)
    async with running(way, server.url) as run:
        refused = await refusal(run(count(prefix), timeout=1.5))
    assert refused.code == "CLUSTERDOWN"
    assert isinstance(refused, ServerUnavailable)


# No


async def test_a_full_server_is_reported_immediately_and_nothing_is_written(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    async with running(way, own.url) as run:
        assert await run(count(prefix)) == 1
        client.execute_command("CONFIG", "SET", "maxmemory", "1")
        client.execute_command("CONFIG", "RESETSTAT")
        refused = await refusal(run(count(prefix)))
        assert refused.code == "OOM"
        assert not isinstance(refused, ServerUnavailable)
        assert calls_of(client, "evalsha") == 1
        assert (await refusal(run(stop_half_way(f"{prefix}:other")))).code == "OOM"
        assert client.exists(f"{prefix}:other") == 0
        client.execute_command("CONFIG", "SET", "maxmemory", "0")
        assert await run(count(prefix)) == 2


@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6, REDIS_7])
async def test_a_server_that_cannot_save_is_reported_immediately(
    private_server: PrivateServers, kind: str, way: str, prefix: str
) -> None:
    server = private_server({"save": "3600 1"}, kind=kind)
    in_the_way = server.folder / "dump.rdb"
    with plain_client(server) as client:
        async with running(way, server.url) as run:
            assert await run(count(prefix)) == 1
            in_the_way.mkdir()
            await until(lambda: saving_is(client, "err"), "it has failed to save")
            assert (await refusal(run(count(prefix)))).code == "MISCONF"
            assert await run(echo(prefix, "reading")) == "reading"
            in_the_way.rmdir()
            await until(lambda: saving_is(client, "ok"), "it has saved")
            assert await run(count(prefix)) == 2


def saving_is(client: Any, status: str) -> bool:
    with suppress(redis.ResponseError):  # one is under way
        client.execute_command("BGSAVE")
    return f"rdb_last_bgsave_status:{status}" in client.execute_command("INFO", "persistence")


@pytest.mark.parametrize(
    ("login", "code"), [("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("anna:wrong@", "WRONGPASS")]
)
@pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6, REDIS_7])
async def test_a_rejected_login_fails_immediately(
    private_server: PrivateServers, kind: str, login: str, code: str, way: str, prefix: str
) -> None:
    server = private_server({"requirepass": "right"}, kind=kind)
    async with running(way, f"redis://{login}127.0.0.1:{server.port}") as run:
        refused = await refusal(run(count(prefix)))
        assert refused.code == code
        assert "wrong" not in str(refused).replace("WRONGPASS", "")
        assert (await refusal(run(count(prefix)))).code == code


@pytest.mark.parametrize(
    ("rights", "problem"),
    [
        ("+ping +info", "evalsha"),
        ("+ping +info +evalsha", "script"),
        # Redis 7 does not name the command there.
        ("+ping +info +evalsha +script", "hincrby|script"),
        ("+info +evalsha +script +hincrby", "ping"),
    ],
)
async def test_a_missing_permission_fails_immediately(
    own: ServerProcess, client: Any, way: str, prefix: str, rights: str, problem: str
) -> None:
    client.execute_command("ACL", "SETUSER", "anna", "on", ">pw", "~*", *rights.split())
    async with running(way, f"redis://anna:pw@127.0.0.1:{own.port}") as run:
        refused = await refusal(run(count(prefix)))
    assert refused.code in {"NOPERM", "ERR"}
    assert re.search(problem, str(refused))
    assert runs(client, prefix) == 0


async def test_a_script_that_fails_in_the_middle_is_not_run_again(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    async with running(way, own.url) as run:
        await refusal(run(stop_half_way(f"{prefix}:first")))
        client.execute_command("CONFIG", "RESETSTAT")
        refused = await refusal(run(stop_half_way(prefix)))
        assert calls_of(client, "evalsha") == 1
        assert refused.code == "WRONGTYPE"
        assert client.get(prefix) == "done"


# Wrong node, or missing scripts.


async def test_a_script_that_the_server_forgot_is_loaded_again(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    async with running(way, own.url) as run:
        for number in range(1, 4):
            assert await run(count(prefix)) == number
            client.execute_command("SCRIPT", "FLUSH")


async def test_many_callers_load_a_script_once(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    if way == "sync":
        pytest.skip("threads do not know of each other's calls")
    async with running(way, own.url) as run:
        await run(command("PING", key=prefix))
        client.execute_command("CONFIG", "RESETSTAT")

        async def call() -> None:
            await run(count(prefix))

        async with create_task_group() as callers:
            for _ in range(100):
                callers.start_soon(call)
    assert runs(client, prefix) == 100
    loads = "script" if "redis_version:6" in client.execute_command("INFO", "server") else None
    assert calls_of(client, loads or "script|load") == 1


async def test_a_node_of_a_cluster_that_was_taken_for_a_single_server_is_reported(
    cluster: Cluster, way: str, prefix: str
) -> None:
    async with running(way, cluster.other_than(cluster.owner(prefix)).server.url) as run:
        refused = await refusal(run(count(prefix)))
    assert refused.code == "MOVED"
    assert "redis+cluster://" in str(refused)


async def test_a_single_server_that_was_taken_for_a_cluster_is_reported(
    private_server: PrivateServers, way: str, prefix: str
) -> None:
    url = f"redis+cluster://127.0.0.1:{private_server().port}"
    async with running(way, url) as run:
        with pytest.raises(
            ValueError, match="is not a node of a Redis Cluster: use a redis:// URL"
        ):
            await run(count(prefix))


# Blocked


async def test_a_blocked_command_that_is_unblocked_with_an_error_has_no_reply(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    if way == "sync":
        pytest.skip("the sync store has no blocking commands")
    with fail_after(LIMIT):
        async with open_store(parse(own.url)) as store:
            blocking = store.blocking(prefix)
            replies: list[Any] = []

            async def wait() -> None:
                replies.append(await blocking.execute(("BZPOPMIN", prefix, 10), 10.0))

            async with create_task_group() as callers:
                callers.start_soon(wait)
                await until(lambda: len(blocked(client)) == 1, "it is blocked")
                client.execute_command("CLIENT", "UNBLOCK", blocked(client)[0], "ERROR")
            assert replies == [None]
            client.zadd(prefix, {"member": 1})
            assert await blocking.execute(("BZPOPMIN", prefix, 10), 10.0) == [
                *(prefix.encode(), b"member"),
                b"1",
            ]
            await blocking.close()


def blocked(client: Any) -> list[str]:
    lines = client.execute_command("CLIENT", "LIST").splitlines()
    return [line.split()[0].removeprefix("id=") for line in lines if "cmd=bzpopmin" in line]


async def test_a_server_that_becomes_a_replica_ends_the_wait_and_is_asked_again(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    if way == "sync":
        pytest.skip("the sync store has no blocking commands")
    with fail_after(LIMIT):
        async with open_store(parse(own.url)) as store:
            blocking = store.blocking(prefix)
            replies: list[Any] = []

            async def wait() -> None:
                replies.append(await blocking.execute(("BZPOPMIN", prefix, 10), 10.0))

            async with create_task_group() as callers:
                callers.start_soon(wait)
                await until(lambda: len(blocked(client)) == 1, "it is blocked")
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
            assert replies == [None]
            client.execute_command("REPLICAOF", "NO", "ONE")
            client.zadd(prefix, {"member": 1})
            reply = await blocking.execute(("BZPOPMIN", prefix, 10), 10.0)
            assert reply == [prefix.encode(), b"member", b"1"]
            await blocking.close()


# Servers other than Redis.


@contextmanager
def web_server() -> Iterator[str]:
    with http.server.HTTPServer(
        ("127.0.0.1", 0),
        type("Quiet", (http.server.BaseHTTPRequestHandler,), {"log_message": mute}),
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"redis://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def mute(*_: object) -> None:
    pass


async def test_a_web_server_is_no_redis(way: str, prefix: str) -> None:
    with web_server() as url:
        async with running(way, url) as run:
            for _ in range(2):
                refused = await refusal(run(count(prefix)))
                assert refused.code == "PROTOCOL"
                assert "does not speak the Redis protocol" in str(refused)


class Answers:
    """A peer's replies to the commands after the handshake. Later, it only does handshakes."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = list(answers)

    def __call__(self, words: Words) -> bytes | None:
        if words[0] in {b"ECHO", b"EVALSHA", b"SCRIPT"} and self._answers:
            return self._answers.pop(0)
        return greet(words)


async def test_nonsense_instead_of_a_reply_leaves_doubt_and_the_next_call_works(
    way: str, prefix: str
) -> None:
    with Peer(Answers(b"What did you say?\r\n")) as peer:
        async with running(way, peer.url) as run:
            with pytest.raises(MaybeExecuted, match="does not speak the Redis protocol"):
                await run(command("ECHO", key=prefix))
            assert await run(command("ECHO", key=prefix)) == b"ECHO"
        assert peer.accepted == 2


async def test_a_reply_too_many_does_not_reach_the_next_caller(way: str, prefix: str) -> None:
    with Peer(Answers(b"+mine\r\n+nobody's\r\n")) as peer:
        async with running(way, peer.url) as run:
            with suppress(MaybeExecuted):
                assert await run(command("ECHO", key=prefix)) == b"mine"
            assert await run(command("ECHO", key=prefix)) == b"ECHO"
        assert peer.accepted == 2


async def test_a_reply_that_is_cut_off_leaves_doubt(way: str, prefix: str) -> None:
    with Peer(Answers(None)) as peer:
        async with running(way, peer.url) as run:
            with pytest.raises(MaybeExecuted, match="closed by the server before the reply came"):
                await run(command("ECHO", key=prefix))
            assert await run(command("ECHO", key=prefix)) == b"ECHO"


NOSCRIPT = b"-NOSCRIPT No matching script.\r\n"


async def test_the_time_of_a_call_includes_the_loading_of_its_script(way: str, prefix: str) -> None:
    with Peer(Answers(NOSCRIPT, b"")) as peer:  # It does not reply to SCRIPT LOAD.
        async with running(way, peer.url) as run:
            with fail_after(LIMIT), pytest.raises((ConnectionLost, MaybeExecuted)):
                await run(count(prefix), timeout=0.4)


async def test_a_script_whose_loading_was_cut_off_has_not_run(
    private_server: PrivateServers, way: str, prefix: str
) -> None:
    server = private_server()
    with Proxy(("127.0.0.1", server.port)) as proxy:
        async with running(way, proxy.url) as run:
            proxy.cut_before_reply(b"LOAD")
            assert await run(count(prefix)) == 1
            assert proxy.cuts == 1


async def test_loading_is_tried_again_when_the_server_cannot_just_then(
    way: str, prefix: str
) -> None:
    with Peer(Answers(NOSCRIPT, b"-LOADING not yet\r\n", NOSCRIPT, b"+sha\r\n", b":7\r\n")) as peer:
        async with running(way, peer.url) as run:
            assert await run(count(prefix)) == 7


# All together.


async def test_trouble_of_some_is_no_trouble_of_others(
    own: ServerProcess, client: Any, way: str, prefix: str
) -> None:
    async with running(way, own.url) as run:

        async def succeed(number: int) -> None:
            assert await run(echo(prefix, f"{number}")) == f"{number}"
            assert await run(count(prefix, f"{number}")) == 1

        async def fail(number: int) -> None:
            await refusal(run(stop_half_way(f"{prefix}:{number}")))
            assert (await refusal(run(command("NONSENSE", key=prefix)))).code == "ERR"

        async with create_task_group() as callers:
            for number in range(30):
                callers.start_soon(succeed, number)
                callers.start_soon(fail, number)
                if number % 10 == 9:
                    client.execute_command("SCRIPT", "FLUSH")
    assert client.hlen(prefix) == 30
    assert client.execute_command("SCRIPT", "EXISTS", ECHO.sha) in ([0], [1])

"""Credentials that are requested for each connection, on servers whose password changes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio.lowlevel
import pytest
import redis
import redis.asyncio
import redis.sentinel
from anyio import fail_after, to_thread

from taskbull import App, ConfigurationError, EnqueueError, Queue, SyncQueue, Worker
from taskbull.core.options import WorkerOptions
from taskbull.errors import ConnectionLost
from taskbull.store.address import address_of
from taskbull.worker.running_job import RunningJob
from tests.servers.cluster import Cluster
from tests.servers.kinds import PrivateServers
from tests.servers.sentinel import SentinelSet
from tests.servers.waiting import wait_until
from tests.worker.bed import LIMIT


class Tokens:
    """The tokens of user "app", which are replaced on all servers, and how often one was asked."""

    def __init__(self, *ports: int) -> None:
        self._admins: list[Any] = [redis.Redis(port=port) for port in ports]
        self._serial = 0
        self.asked = 0
        self.rotate()

    @property
    def token(self) -> str:
        return f"hush-{self._serial}"

    def rotate(self) -> None:
        """Replace the token, and close all connections that used the former one."""
        self._serial += 1
        rules = ("on", "resetpass", f">{self.token}", "~*", "&*", "+@all")
        for admin in self._admins:
            admin.execute_command("ACL", "SETUSER", "app", *rules)
            admin.execute_command("CLIENT", "KILL", "USER", "app", "SKIPME", "yes")

    def __call__(self) -> tuple[str, str]:
        self.asked += 1
        return "app", self.token

    def only_token(self) -> str:
        return self()[1]

    async def wait_and_ask(self) -> tuple[str, str]:
        await anyio.lowlevel.checkpoint()
        return self()

    def await_renewal(self, lock: str) -> None:
        """Wait until the expiry of a lock is extended."""
        [admin] = self._admins
        former = [int(admin.pttl(lock))]

        def is_renewed() -> bool:
            former.append(int(admin.pttl(lock)))
            return former[-1] > former[-2]

        wait_until(is_renewed, "the lock is renewed")

    def close(self) -> None:
        for admin in self._admins:
            admin.execute_command("ACL", "DELUSER", "app")
            admin.close()


class SyncProvider(redis.CredentialProvider):
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def get_credentials(self) -> tuple[str, str]:
        return self._tokens()


class AsyncProvider(redis.CredentialProvider):
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def get_credentials_async(self) -> tuple[str, str]:
        return await self._tokens.wait_and_ask()


SHAPES: dict[str, Callable[[Tokens], Any]] = {
    "function": lambda tokens: tokens,
    "async": lambda tokens: tokens.wait_and_ask,
    "partial": lambda tokens: functools.partial(tokens.wait_and_ask),
    "provider": SyncProvider,
    "async provider": AsyncProvider,
}


@pytest.fixture
def port(private_server: PrivateServers) -> int:
    return private_server().port


@pytest.fixture
def tokens(port: int) -> Iterator[Tokens]:
    made = Tokens(port)
    yield made
    made.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_sync_connections_ask_each_time(port: int, tokens: Tokens, shape: str) -> None:
    url = f"redis://localhost:{port}"
    queue = SyncQueue("emails", redis=url, credentials=SHAPES[shape](tokens))
    queue.add("one")
    for rotation in range(1, 4):
        tokens.rotate()
        queue.add("next")
        assert tokens.asked >= rotation + 1
    assert sum(queue.counts().values()) == 4


@pytest.mark.parametrize("shape", SHAPES)
async def test_async_connections_ask_each_time(port: int, tokens: Tokens, shape: str) -> None:
    url = f"redis://localhost:{port}"
    queue = Queue("emails", redis=url, credentials=SHAPES[shape](tokens))
    await queue.add("one")
    for rotation in range(1, 4):
        await to_thread.run_sync(tokens.rotate)
        await queue.add("next")
        assert tokens.asked >= rotation + 1
    assert sum((await queue.counts()).values()) == 4


@pytest.mark.parametrize("shape", SHAPES)
async def test_all_connections_of_a_worker_ask(port: int, tokens: Tokens, shape: str) -> None:
    url, source = f"redis://localhost:{port}", SHAPES[shape](tokens)
    queue = Queue("emails", redis=url, credentials=source)

    async def handler(job: RunningJob) -> str:
        if job.name == "slow":  # its lock is renewed by a thread with its own connection
            await to_thread.run_sync(tokens.rotate)
            await to_thread.run_sync(tokens.await_renewal, f"bull:emails:{job.id}:lock")
        return job.name

    options = WorkerOptions(lock_duration=30, heartbeat_interval=0.2)
    worker = Worker("emails", handler, redis=url, credentials=source, options=options)
    with fail_after(LIMIT):
        async with worker.running():
            for name in ("one", "slow", "three"):
                job = await queue.add(name)
                assert await job.aresult(timeout=LIMIT) == name
                await to_thread.run_sync(tokens.rotate)


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
async def test_a_client_with_a_provider(port: int, tokens: Tokens, kind: Any) -> None:
    client = kind(port=port, credential_provider=SyncProvider(tokens))
    app = App("shop", redis=client)

    @app.task
    async def greet() -> None: ...

    for _ in range(2):
        await greet.adelay()
        await to_thread.run_sync(greet.delay)
        await to_thread.run_sync(tokens.rotate)
    assert tokens.asked >= 4


def test_the_user_in_the_url_counts_if_only_a_password_is_returned(
    port: int, tokens: Tokens
) -> None:
    url = f"redis://app:old@localhost:{port}"
    SyncQueue("emails", redis=url, credentials=tokens.only_token).add("one")


async def test_nodes_of_a_cluster(cluster: Cluster) -> None:
    tokens = Tokens(*(node.port for node in cluster.nodes))
    try:
        url = f"redis+cluster://localhost:{cluster.nodes[0].port}"
        provider = SyncProvider(tokens)
        client = redis.RedisCluster(
            host="127.0.0.1", port=cluster.nodes[0].port, credential_provider=provider
        )
        assert address_of(client).credentials.provider is not None
        client.close()
        for name in ("a", "b", "c", "d"):
            queue = Queue(name, redis=url, credentials=provider)
            sync_queue = SyncQueue(name, redis=url, credentials=provider)
            for _ in range(2):
                await queue.add("one")
                await to_thread.run_sync(sync_queue.add, "two")
                await to_thread.run_sync(tokens.rotate)
    finally:
        tokens.close()


async def test_the_primary_of_sentinels(sentinels: SentinelSet) -> None:
    await to_thread.run_sync(sentinels.await_ready)
    tokens = Tokens(sentinels.master.port)
    try:
        queue = Queue("emails", redis=sentinels.url, credentials=tokens)
        sync_queue = SyncQueue("emails", redis=sentinels.url, credentials=tokens)
        for _ in range(2):
            await queue.add("one")
            await to_thread.run_sync(sync_queue.add, "two")
            await to_thread.run_sync(tokens.rotate)
    finally:
        tokens.close()


def broken() -> str:
    raise LookupError("the token service is down")


async def test_an_error_is_reported_with_its_cause(port: int) -> None:
    where: dict[str, Any] = {"redis": f"redis://localhost:{port}", "credentials": broken}
    queue = Queue("emails", enqueue_timeout=1, call_timeout=1, **where)
    sync_queue = SyncQueue("emails", enqueue_timeout=1, call_timeout=1, **where)
    message = r"broken\(\) raised LookupError: the token service is down"
    with pytest.raises(EnqueueError, match=message) as caught:
        await queue.add("one")
    assert caught.value.spec
    with pytest.raises(ConnectionLost, match=message):
        await queue.counts()
    with pytest.raises(EnqueueError, match=message):
        await to_thread.run_sync(sync_queue.add, "one")
    with pytest.raises(ConnectionLost, match=message):
        await to_thread.run_sync(sync_queue.counts)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_provider_that_hangs_does_not_hang_its_callers(port: int, is_async: bool) -> None:
    over = threading.Event()

    def hang() -> str:
        over.wait()
        return "p"

    async def ahang() -> str:
        return await to_thread.run_sync(hang, abandon_on_cancel=True)

    ask: Any = ahang if is_async else hang
    where: dict[str, Any] = {"redis": f"redis://localhost:{port}", "credentials": ask}
    queue = Queue("emails", enqueue_timeout=0.3, call_timeout=0.3, **where)
    sync_queue = SyncQueue("emails", enqueue_timeout=0.3, call_timeout=0.3, **where)
    try:
        with pytest.raises(EnqueueError):
            await queue.add("one")
        with pytest.raises(ConnectionLost):
            await queue.counts()
        with pytest.raises(EnqueueError, match=r"hang\(\) raised TimeoutError: it took longer"):
            await to_thread.run_sync(sync_queue.add, "one")
        with pytest.raises(ConnectionLost):
            await to_thread.run_sync(sync_queue.counts)
    finally:
        over.set()


async def test_a_wrong_token_is_retried_and_never_shown(port: int, tokens: Tokens) -> None:
    def outdated() -> tuple[str, str]:
        return "app", "hush-0"

    where: dict[str, Any] = {"redis": f"redis://localhost:{port}", "credentials": outdated}
    for adding in (
        functools.partial(Queue("emails", enqueue_timeout=1, **where).add, "one"),
        functools.partial(
            to_thread.run_sync,
            functools.partial(SyncQueue("emails", enqueue_timeout=1, **where).add, "one"),
        ),
    ):
        with pytest.raises(
            EnqueueError, match=r"rejects the credentials that .*outdated"
        ) as caught:
            await adding()
        assert "hush" not in repr(caught.value)


async def test_a_token_that_is_replaced_a_moment_later_is_waited_for(
    port: int, tokens: Tokens
) -> None:
    def late() -> tuple[str, str]:
        user, token = tokens()
        return user, "hush-0" if tokens.asked < 3 else token

    where: dict[str, Any] = {"redis": f"redis://localhost:{port}", "credentials": late}
    await Queue("emails", **where).add("one")
    tokens.asked = 0
    await to_thread.run_sync(SyncQueue("emails", **where).add, "one")
    assert tokens.asked >= 3


@pytest.mark.parametrize(
    "answer", [None, b"hush", ("app", 5), ("a", "b", "hush"), (), {"password": "hush"}, ["hush"]]
)
async def test_a_wrong_answer_is_refused_without_showing_it(port: int, answer: Any) -> None:
    where: dict[str, Any] = {"redis": f"redis://localhost:{port}", "credentials": lambda: answer}
    rule = r"must return a password or \(user, password\), got"
    for asking in (
        Queue("emails", **where).counts,
        functools.partial(to_thread.run_sync, SyncQueue("emails", **where).counts),
        functools.partial(Queue("emails", **where).add, "one"),
        functools.partial(to_thread.run_sync, SyncQueue("emails", **where).add, "one"),
    ):
        with pytest.raises((ConfigurationError, EnqueueError), match=rule) as caught:
            await asking()
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["hush", ("app", "hush"), 5])
def test_a_fixed_password_is_refused_without_showing_it(wrong: Any) -> None:
    for make in (App, Queue, SyncQueue):
        with pytest.raises(ConfigurationError, match="must be a function") as caught:
            make("x", redis="redis://localhost", credentials=wrong)
        assert "hush" not in str(caught.value)


def test_an_embedded_server_has_no_users() -> None:
    with pytest.raises(ConfigurationError, match="embedded"):
        App("x", redis="embedded://", credentials=lambda: "p")

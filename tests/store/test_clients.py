"""A redis-py client instead of a URL: its settings are read, and it is never used.  # G5"""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from taskbull import App, ConfigurationError, Queue, SyncQueue, Worker
from taskbull.store.address import Address, Endpoint, Tls, address_of, parse
from taskbull.store.credentials import Credentials
from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable
from tests.worker.bed import echo

CLIENTS = [redis.Redis, redis.asyncio.Redis]
SENTINELS = [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel]
HERE = (Endpoint("localhost", 6379),)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, Address("single", HERE)),
        ({"host": "h", "port": 1, "db": 2}, Address("single", (Endpoint("h", 1),), db=2)),
        ({"password": "p"}, Address("single", HERE, Credentials(None, "p"))),
        ({"username": "u", "password": "p"}, Address("single", HERE, Credentials("u", "p"))),
        ({"username": "u"}, Address("single", HERE, Credentials("u", ""))),
        (
            {"unix_socket_path": "/run/x", "db": 3},
            Address("single", (Endpoint(path="/run/x"),), db=3),
        ),
        ({"ssl": True}, Address("single", HERE, tls=Tls())),
        (
            {"ssl": True, "ssl_cert_reqs": "none"},
            Address("single", HERE, tls=Tls(cert_reqs="none")),
        ),
    ],
)
def test_a_client_of_one_server(kind: Any, settings: dict[str, Any], address: Address) -> None:
    assert address_of(kind(**settings)) == address


@pytest.mark.parametrize("kind", CLIENTS)
def test_what_a_client_was_made_from_is_what_is_read(kind: Any, tmp_path: Path) -> None:
    ca = Certificates(tmp_path).ca_file
    for url in (
        "redis://anna:p%40ss@h:7000/3",
        f"rediss://:p@h?ssl_ca_certs={ca}",
        "unix:///run/redis.sock?db=2",
    ):
        assert address_of(kind.from_url(url)) == parse(url)


@pytest.mark.parametrize("kind", SENTINELS)
def test_the_client_of_a_primary_leads_to_its_sentinels(kind: Any) -> None:
    sentinel = kind(
        [("one", 26379), ("two", 1)],
        sentinel_kwargs={"username": "watch", "password": "s"},
        password="p",
    )
    assert address_of(sentinel.master_for("mymaster", db=2)) == Address(
        "sentinel",
        (Endpoint("one", 26379), Endpoint("two", 1)),
        Credentials(None, "p"),
        2,
        service="mymaster",
        sentinel_credentials=Credentials("watch", "s"),
    )


@pytest.mark.parametrize("kind", SENTINELS)
def test_what_leads_to_no_primary_is_refused(kind: Any) -> None:
    sentinel = kind([("one", 26379)])
    with pytest.raises(ConfigurationError, match="not to replicas"):
        address_of(sentinel.slave_for("mymaster"))
    with pytest.raises(ConfigurationError, match="master_for"):
        address_of(sentinel)


def test_a_client_of_a_cluster(cluster: Cluster) -> None:
    port = cluster.nodes[0].port
    sync = redis.RedisCluster(host="127.0.0.1", port=port)
    found = address_of(sync)
    sync.close()
    assert found.topology == "cluster"
    assert Endpoint("127.0.0.1", port) in found.endpoints


async def test_an_async_client_of_a_cluster() -> None:
    client = redis.asyncio.RedisCluster(host="c", port=7000, username="u", password="p", ssl=True)
    assert address_of(client) == Address(
        "cluster", (Endpoint("c", 7000),), Credentials("u", "p"), tls=Tls()
    )


def test_a_client_may_ask_somebody_for_its_password() -> None:
    provider = redis.UsernamePasswordCredentialProvider("u", "p")
    client = redis.Redis(credential_provider=provider)
    assert address_of(client).credentials.within(10).words == ("AUTH", "u", "p")


@pytest.mark.parametrize("wrong", [5, {"host": "h", "password": "hush"}, ["redis://h"], object()])
def test_anything_else_is_refused_without_showing_it(wrong: Any) -> None:
    for make in (App, Queue, SyncQueue):
        with pytest.raises(ConfigurationError, match="redis must be a URL") as caught:
            make("x", redis=wrong)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_everything_takes_one_and_leaves_it_alone(
    kind: Any, server: Reachable, prefix: str
) -> None:
    client = kind.from_url(server.url)
    app = App("x", redis=client, prefix=prefix)
    job = await app.queue("q").add("x")
    assert await Queue("q", redis=client, prefix=prefix).get_job(job.id) is not None
    assert SyncQueue("q", redis=client, prefix=prefix).counts()["waiting"] == 1
    assert Worker("q", echo, redis=client).address == parse(server.url)
    assert client.connection_pool._available_connections == []


def test_redis_asyncio_is_not_imported_for_it() -> None:
    code = (
        "import sys, redis, taskbull;"
        "had = 'redis.asyncio' in sys.modules;"
        "app = taskbull.App('x', redis=redis.Redis());"
        "sys.exit(('redis.asyncio' in sys.modules) != had)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_verify_flags_of_a_client_are_obeyed(kind: Any) -> None:  # S10
    flag = ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    address = address_of(kind(ssl=True, ssl_include_verify_flags=[flag]))
    assert address.tls is not None
    assert address.tls.context().verify_flags & flag


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        # The async clients have no OCSP settings.
        (redis.Redis, {"ssl": True, "ssl_validate_ocsp": True}),
        (redis.Redis, {"ssl": True, "ssl_validate_ocsp_stapled": True}),
        (redis.Redis, {"ssl": True, "ssl_ocsp_expected_cert": "x"}),
        (redis.Redis, {"redis_connect_func": print}),
        (redis.asyncio.Redis, {"redis_connect_func": print}),
    ],
)
def test_a_client_with_a_setting_that_cannot_be_obeyed_is_refused(
    kind: Any, settings: dict[str, Any]
) -> None:  # S10
    with pytest.raises(ConfigurationError, match=[*settings][-1]):
        address_of(kind(**settings))

"""The store for code without an event loop: from any thread, after a fork, in any weather."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused
from taskbull.scripts.call import Steps
from taskbull.store.address import parse
from taskbull.store.server_process import ServerProcess
from taskbull.store.sync_store import SyncStore
from tests.servers.certificates import Certificates, tls_in_front_of
from tests.servers.cluster import Cluster, slot_of
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable, binary
from tests.servers.proxy import Proxy
from tests.servers.sentinel import SentinelSet
from tests.servers.waiting import plain_client, wait_until
from tests.store.sample import COUNT, Peer, Words, bulk, command, count, echo, greet, stop_half_way

SLACK = 4.0  # beyond its timeout a call may need this long: a last pause, and a busy machine


@pytest.fixture
def store(server: Reachable) -> Iterator[SyncStore]:
    with closing(SyncStore(parse(server.url))) as store:
        yield store


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy) -> Iterator[SyncStore]:
    """A store that reaches the server through `proxy`, and has done so."""
    with closing(SyncStore(parse(proxy.url))) as store:
        store.run(count("first"))
        yield store


def runs(admin: Any, key: str) -> int:
    return int(admin.hget(key, "runs") or 0)


# In good weather


def test_a_call_gives_its_result(store: SyncStore, prefix: str) -> None:
    assert store.run(echo(prefix, "hällo")) == "hällo"
    assert [store.run(count(prefix)) for _ in range(3)] == [1, 2, 3]


def test_calls_from_many_threads_each_get_their_own_reply(store: SyncStore, prefix: str) -> None:
    def call_often(caller: int) -> None:
        for number in range(50):
            text = f"{caller}-{number}-" + "x" * (number * 97)
            assert store.run(echo(prefix, text)) == text
            store.run(count(prefix))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(call_often, range(16)))
    assert store.run(count(prefix)) == 16 * 50 + 1


def test_threads_take_turns_with_the_connections(proxy: Proxy, prefix: str) -> None:
    with closing(SyncStore(parse(proxy.url))) as store, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: store.run(count(prefix)), range(100)))
    assert 1 <= proxy.accepted < 50  # an answer that is slow to come is asked for on another


def test_several_calls_give_their_results_in_order(store: SyncStore, prefix: str) -> None:
    assert store.run_all([echo(prefix, str(number)) for number in range(500)]) == [
        str(number) for number in range(500)
    ]
    assert store.run_all([]) == []


def test_several_calls_go_out_before_the_first_reply(prefix: str) -> None:
    heard: list[Words] = []

    def answer(words: Words) -> bytes | None:
        if words[0] != b"EVALSHA":
            return greet(words)
        heard.append(words)
        return b"".join(bulk(words[-1]) for words in heard) if len(heard) == 20 else b""

    with Peer(answer) as peer, closing(SyncStore(parse(peer.url))) as store:
        results = store.run_all([echo(prefix, str(number)) for number in range(20)], timeout=5.0)
    assert results == [str(number) for number in range(20)]


def test_several_calls_of_a_missing_script_all_run_once(
    store: SyncStore, admin: redis.Redis, prefix: str
) -> None:
    admin.script_flush()
    assert sorted(store.run_all([count(prefix)] * 50)) == list(range(1, 51))
    assert runs(admin, prefix) == 50


def test_one_call_that_fails_does_not_keep_the_others_from_running(
    store: SyncStore, admin: redis.Redis, prefix: str
) -> None:
    admin.script_flush()
    calls = [count(prefix), stop_half_way(f"{prefix}:other"), count(prefix), count(prefix)]
    with pytest.raises(ServerRefused, match="wrong kind of value"):
        store.run_all(calls)
    assert runs(admin, prefix) == 3


def test_a_closed_store_can_be_used_again(store: SyncStore, prefix: str) -> None:
    store.run(count(prefix))
    store.close()
    store.close()
    assert store.run(count(prefix)) == 2


def test_the_database_is_that_of_the_url(server: Reachable, prefix: str) -> None:
    url = f"{server.url.removesuffix('/0')}/3"
    with closing(SyncStore(parse(url))) as store, redis.Redis.from_url(url) as client:
        store.run(count(prefix))
        assert client.exists(prefix)


def test_a_socket_and_a_user_are_those_of_the_url(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server(tcp=False)
    with plain_client(server) as client:
        client.execute_command("ACL", "SETUSER", "anna", "on", ">p/w", "~*", "+@all")
        with closing(SyncStore(parse(f"unix://anna:p%2Fw@{server.socket}?db=2"))) as store:
            assert store.run(count(prefix)) == 1
            listed = client.execute_command("CLIENT", "LIST").splitlines()
    [line] = [line for line in listed if "cmd=evalsha" in line]
    assert "user=anna" in line
    assert "db=2" in line


def test_an_encrypted_connection_carries_calls(
    server: Reachable, tmp_path: Path, prefix: str
) -> None:
    certificates = Certificates(tmp_path)
    endpoint = parse(server.url).endpoints[0]
    target = (endpoint.host, endpoint.port)
    with tls_in_front_of(target, certificates, client_must_have_one=True) as proxy:
        files = f"ssl_ca_certs={certificates.ca_file}&ssl_certfile={certificates.client_file}"
        with closing(SyncStore(parse(f"{proxy.url}?{files}"))) as store:
            assert store.run_all([count(prefix)] * 10) == list(range(1, 11))
        with pytest.raises(ServerRefused) as caught:
            SyncStore(parse(proxy.url)).run(count(prefix))
        assert caught.value.code == "TLS"


# After a fork

_FORKING = """
import os, sys
from taskbull.store.address import parse
from taskbull.scripts.call import Steps
from taskbull.store.sync_store import SyncStore
from tests.store.sample import count, echo

url, prefix, how = sys.argv[1:]
store = SyncStore(parse(url))
assert store.run(count(prefix)) >= 1

def work(who):
    for number in range(200):
        text = f"{who}-{number}"
        assert store.run(echo(prefix, text)) == text, text
        store.run(count(prefix))

if how == "fork":
    child = os.fork()
    if child == 0:
        try:
            work("child")
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    work("parent")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
else:
    import multiprocessing
    children = [multiprocessing.get_context("fork").Process(target=work, args=(n,)) for n in (1, 2)]
    for child in children:
        child.start()
    work("parent")
    for child in children:
        child.join()
    status = max(child.exitcode for child in children)
work("parent afterwards")
sys.exit(status)
"""


@pytest.mark.parametrize(("how", "processes"), [("fork", 2), ("multiprocessing", 3)])
def test_parent_and_child_go_on_with_connections_of_their_own(
    server: Reachable, admin: redis.Redis, prefix: str, how: str, processes: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FORKING, server.url, prefix, how],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert runs(admin, prefix) == 1 + 200 * (processes + 1)


# In bad weather


def test_a_restarted_server_is_no_cause_for_doubt(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    with closing(SyncStore(parse(server.url))) as store:
        with ThreadPoolExecutor(4) as threads:  # several connections are left idle
            list(threads.map(lambda _: store.run(command("PING")), range(40)))
        for _ in range(3):
            server.restart()
            assert store.run(count(prefix)) == 1


def test_a_reply_that_is_cut_off_leaves_doubt_about_a_call_that_ran(
    through: SyncStore, proxy: Proxy, admin: redis.Redis, prefix: str
) -> None:
    proxy.cut_before_reply(b"EVALSHA")
    with pytest.raises(MaybeExecuted, match="before the reply came"):
        through.run(count(prefix))
    assert runs(admin, prefix) == 1
    assert through.run(count(prefix)) == 2


def test_a_request_that_is_cut_off_leaves_doubt_about_a_call_that_did_not_run(
    through: SyncStore, proxy: Proxy, admin: redis.Redis, prefix: str
) -> None:
    proxy.cut_before_request(b"EVALSHA")
    with pytest.raises(MaybeExecuted):
        through.run(count(prefix))
    assert runs(admin, prefix) == 0
    assert through.run(count(prefix)) == 1


def test_several_calls_that_are_cut_off_are_not_sent_again(
    through: SyncStore, proxy: Proxy, admin: redis.Redis, prefix: str
) -> None:
    proxy.cut_before_reply(b"EVALSHA")
    with pytest.raises(MaybeExecuted):
        through.run_all([count(prefix)] * 10)
    assert runs(admin, prefix) <= 10


def test_in_a_storm_no_call_runs_twice_and_none_without_doubt_is_lost(
    through: SyncStore, proxy: Proxy, admin: Any, prefix: str
) -> None:
    over = threading.Event()

    def call_until_over(caller: int) -> tuple[int, int]:
        certain = doubtful = 0
        while not over.is_set():
            try:
                through.run(count(prefix, f"{caller}-{certain + doubtful}"))
                certain += 1
            except MaybeExecuted:
                doubtful += 1
        return certain, doubtful

    with ThreadPoolExecutor(8) as threads:
        callers = [threads.submit(call_until_over, caller) for caller in range(8)]
        for _ in range(30):
            seen = proxy.accepted
            proxy.cut()
            wait_until(lambda seen=seen: proxy.accepted > seen, "they are back")  # type: ignore[misc]
        over.set()
        results = [caller.result(10) for caller in callers]
    ran = admin.hgetall(prefix)
    assert set(ran.values()) == {b"1"}
    certain, doubtful = (sum(column) for column in zip(*results, strict=True))
    assert certain <= len(ran) <= certain + doubtful
    assert doubtful > 0


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.3, 1.0])
def test_a_server_that_stays_away_is_reported_when_time_is_up(
    private_server: PrivateServers, prefix: str, timeout: float
) -> None:
    server = private_server()
    with closing(SyncStore(parse(server.url))) as store:
        store.run(count(prefix))
        server.kill()
        for run in (
            lambda: store.run(count(prefix), timeout=timeout),
            lambda: store.run_all([count(prefix)] * 3, timeout=timeout),
        ):
            begun = time.monotonic()
            with pytest.raises(ConnectionLost, match=r"Connection refused|no time left"):
                run()
            assert time.monotonic() - begun < timeout + SLACK


@pytest.mark.parametrize("timeout", [None, 15.0])
def test_a_server_that_comes_back_in_time_is_waited_for(
    private_server: PrivateServers, prefix: str, timeout: float | None
) -> None:
    server = private_server()
    with closing(SyncStore(parse(server.url))) as store, ThreadPoolExecutor(2) as threads:
        store.run(count(prefix))
        server.kill()
        one = threads.submit(store.run, count(prefix), timeout=timeout)
        several = threads.submit(store.run_all, [count(f"{prefix}:2")] * 3, timeout=timeout)
        with pytest.raises(TimeoutError):
            one.result(0.2)
        server.start()
        assert one.result(10) == 1
        assert sorted(several.result(10)) == [1, 2, 3]


def test_a_first_call_waits_for_a_server_that_is_not_there_yet(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    server.kill()
    with closing(SyncStore(parse(server.url))) as store, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.run, count(prefix))
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        server.start()
        assert waiting.result(10) == 1


def test_a_server_that_went_silent_leaves_doubt_when_time_is_up(
    through: SyncStore, proxy: Proxy, prefix: str
) -> None:
    proxy.black_hole()
    begun = time.monotonic()
    with pytest.raises(MaybeExecuted):
        through.run(count(prefix), timeout=0.3)
    assert time.monotonic() - begun < 0.3 + SLACK
    proxy.heal()
    assert through.run(count(prefix)) == 1


def test_a_server_that_was_silent_from_the_start_is_reported_when_time_is_up(
    proxy: Proxy, prefix: str
) -> None:
    proxy.black_hole()
    with closing(SyncStore(parse(proxy.url))) as store:
        begun = time.monotonic()
        with pytest.raises(ConnectionLost, match="no answer from"):
            store.run(count(prefix), timeout=0.3)
        assert time.monotonic() - begun < 0.3 + SLACK
        proxy.heal()
        assert store.run(count(prefix)) == 1


def test_operations_that_cannot_be_sent_have_one_time_limit(proxy: Proxy, prefix: str) -> None:
    def counting() -> Steps[Any]:
        return (yield count(prefix))

    proxy.black_hole()
    with closing(SyncStore(parse(proxy.url))) as store:
        first = store.begin(counting(), timeout=0.3)
        second = store.begin(counting(), first, timeout=0.3)
        with pytest.raises(ConnectionLost, match="no answer from"):
            first.finish(timeout=0.3)
        assert proxy.accepted == 1  # Each further attempt would have taken as long.
        proxy.heal()
        assert second.finish(timeout=10) == 1


def test_a_paused_server_leaves_doubt_and_is_not_asked_twice(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    with closing(SyncStore(parse(server.url))) as store:
        assert store.run(count(prefix)) == 1
        server.pause()
        with pytest.raises(MaybeExecuted):
            store.run(count(prefix), timeout=0.3)
        server.resume()
        assert store.run(count(prefix)) == 3


def test_an_interrupted_call_leaves_no_reply_behind(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    with closing(SyncStore(parse(server.url))) as store, ThreadPoolExecutor(1) as threads:
        store.run(count(prefix))
        for number in range(5):
            threads.submit(interrupt_when_blocked, server)
            with pytest.raises(KeyboardInterrupt):
                store.run(command("BLPOP", prefix + ":list", 10))
            with plain_client(server) as client:
                client.rpush(prefix + ":list", "for the one that is gone")
            assert store.run(echo(prefix, f"{number}")) == f"{number}"
            with plain_client(server) as client:
                assert client.execute_command("DEL", prefix + ":list") in (0, 1)


def interrupt_when_blocked(server: ServerProcess) -> None:
    with plain_client(server) as client:
        wait_until(
            lambda: "blocked_clients:1" in client.execute_command("INFO", "clients"), "it waits"
        )
    os.kill(os.getpid(), signal.SIGINT)


# Many servers


def across(prefix: str) -> list[str]:
    """Keys in so many slots that every master of a cluster has some."""
    return [f"{prefix}:{number}" for number in range(60)]


def test_calls_find_their_nodes(cluster: Cluster, prefix: str) -> None:
    with closing(SyncStore(parse(cluster.url))) as store:
        assert [store.run(count(key)) for key in across(prefix)] == [1] * 60
        assert store.run_all([count(key) for key in across(prefix)]) == [2] * 60
        results = store.run_all([echo(key, key) for key in across(prefix)])
    assert results == across(prefix)
    assert all(node.run("DBSIZE") > 0 for node in cluster.masters)


def test_one_known_node_is_enough_to_find_the_others(cluster: Cluster, prefix: str) -> None:
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.masters[1].port}"
    with closing(SyncStore(parse(url))) as store:
        assert store.run_all([count(key) for key in across(prefix)]) == [1] * 60


def test_a_slot_that_has_moved_is_followed(cluster: Cluster, prefix: str) -> None:
    source = cluster.owner(prefix)
    target = cluster.other_than(source)
    with closing(SyncStore(parse(cluster.url))) as store:
        assert store.run(count(prefix)) == 1
        target.run("SCRIPT", "FLUSH")
        cluster.migrate(slot_of(prefix), source, target).finish()
        assert store.run(count(prefix)) == 2
        moved = errors(source, "MOVED")
        assert store.run_all([count(prefix)] * 3) == [3, 4, 5]
        assert errors(source, "MOVED") == moved  # it was noted
    assert target.run("HGET", prefix, "runs") == "5"


def test_a_slot_on_its_way_is_asked_for_where_it_goes(cluster: Cluster, prefix: str) -> None:
    source = cluster.owner(prefix)
    target = cluster.other_than(source)
    with closing(SyncStore(parse(cluster.url))) as store:
        assert store.run(count(prefix)) == 1
        target.run("SCRIPT", "FLUSH")  # it is asked, lacks the script, and is asked again
        migration = cluster.migrate(slot_of(prefix), source, target)
        try:
            assert store.run(count(prefix)) == 2
            migration.move(prefix)
            assert store.run(count(prefix)) == 3
            assert store.run_all([count(prefix)] * 3) == [4, 5, 6]
            assert target.run("SCRIPT", "EXISTS", COUNT.sha) == [1]
        finally:
            migration.finish()
        assert store.run(count(prefix)) == 7


def errors(node: Any, code: str) -> int:
    for line in node.run("INFO", "errorstats").splitlines():
        if line.startswith(f"errorstat_{code}:"):
            return int(line.partition("=")[2])
    return 0


def test_the_death_of_a_master_is_outlived(cluster: Cluster, prefix: str) -> None:
    first = cluster.masters[0]
    key = next(key for key in across(prefix) if cluster.owner(key) is first)
    with closing(SyncStore(parse(cluster.url))) as store, ThreadPoolExecutor(1) as threads:
        assert store.run(count(key)) == 1
        wait_until(lambda: first.run("WAIT", 1, 100) == 1, "the replica has it")
        killing = threads.submit(cluster.kill_master_with_replica)
        wait_until(lambda: not first.server.running, "it is dead")
        assert store.run(count(key), timeout=20.0) == 2
        killing.result()


def test_a_cluster_that_is_not_there_is_reported_when_time_is_up(prefix: str) -> None:
    store = SyncStore(parse("redis+cluster://127.0.0.1:1,127.0.0.1:2"))
    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match="no node of the cluster answers"):
        store.run(count(prefix), timeout=0.3)
    with pytest.raises(ConnectionLost, match="no node of the cluster answers"):
        store.run_all([count(prefix)], timeout=0.3)
    assert time.monotonic() - begun < 2 * (0.3 + SLACK)


def test_the_primary_is_found_and_followed_through_a_failover(
    sentinels: SentinelSet, prefix: str
) -> None:
    with closing(SyncStore(parse(sentinels.url))) as store:
        store.run(count(prefix))
        old = sentinels.master
        new = sentinels.fail_over()
        with plain_client(old) as client:  # until then it takes writes that it will forget
            client.execute_command("REPLICAOF", "127.0.0.1", str(new.port))
        store.run(count(prefix), timeout=20.0)
        with plain_client(new) as client:
            assert client.hget(prefix, "runs") == "2"


def test_the_death_of_the_primary_is_outlived(sentinels: SentinelSet, prefix: str) -> None:
    with closing(SyncStore(parse(sentinels.url))) as store, ThreadPoolExecutor(1) as threads:
        store.run(count(prefix))
        old = sentinels.master
        killing = threads.submit(sentinels.kill_master)
        wait_until(lambda: not old.running, "it is dead")
        store.run(count(prefix, "after"), timeout=20.0)
        with plain_client(killing.result()) as client:
            assert client.hget(prefix, "after") == "1"


def test_sentinels_are_told_their_own_login(private_server: PrivateServers, prefix: str) -> None:
    server = private_server({"requirepass": "hush"})
    options = {
        "requirepass": "watchword",
        "sentinel monitor": f"mymaster 127.0.0.1 {server.port} 1",
        "sentinel auth-pass": "mymaster hush",
    }
    with ServerProcess(binary(VALKEY_9), options, arguments=("--sentinel",)) as sentinel:
        url = f"redis+sentinel://:hush@127.0.0.1:{sentinel.port}/mymaster"
        with pytest.raises(ConnectionLost, match=r"[Aa]uthentication"):
            SyncStore(parse(url)).run(count(prefix), timeout=1.0)
        with closing(SyncStore(parse(f"{url}?sentinel_password=watchword"))) as store:
            assert store.run(count(prefix), timeout=5.0) == 1


def test_sentinels_that_are_not_there_are_reported_when_time_is_up(prefix: str) -> None:
    store = SyncStore(parse("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster"))
    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match="no sentinel knows a primary"):
        store.run(count(prefix), timeout=0.3)
    assert time.monotonic() - begun < 0.3 + SLACK


def test_silent_sentinels_are_not_waited_for_long(prefix: str) -> None:
    with Peer(lambda _: b"") as one, Peer(lambda _: b"") as two:  # they accept and say nothing
        url = f"redis+sentinel://127.0.0.1:{one.port},127.0.0.1:{two.port}/mymaster"
        begun = time.monotonic()
        with pytest.raises(ConnectionLost):
            SyncStore(parse(url)).run(count(prefix), timeout=0.3)
        assert time.monotonic() - begun < 0.3 + SLACK

"""One synchronous connection, and the ones that wait to be used again."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused
from taskbull.store.address import Endpoint, parse
from taskbull.store.protocol import Deadline, pack
from taskbull.store.sync_store import ConnectionPool, SyncConnection
from tests.servers.certificates import Certificates, tls_in_front_of
from tests.servers.kinds import PrivateServers, Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until
from tests.store.sample import Peer, Words, greet

PING = pack(("PING",))
LIMIT = 60.0


def within(seconds: float | None) -> Deadline:
    return Deadline(seconds, time.monotonic)


def echo(text: str) -> bytes:
    return pack(("ECHO", text))


def at(proxy: Proxy) -> Endpoint:
    return Endpoint(*proxy.address)


def test_replies_come_in_order(proxy: Proxy, pool: ConnectionPool) -> None:
    commands = [echo(str(number)) for number in range(1000)]
    replies = pool.exchange(at(proxy), commands, within(LIMIT))
    assert replies == [b"%d" % number for number in range(1000)]


def test_a_large_exchange_goes_through(proxy: Proxy, pool: ConnectionPool) -> None:
    text = "x" * 3_000_000
    replies = pool.exchange(at(proxy), [echo(text)] * 5, within(LIMIT))
    assert replies == [text.encode()] * 5


def test_a_connection_is_used_again(proxy: Proxy, pool: ConnectionPool) -> None:
    for _ in range(10):
        pool.exchange(at(proxy), [PING], within(LIMIT))
    assert proxy.accepted == 1


def test_a_limit_of_time_may_be_infinite_or_past(proxy: Proxy, pool: ConnectionPool) -> None:
    assert pool.exchange(at(proxy), [PING], within(None)) == [b"PONG"]
    pool.close()
    with suppress(ConnectionLost, MaybeExecuted):  # it may be quick enough
        assert pool.exchange(at(proxy), [PING], within(-1.0)) == [b"PONG"]


def test_a_connection_that_was_closed_while_idle_is_replaced(
    proxy: Proxy, pool: ConnectionPool
) -> None:
    pool.exchange(at(proxy), [PING], within(LIMIT))
    proxy.cut()
    wait_until(lambda: proxy.connections == 0, "the proxy has let go")
    assert pool.exchange(at(proxy), [PING], within(LIMIT)) == [b"PONG"]
    assert proxy.accepted == 2


def test_closed_connections_are_closed_on_the_server_too(
    proxy: Proxy, pool: ConnectionPool
) -> None:
    pool.exchange(at(proxy), [PING], within(LIMIT))
    pool.discard(at(proxy))
    wait_until(lambda: proxy.connections == 0, "the server has seen it")
    pool.exchange(at(proxy), [PING], within(LIMIT))
    pool.close()
    wait_until(lambda: proxy.connections == 0, "the server has seen it")


def test_a_cut_connection_leaves_doubt_and_is_not_used_again(
    proxy: Proxy, pool: ConnectionPool
) -> None:
    pool.exchange(at(proxy), [PING], within(LIMIT))
    proxy.cut_before_reply()
    with pytest.raises(MaybeExecuted, match="before the reply came"):
        pool.exchange(at(proxy), [PING], within(LIMIT))
    assert pool.exchange(at(proxy), [PING], within(LIMIT)) == [b"PONG"]


@pytest.mark.parametrize("after", [1, 7, 50])
def test_half_a_reply_is_none(proxy: Proxy, pool: ConnectionPool, after: int) -> None:
    pool.exchange(at(proxy), [PING], within(LIMIT))
    proxy.cut_after(reply_bytes=after)
    with pytest.raises(MaybeExecuted):
        pool.exchange(at(proxy), [echo("x" * 100)], within(LIMIT))
    assert pool.exchange(at(proxy), [echo("y")], within(LIMIT)) == [b"y"]


def test_a_silent_server_leaves_doubt_when_time_is_up(proxy: Proxy, pool: ConnectionPool) -> None:
    pool.exchange(at(proxy), [PING], within(LIMIT))
    proxy.black_hole()
    begun = time.monotonic()
    with pytest.raises(MaybeExecuted):
        pool.exchange(at(proxy), [PING], within(0.2))
    assert 0.2 <= time.monotonic() - begun < LIMIT


def test_a_server_that_lets_nobody_in_in_time_is_not_there(
    proxy: Proxy, pool: ConnectionPool
) -> None:
    proxy.black_hole()
    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match=r"no answer from 127.0.0.1:\d+ within 0.2 s"):
        pool.exchange(at(proxy), [PING], within(0.2))
    assert 0.2 <= time.monotonic() - begun < LIMIT


def test_the_limit_holds_for_connecting_and_answering_together() -> None:
    never = threading.Event()  # a pause that is a part of what the peer does

    def answer(words: Words) -> bytes | None:
        if words[0] == b"PING":
            never.wait(1.0)
        return b"" if words[0] == b"ECHO" else greet(words)

    with Peer(answer) as peer:
        pool = ConnectionPool(parse(peer.url))
        begun = time.monotonic()
        with pytest.raises(MaybeExecuted):
            pool.exchange(Endpoint("127.0.0.1", peer.port), [echo("x")], within(1.5))
        assert time.monotonic() - begun < 1.0 + 1.5


def test_a_server_that_drips_is_given_up_when_time_is_up() -> None:
    never = threading.Event()  # a pause that is a part of what the peer does

    def answer(words: Words) -> bytes | None:
        if words[0] != b"ECHO":
            return greet(words)
        for byte in b"$100\r\n" + b"x" * 100:  # each byte comes in time; all of them do not
            peer._open[0].sendall(bytes([byte]))
            never.wait(0.1)
        return b"\r\n"

    with Peer(answer) as peer:
        pool = ConnectionPool(parse(peer.url))
        begun = time.monotonic()
        with pytest.raises(MaybeExecuted):
            pool.exchange(Endpoint("127.0.0.1", peer.port), [echo("x")], within(0.4))
        assert 0.4 <= time.monotonic() - begun < LIMIT


@pytest.mark.parametrize(
    "too_much", [b"+mine\r\n+nobody's\r\n", b"+mine\r\n+nob", b"+mine\r\n$8\r\nnobody's"]
)
def test_what_nobody_asked_for_is_not_taken_for_the_next_reply(too_much: bytes) -> None:
    answers = [too_much]
    with Peer(
        lambda words: answers.pop() if words[0] == b"ECHO" and answers else greet(words)
    ) as peer:
        pool = ConnectionPool(parse(peer.url))
        endpoint = Endpoint("127.0.0.1", peer.port)
        with suppress(MaybeExecuted):
            assert pool.exchange(endpoint, [echo("x")], within(LIMIT)) == [b"mine"]
        assert pool.exchange(endpoint, [echo("x")], within(LIMIT)) == [b"ECHO"]
        pool.close()


def test_an_encrypted_connection_is_used_again(server: Reachable, tmp_path: Path) -> None:
    # What TLS 1.3 servers send after the greeting is no sign of a dead connection.
    certificates = Certificates(tmp_path)
    endpoint = parse(server.url).endpoints[0]
    with tls_in_front_of((endpoint.host, endpoint.port), certificates) as proxy:
        pool = ConnectionPool(parse(f"{proxy.url}?ssl_ca_certs={certificates.ca_file}"))
        for _ in range(10):
            assert pool.exchange(at(proxy), [echo("x" * 50_000)], within(LIMIT)) == [b"x" * 50_000]
        pool.close()
        assert proxy.accepted == 1


def test_a_refused_line_is_closed(private_server: PrivateServers) -> None:
    server = private_server({"requirepass": "right"})
    with Proxy(("127.0.0.1", server.port)) as proxy:
        with pytest.raises(ServerRefused):
            SyncConnection(at(proxy), parse(proxy.url), LIMIT)
        wait_until(lambda: proxy.connections == 0, "the server has seen it")


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b"])
def test_a_name_that_is_no_host_is_no_connection(host: str) -> None:
    pool = ConnectionPool(parse("redis://localhost"))
    with pytest.raises(ConnectionLost):
        pool.exchange(Endpoint(host, 6379), [PING], within(LIMIT))


@pytest.mark.parametrize("look", range(1, 12))
def test_at_whichever_look_at_the_clock_time_is_up_the_error_is_one_of_ours(
    proxy: Proxy, pool: ConnectionPool, look: int
) -> None:  # H4
    looks = iter([0.0] * look)
    deadline = Deadline(1.0, lambda: next(looks, 2.0))
    with suppress(ConnectionLost, MaybeExecuted):
        assert pool.exchange(at(proxy), [PING], deadline) == [b"PONG"]


def test_a_server_that_is_asked_too_late_does_not_answer(
    proxy: Proxy, pool: ConnectionPool
) -> None:  # H4: MaybeExecuted is raised then, where the reply is awaited
    assert not pool.answers(at(proxy), within(-1.0))


def test_idle_connections_that_the_server_has_closed_are_closed(
    server: Reachable, proxy: Proxy, pool: ConnectionPool
) -> None:  # H10
    direct = parse(server.url).endpoints[0]
    there = [pool.take(at(proxy), within(LIMIT)) for _ in range(3)]
    here = pool.take(direct, within(LIMIT))
    for each in there:
        pool.keep(at(proxy), each)
    pool.keep(direct, here)
    proxy.cut()
    wait_until(lambda: all(each.stale for each in there), "the cut to be noticed")
    pool.close_stale()
    assert not pool._idle[at(proxy)]
    assert [*pool._idle[direct]] == [here]

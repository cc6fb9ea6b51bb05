"""Commands that are sent before those ahead of them are answered, without an event loop."""

from __future__ import annotations

import time

import pytest

from taskbull.errors import MaybeExecuted
from taskbull.store.address import Endpoint, parse
from taskbull.store.protocol import Deadline, pack
from taskbull.store.sync_store import ConnectionPool, SyncPipeline
from tests.servers.proxy import Proxy
from tests.store.sample import Peer, Words, bulk, greet

LIMIT = 60.0
LARGE = 16_000_000


def within(seconds: float = LIMIT) -> Deadline:
    return Deadline(seconds, time.monotonic)


def echo(text: str) -> bytes:
    return pack(("ECHO", text))


@pytest.fixture
def pipeline(pool: ConnectionPool, proxy: Proxy) -> SyncPipeline:
    return SyncPipeline(pool, Endpoint(*proxy.address), within())


def test_replies_come_in_order_and_then_others_may_use_the_connection(
    pipeline: SyncPipeline, pool: ConnectionPool, proxy: Proxy
) -> None:
    for number in range(3):
        pipeline.send(echo(f"{number}"), within())
    assert [pipeline.receive(within()) for _ in range(3)] == [b"0", b"1", b"2"]
    assert not pipeline.usable
    assert pool.exchange(pipeline.endpoint, [echo("again")], within()) == [b"again"]
    assert proxy.accepted == 1


def test_a_connection_that_is_back_in_the_pool_is_not_closed(
    pipeline: SyncPipeline, pool: ConnectionPool, proxy: Proxy
) -> None:
    pipeline.send(echo("last"), within())
    assert pipeline.receive(within()) == b"last"
    taken = pool.take(pipeline.endpoint, within())  # as another thread does
    pipeline.close()
    assert taken.exchange([echo("other")], within()) == [b"other"]
    assert proxy.accepted == 1


def test_a_connection_with_an_open_reply_is_used_by_nobody_else(
    pipeline: SyncPipeline, pool: ConnectionPool, proxy: Proxy
) -> None:
    pipeline.send(echo("first"), within())
    assert pool.exchange(pipeline.endpoint, [echo("other")], within()) == [b"other"]
    assert proxy.accepted == 2
    pipeline.close()
    with pytest.raises(MaybeExecuted):
        pipeline.receive(within())


def test_all_that_is_unanswered_when_the_connection_breaks_may_have_been_executed(
    pipeline: SyncPipeline, proxy: Proxy
) -> None:
    proxy.hold_replies()
    for number in range(2):
        pipeline.send(echo(f"{number}"), within())
    proxy.cut()
    for _ in range(2):
        with pytest.raises(MaybeExecuted):
            pipeline.receive(within())
    assert not pipeline.usable


def test_what_was_answered_before_the_connection_broke_is_known(
    pipeline: SyncPipeline, proxy: Proxy
) -> None:
    pipeline.send(echo("first"), within())
    proxy.cut_after(len(b"$5\r\nfirst\r\n"))
    pipeline.send(echo("second"), within())
    assert pipeline.receive(within()) == b"first"
    with pytest.raises(MaybeExecuted):
        pipeline.receive(within())


def test_a_reply_that_does_not_come_in_time_is_not_read_by_the_next(
    pipeline: SyncPipeline, pool: ConnectionPool, proxy: Proxy
) -> None:
    proxy.hold_replies()
    pipeline.send(echo("late"), within())
    with pytest.raises(MaybeExecuted, match="No reply"):
        pipeline.receive(within(0.05))
    proxy.deliver()
    assert pool.exchange(pipeline.endpoint, [echo("other")], within()) == [b"other"]


def test_a_peer_that_reads_no_more_until_its_reply_is_taken_holds_up_nothing() -> None:
    def answer(words: Words) -> bytes | None:
        return bulk(b"y" * LARGE) if words[0] == b"GIVE" else greet(words)

    with Peer(answer) as peer:
        pool = ConnectionPool(parse(peer.url))
        pipeline = SyncPipeline(pool, Endpoint("127.0.0.1", peer.port), within())
        pipeline.send(pack(("GIVE",)), within())
        pipeline.send(echo("x" * LARGE), within())
        assert len(pipeline.receive(within())) == LARGE
        assert pipeline.receive(within()) == b"ECHO"
        pool.close()

"""A server whose replies make no sense is named by the error that they cause: S27."""

from __future__ import annotations

import time

import pytest
from anyio import fail_after, to_thread

from taskbull import InvalidReply, Queue, SyncQueue, Worker
from tests.store.sample import Peer, Words, greet
from tests.worker.bed import LIMIT, echo

SHAPES = {
    "nil": b"$-1\r\n",
    "empty": b"*0\r\n",
    "int": b":9223372036854775807\r\n",
    "text": b"+OK\r\n",
    "nils": b"*8\r\n" + b"$-1\r\n" * 8,
    "texts": b"*13\r\n" + b"$1\r\nx\r\n" * 13,
    "nested": b"*1\r\n" * 9 + b":1\r\n",
}


def answering(shape: bytes, words: Words) -> bytes:
    if words[0] in {b"BZPOPMIN", b"XREAD"}:
        time.sleep(0.05)
        return b"*-1\r\n"
    return shape if words[0] in {b"EVALSHA", b"TIME"} else greet(words)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_a_worker_ends_with_an_error_that_names_the_server(shape: bytes) -> None:
    with (
        Peer(lambda words: answering(shape, words)) as peer,
        fail_after(LIMIT),
        pytest.raises(InvalidReply, match=f"127.0.0.1:{peer.port}"),
    ):
        await Worker("q", echo, redis=peer.url).run()


@pytest.mark.parametrize("shape", [SHAPES["int"], SHAPES["empty"]])
async def test_a_call_raises_the_same_error(shape: bytes) -> None:
    with Peer(lambda words: answering(shape, words)) as peer, fail_after(LIMIT):
        with pytest.raises(InvalidReply, match=f"127.0.0.1:{peer.port}"):
            await Queue("q", redis=peer.url).counts()
        with pytest.raises(InvalidReply, match=f"127.0.0.1:{peer.port}"):
            await to_thread.run_sync(SyncQueue("q", redis=peer.url).counts)

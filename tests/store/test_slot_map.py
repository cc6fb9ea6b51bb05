"""The map of a Cluster: which node serves a key, and whom to ask when that is not known."""

from __future__ import annotations

from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot as by_redis_py

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store.address import Endpoint
from taskbull.store.cluster import SlotMap, key_slot

KEYS = ["", "a", "{", "}", "{}", "{}{a}", "a{b}c", "a{b", "a}b{c}", "bull:{q}:wait", "{ü}", "{{a}}"]

SEED, ONE, TWO, NEW = (Endpoint("10.0.0.1", port) for port in (7000, 7001, 7002, 7003))
FOO, BAR = "foo", "bar"  # slots 12182 and 5061


def slots(*ranges: tuple[int, int, Endpoint]) -> list[Any]:
    """Make the reply to CLUSTER SLOTS, with a replica for each range."""
    return [
        [first, last, [node.host.encode(), node.port, b"id"], [b"10.0.0.9", 1, b"replica"]]
        for first, last, node in ranges
    ]


HALVES = slots((0, 8191, ONE), (8192, 16383, TWO))


def drawn(reply: Any = HALVES, asked: Endpoint = ONE) -> SlotMap:
    found = SlotMap((SEED,))
    found.draw(reply, asked)
    return found


@pytest.mark.parametrize("key", KEYS)
def test_braces_count_as_in_redis(key: str) -> None:
    assert key_slot(key) == by_redis_py(key.encode())


@given(st.text(alphabet="{}ab:ü", max_size=12))
def test_any_key_has_the_slot_that_redis_py_gives_it(key: str) -> None:
    assert key_slot(key) == by_redis_py(key.encode())


def test_nothing_is_known_at_first_but_the_nodes_of_the_address() -> None:
    empty = SlotMap((SEED, ONE))
    assert empty.known(FOO) is None
    assert empty.masters == []
    assert empty.nodes_to_ask() == [SEED, ONE]
    with pytest.raises(ConnectionLost, match="no node of the cluster serves slot 12182 now"):
        empty.node_of(FOO)


@pytest.mark.parametrize(
    ("reply", "asked", "foo", "bar"),
    [
        pytest.param(HALVES, SEED, TWO, ONE, id="two halves"),
        pytest.param(slots((0, 16383, NEW)), SEED, NEW, NEW, id="one for all"),
        pytest.param(slots((12182, 12182, TWO)), SEED, TWO, None, id="a single slot"),
        pytest.param([], SEED, None, None, id="no slots at all"),
        pytest.param(
            [[0, 16383, [b"", 7005, b"id"]]],
            ONE,
            Endpoint(ONE.host, 7005),
            Endpoint(ONE.host, 7005),
            id="without a host: that which was asked",
        ),
        pytest.param(
            [[0, 16383, [None, 7005]]],
            ONE,
            Endpoint(ONE.host, 7005),
            Endpoint(ONE.host, 7005),
            id="the same in an older form",
        ),
    ],
)
def test_a_reply_says_where_keys_are(
    reply: Any, asked: Endpoint, foo: Endpoint | None, bar: Endpoint | None
) -> None:
    found = drawn(reply, asked)
    assert (found.known(FOO), found.known(BAR)) == (foo, bar)


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ("ERR This instance has cluster support disabled", ConfigurationError, "not a node of"),
        ("LOADING Redis is loading the dataset", ConnectionLost, "10.0.0.1:7001: LOADING"),
        ("NOPERM no", ConnectionLost, "NOPERM"),
    ],
)
def test_an_error_leaves_the_map_as_it_was(said: str, error: type[Exception], message: str) -> None:
    found = drawn()
    with pytest.raises(error, match=message):
        found.draw(ReplyError(said), ONE)
    assert found.node_of(FOO) == TWO


def test_a_moved_slot_is_where_it_was_said_to_be_and_no_other() -> None:
    found = drawn()
    found.moved(FOO, NEW)
    assert (found.node_of(FOO), found.node_of(BAR)) == (NEW, ONE)
    assert found.masters == [ONE, TWO, NEW]


def test_a_forgotten_map_still_knows_whom_to_ask() -> None:
    found = drawn(asked=TWO)
    found.mark_stale()
    assert found.known(FOO) is None
    assert found.masters == []
    assert found.nodes_to_ask() == [TWO, ONE, SEED]  # who drew it first: it has answered before


def test_each_node_is_asked_once_and_the_newest_too() -> None:
    found = drawn(asked=ONE)
    found.moved(FOO, NEW)
    assert found.nodes_to_ask() == [ONE, TWO, NEW, SEED]


def test_the_next_map_replaces_the_last_one() -> None:
    found = drawn()
    found.draw(slots((0, 16383, NEW)), NEW)
    assert found.masters == [NEW]
    assert found.nodes_to_ask() == [NEW, SEED]

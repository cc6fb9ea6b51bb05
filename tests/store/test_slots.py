"""The slot of a key is the one that Redis gives it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot as by_redis_py

from taskbull.store.slots import key_slot

KEYS = ["", "a", "{", "}", "{}", "{}{a}", "a{b}c", "a{b", "a}b{c}", "bull:{q}:wait", "{ü}", "{{a}}"]


@pytest.mark.parametrize("key", KEYS)
def test_braces_count_as_in_redis(key: str) -> None:
    assert key_slot(key) == by_redis_py(key.encode())


@given(st.text(alphabet="{}ab:ü", max_size=12))
def test_any_key_has_the_slot_that_redis_py_gives_it(key: str) -> None:
    assert key_slot(key) == by_redis_py(key.encode())

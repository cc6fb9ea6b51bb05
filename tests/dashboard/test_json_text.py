"""JSON as people see it: as it is stored, indented, without secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.dashboard.json_text import MASK, Redactor

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_nothing_is_changed_but_the_layout(value: Any) -> None:
    assert json.loads(Redactor(()).show(json.dumps(value))) == value


@given(JSON, st.sampled_from(["password", "API-Key", "x_auth_token", "clientSecret"]))
def test_a_secret_is_masked_wherever_it_is(value: Any, key: str) -> None:
    hidden = {"a": [{"b": {key: value, "after": 1}}], "end": 2}
    shown = json.loads(Redactor().show(json.dumps(hidden)))
    assert shown == {"a": [{"b": {key: MASK, "after": 1}}], "end": 2}


def test_numbers_and_repeated_keys_are_shown_as_they_stand() -> None:
    shown = Redactor().show('{"n":12345678901234567890.10,"n":1e2,"u":"\\u00e9"}')
    assert shown == '{\n  "n": 12345678901234567890.10,\n  "n": 1e2,\n  "u": "\\u00e9"\n}'


@pytest.mark.parametrize(
    "text",
    ['{"token":"s3cret', '{"a":1,"token":{"x":"s3cret"', '{"token" : ["s3cret", "s3cret"'],
)
def test_a_secret_stays_hidden_when_the_text_breaks_off(text: str) -> None:
    assert "s3cret" not in Redactor().show(text)


def test_an_escaped_name_is_known_too() -> None:
    assert "s3cret" not in Redactor().show('{"\\u0074oken": "s3cret"}')


@pytest.mark.parametrize("text", ["[" * 10_000, '"' + "\\" * 10_001, "}{" * 1000, "", "\x00", "{]"])
def test_what_is_not_json_is_shown_all_the_same(text: str) -> None:
    assert isinstance(Redactor().show(text), str)


def test_what_was_masked_is_restored_after_an_edit() -> None:
    original = {"to": "ann", "token": "s3cret", "list": [{"password": 1}, 2]}
    edited = {"to": "bob", "token": MASK, "list": [{"password": MASK}, 3], "new": MASK}
    assert Redactor().restore(edited, original) == {
        "to": "bob", "token": "s3cret", "list": [{"password": 1}, 3], "new": MASK,
    }  # fmt: skip

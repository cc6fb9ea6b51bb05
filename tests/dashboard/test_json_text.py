"""JSON as people see it: as it is stored, indented, without secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.dashboard.html import MASK, Redactor

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
def test_what_is_not_json_is_shown_anyway(text: str) -> None:
    assert isinstance(Redactor().show(text), str)


def test_what_was_masked_is_restored_after_an_edit() -> None:
    original = {"to": "ann", "token": "s3cret", "list": [{"password": 1}, 2]}
    edited = {"to": "bob", "token": MASK, "list": [{"password": MASK}, 3], "new": MASK}
    assert Redactor().restore(edited, original) == {
        "to": "bob", "token": "s3cret", "list": [{"password": 1}, 3], "new": MASK,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Authorization", "value": "s3cret"}',
        '{"value": ["s3cret", {"a": "s3cret"}], "key": "X-Api-Key"}',
        '[{"Header": "Cookie", "Value": "s3cret"}, {"header": "Accept", "value": "all"}]',
        '{"name": "password", "value": "s3cr',
        '{"u": "postgres://bob:s3cret@db.example.org/shop"}',
        '{"u": "redis:\\/\\/:s3cret@h:6379/0"}',
        '{"text": "see amqp://a:s3cret@h and amqp://b:s3cret@h"}',
        '{"u": "postgres://bob:s3cr',
        '{"body": "{\\"password\\": \\"s3cret\\"}"}',
        '{"body": "{\\"password\\": \\"s3cr',
        '{"a": "[\\"{\\\\\\"token\\\\\\":\\\\\\"s3cret\\\\\\"}\\"]"}',
        '{"h": "Bearer s3cretabc"}',
        '{"job": "1", "signal": "otp", "value": "s3cret"}',
        '{"h": "basic czNjcmV0"}',
    ],
)
def test_a_secret_is_known_by_what_is_around_it(text: str) -> None:  # S6
    for shown in (Redactor().show(text), Redactor().mask(text)):
        assert "s3cr" not in shown
        assert "czNjcmV0" not in shown
        assert MASK in shown


def test_names_are_compared_by_their_words() -> None:  # S6
    hidden = "pwd db_pwd pass dbPass x-auth bearer jwt OTP otpCode pin userPIN ssn cvc card_cvv dsn"
    hidden += " signature session user_session DATABASE_URL connection_string sessionId csrfToken"
    shown = "author passenger pinned pinCount session_count spin compass opinion authors bypass_all"
    redactor = Redactor()
    assert [name for name in hidden.split() if not redactor.hides(name)] == []
    assert [name for name in shown.split() if redactor.hides(name)] == []
    assert not Redactor(["password"]).hides("pin")  # a list of one's own replaces the default


def test_indentation_is_bounded() -> None:  # S7
    for text in ("[" * 30 + "1," * 5000, '{"a":' * 2000, "[[]," * 4000):
        assert len(Redactor().show(text)) <= 6 * len(text) + 2000


def test_an_edit_cannot_move_what_was_masked() -> None:
    pair, url = {"name": "Authorization", "value": "s3cret"}, "pg://u:s3cret@db/x"
    original = {"pair": pair, "url": url, "body": '{"token": "s3cret"}'}
    restore = Redactor().restore
    same = {"pair": {**pair, "value": MASK}, "url": f"pg://u:{MASK}@db/x"}
    same["body"] = json.dumps({"token": MASK}, ensure_ascii=False)
    assert restore(same, original) == original
    moved = {
        "pair": {"name": "x", "value": MASK},
        "url": f"pg://u:{MASK}@evil/x",
        "body": MASK + "!",
    }
    assert "s3cret" not in json.dumps(restore(moved, original))

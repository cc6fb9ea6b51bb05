"""Values become JSON that Node reads as Python meant it, or are refused by their place."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.payload import check_size, decode, encode, encode_all
from taskbull.errors import SerializationError

LIMIT = 2**53 - 1

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LIMIT, LIMIT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


class SafeString(str):
    """As Django's."""

    __slots__ = ()


class Count(int):
    pass


class Share(float):
    pass


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 7


@dataclass
class Point:
    x: Any
    y: Any = 0


class Person(msgspec.Struct):
    name: Any


class Address(TypedDict):
    street: str


@given(json_values)
def test_any_json_value_survives(value: object) -> None:
    text = encode(value, "data")
    assert decode(text) == value
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({}, "{}"),
        ({"a": [1, 2.5, True, None, "x"]}, '{"a":[1,2.5,true,null,"x"]}'),
        (-0.0, "-0.0"),
        (LIMIT, "9007199254740991"),
        (-LIMIT, "-9007199254740991"),
        (0.30000000000000004, "0.30000000000000004"),
        (1e300, "1e300"),
        ("😀 \0 </script>", '"😀 \\u0000 </script>"'),
        ("null 12345678901234567890", '"null 12345678901234567890"'),
        ({"1": None}, '{"1":null}'),
        (datetime(2030, 1, 1, tzinfo=UTC), '"2030-01-01T00:00:00Z"'),
        (date(2030, 1, 1), '"2030-01-01"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.50"), '"1.50"'),
        (Colour.RED, '"red"'),
        (Level.HIGH, "7"),
        (Point(1, None), '{"x":1,"y":null}'),
        (Person("Ann"), '{"name":"Ann"}'),
        (Address(street="Main"), '{"street":"Main"}'),
        (b"bytes", '"Ynl0ZXM="'),
        ({5}, "[5]"),
        ((1, 2), "[1,2]"),
        (SafeString("x"), '"x"'),
        ({SafeString("k"): SafeString("v")}, '{"k":"v"}'),
        (Count(5), "5"),
        (Share(0.5), "0.5"),
        ({UUID(int=0): None}, '{"00000000-0000-0000-0000-000000000000":null}'),
        ([msgspec.Raw(b'{"a":1}'), None], '[{"a":1},null]'),
    ],
)
def test_a_value_is_written_compactly_as_msgspec_does(value: object, text: str) -> None:
    assert encode(value, "data").decode() == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "data is nan, which cannot be serialized to JSON"),
        ({"a": [1, math.inf]}, r"data.a\[1\] is inf"),
        ({"a": -math.inf}, "data.a is -inf"),
        ({"a": float("1e400")}, "data.a is inf"),
        ({"user": {"id": 2**53}}, "data.user.id is an integer beyond"),
        ({"user": {"id": -(2**53)}}, "data.user.id is an integer beyond"),
        ([10**30], r"data\[0\] is an integer beyond"),
        ([Count(2**60)], r"data\[0\] is an integer beyond"),
        ([Share("nan")], r"data\[0\] is nan"),
        (Point(math.nan), "data.x is nan"),
        (Person(2**70), "data.name is an integer beyond"),
        ({1: "a"}, r"data has the key 1 of type int"),
        ({"a": {-1: "a"}}, r"data.a has the key -1"),
        ({1.5: "a"}, "data has the key 1.5"),
        ({Level.HIGH: "a"}, "data has the key 7"),
        ({True: 1}, "data has the key True"),
        ({None: 1}, "data has a key that is not a string"),
        ({(1, 2): 1}, "data has a key that is not a string"),
        ("\ud800", "data has a lone surrogate"),
        ({"a": ["x", "\udfff"]}, r"data.a\[1\] has a lone surrogate"),
        ({"a": SafeString("\ud800")}, "data.a has a lone surrogate"),
        ({"a b": {"c": object()}}, r'data\["a b"\].c is of type object'),
        ([{"f": print}], r"data\[0\].f is of type builtin_function_or_method"),
        ({"a": 1j}, "data.a is of type complex"),
        (Point(Person(object())), "data.x.name is of type object"),
        (({"k": object()},), r"data\[0\].k is of type object"),
        ({"a": range(3)}, "data.a is of type range"),
        ({"a": Colour}, "data.a is of type EnumType"),
        ([10**5000], r"data\[0\]"),
        ([None, msgspec.Raw(b"nonsense")], "a msgspec.Raw holds no JSON"),
    ],
)
def test_what_json_or_node_would_change_is_refused_by_its_place(
    value: object, message: str
) -> None:
    with pytest.raises(SerializationError, match=message):
        encode(value, "data")


def test_a_lone_surrogate_in_a_key_is_refused() -> None:
    with pytest.raises(SerializationError, match="lone surrogate"):
        encode({"\ud800": 1}, "data")


@given(json_values, st.integers(LIMIT + 1) | st.integers(max_value=-LIMIT - 1))
def test_a_big_integer_is_found_wherever_it_is(around: object, number: int) -> None:
    with pytest.raises(SerializationError, match="beyond"):
        encode([around, {"k": [number]}], "data")


@given(json_values, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_nan_is_found_wherever_it_is(around: object, number: float) -> None:
    with pytest.raises(SerializationError, match="cannot be serialized to JSON"):
        encode({"a": around, "b": {"c": number}}, "data")


@given(json_values, st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_as_a_key_is_found_wherever_it_is(around: object, key: float) -> None:
    with pytest.raises(SerializationError, match="key"):
        encode([around, {"x": 1, key: 2}], "data")


WRONG = [math.nan, -math.inf, 2**53, [1, {"k": 10**30}], {1: "a"}, Point(math.nan), Count(2**60)]


@pytest.mark.parametrize("value", WRONG, ids=str)
@pytest.mark.parametrize("others", [0, 1000])
def test_the_same_is_found_beside_a_long_text(value: object, others: int) -> None:
    around = {"long": "x" * 10_000, "few or many": list(range(others))}
    assert decode(encode(around, "data")) == around
    with pytest.raises(
        SerializationError, match=r"data.value.* (cannot be serialized|beyond|has the key)"
    ):
        encode({**around, "value": value}, "data")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_and_cycles_are_refused_clearly() -> None:
    with pytest.raises(SerializationError, match="nested too deeply, or contains itself"):
        encode(nested(100_000), "data")
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    with pytest.raises(SerializationError, match="contains itself"):
        encode(cycle, "data")
    assert decode(encode(nested(100), "data")) == nested(100)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"nope", b"NaN", b"-Infinity", b'"\xff"', b'"\x00"', b"[" * 100_000, b'{"a":1}x'],
)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode(text)


def test_a_lone_surrogate_that_node_escaped_is_read() -> None:
    assert decode(b'{"a":"\\ud800"}') == {"a": "\ud800"}


# FR-7
@pytest.mark.parametrize(
    ("size", "limit", "message"),
    [
        (12_300_000, 10_000_000, "Job payload 12.3 MB exceeds limit of 10 MB"),
        (10_000_001, 10_000_000, "Job payload 10.000001 MB exceeds limit of 10 MB"),
        (10_040_000, 10_000_000, "Job payload 10.04 MB exceeds limit of 10 MB"),
        (2_000_000, 1_500_000, "Job payload 2.0 MB exceeds limit of 1.5 MB"),
        (200, 100, "Job payload 0.0002 MB exceeds limit of 0.0001 MB"),
    ],
)
def test_a_payload_over_the_limit_is_refused_with_both_sizes(
    size: int, limit: int, message: str
) -> None:
    check_size(limit, limit)
    with pytest.raises(SerializationError) as caught:
        check_size(size, limit)
    assert str(caught.value) == message


@given(st.lists(json_values, min_size=1))
def test_many_values_have_the_form_that_each_has(values: list[Any]) -> None:
    assert encode_all(values) in (None, [encode(value, "data") for value in values])


def test_many_ordinary_values_are_encoded_together() -> None:
    values = [{"to": f"ann{n}@example.org", "n": n, "share": n / 7} for n in range(50)]
    assert encode_all(values) == [encode(value, "data") for value in values]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(math.nan, id="nan"),
        pytest.param(2**53, id="beyond a double"),
        pytest.param({1: "x"}, id="number as key"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param(object(), id="no JSON form"),
        pytest.param(msgspec.Raw(b"[1,\n2]"), id="lines of its own"),
        pytest.param("x" * 100_000, id="long"),
    ],
)
def test_many_values_with_an_odd_one_are_left_to_be_encoded_one_by_one(value: Any) -> None:
    assert encode_all([{"n": 1}, {"n": value}]) is None

"""From a job's data to arguments: converted by the annotations, refused with a clear reason."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
)
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskbull.app.signature import Binder, arguments_reader, by_keyword, result_reader
from taskbull.core import payload
from taskbull.core.outcome import classify
from taskbull.errors import ConfigurationError, InvalidArguments

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Box(msgspec.Struct):
    corner: Point
    tags: list[str] = []


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass
class Tree:
    children: list[Tree]


UserId = NewType("UserId", int)
Small = Annotated[int, msgspec.Meta(lt=10)]


def reader(function: Callable[..., Any], extra: Any = "error") -> Callable[[bytes], Any]:
    return arguments_reader("work", function, Binder("work", function), extra)


def of(kind: Any) -> Callable[..., None]:
    """Make a function with one parameter of a type."""

    def work(x: Any) -> None: ...

    work.__annotations__["x"] = kind
    return work


CONVERTED: list[tuple[Any, bytes, Any]] = [
    (int, b"5", 5),
    (float, b"5", 5.0),
    (str, b'"a"', "a"),
    (bool, b"true", True),
    (datetime, b'"2020-01-01T00:00:00Z"', datetime(2020, 1, 1, tzinfo=UTC)),
    (datetime, b'"2020-01-01T00:00:00.000Z"', datetime(2020, 1, 1, tzinfo=UTC)),
    (date, b'"2020-01-31"', date(2020, 1, 31)),
    (time, b'"10:20:30"', time(10, 20, 30)),
    (timedelta, b'"PT90S"', timedelta(seconds=90)),
    (UUID, b'"12345678-1234-5678-1234-567812345678"', UUID("12345678" * 4)),
    (Decimal, b'"1.50"', Decimal("1.50")),
    (Decimal, b"1.5", Decimal("1.5")),
    (bytes, b'"YQ=="', b"a"),
    (Color, b'"red"', Color.RED),
    (Level, b"1", Level.LOW),
    (Literal["a", 1], b"1", 1),
    (Optional[int], b"null", None),  # noqa: UP045 - as many still write it
    (int | str | None, b'"a"', "a"),
    (list[int], b"[1]", [1]),
    (tuple[int, str], b'[1,"a"]', (1, "a")),
    (set[int], b"[1,1]", {1}),
    (dict[str, Point], b'{"a":{"x":1}}', {"a": Point(1)}),
    (Sequence[int], b"[1]", [1]),
    (Iterable[int], b"[1]", [1]),
    (Mapping[str, int], b'{"a":1}', {"a": 1}),
    (Point, b'{"x":1,"y":2}', Point(1, 2)),
    (Box, b'{"corner":{"x":1},"tags":["a"]}', Box(Point(1), ["a"])),
    (Address, b'{"street":"s"}', {"street": "s"}),
    (Pair, b'[1,"a"]', Pair(1, "a")),
    (Tree, b'{"children":[{"children":[]}]}', Tree([Tree([])])),
    (UserId, b"7", 7),
    (Small, b"9", 9),
    (Any, b'{"a":[1]}', {"a": [1]}),
    (object, b"[1]", [1]),
]


@pytest.mark.parametrize(("kind", "raw", "value"), CONVERTED, ids=lambda value: str(value)[:40])
def test_an_argument_has_the_type_of_its_annotation(kind: Any, raw: bytes, value: Any) -> None:
    found = reader(of(kind))(b'{"x":%b}' % raw)["x"]
    assert found == value
    assert type(found) is type(value)


UNFIT: list[tuple[Any, bytes, str]] = [
    (int, b'"5"', "'x' must be int, got str"),
    (int, b"5.5", "'x' must be int, got float"),
    (int, b"true", "'x' must be int, got bool"),
    (int, b"null", "'x' must be int, got null"),
    (bool, b"1", "'x' must be bool, got int"),
    (str, b"5", "'x' must be str, got int"),
    (float, b'"5"', "'x' must be float, got str"),
    (datetime, b'"secret"', "'x' is not a valid RFC3339 datetime, such as 2026-11-18T02:30:00Z"),
    (datetime, b"5", "'x' must be datetime, got int"),
    (UUID, b'"secret"', "'x' is not a valid UUID"),
    (Color, b'"secret"', "'x' must be 'red'"),
    (Literal["a"], b'"secret"', "'x' must be 'a'"),
    (Literal["a", "b"] | None, b'"secret"', "'x' must be one of 'a', 'b'"),  # V15
    (int | None, b'"secret"', "'x' must be int | null, got str"),
    (list[int], b'[1,"secret"]', "'x[1]' must be int, got str"),
    (dict[str, Point], b'{"a":{"x":"secret"}}', "'x[...].x' must be int, got str"),
    (Point, b'{"y":1}', "'x' has no field 'x'"),
    (Small, b"10", "'x' must be int <= 9"),
    (Iterable[int], b"5", "'x' must be Iterable, got int"),
]


@pytest.mark.parametrize(("kind", "raw", "problem"), UNFIT, ids=lambda value: str(value)[:40])
def test_an_argument_that_does_not_fit_is_named_with_types_but_no_value(
    kind: Any, raw: bytes, problem: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        reader(of(kind))(b'{"x":%b}' % raw)
    assert str(refused.value) == f"work(): argument {problem}"
    assert refused.value.__cause__ is None  # a cause would be printed, with the value in it
    assert classify(refused.value) == "permanent"


def signup(to: str, age: int = 18, *, note: str | None = None) -> None: ...


WRONG_DATA: list[tuple[bytes, str]] = [
    (b"{}", "work() missing required argument: 'to'"),
    (b'{"to":"a","nane":1}', "work() got an unexpected argument: 'nane'; it takes to, age, note"),
    (b'"text"', "work(): the job's data must be an object of arguments (to, age, note), got"),
    (b'"text"', "got str"),
    (b"[1]", "got array"),
    (b"5", "got int"),
    (b"null", "got null"),
    (b"{", "work(): the job's data is not JSON"),
    (b"", "work(): the job's data is not JSON"),
    (b'\xff{"to":1}', "is not JSON"),
]


@pytest.mark.parametrize(("raw", "problem"), WRONG_DATA)
def test_data_that_do_not_fit_the_signature_are_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        reader(signup)(raw)
    assert problem in str(refused.value)


def test_only_what_the_job_has_is_passed_on() -> None:
    assert reader(signup)(b'{"to":"a"}') == {"to": "a"}
    assert reader(signup)(b'{"to":"a","note":null,"age":3}') == {"to": "a", "note": None, "age": 3}


def test_fields_that_nobody_takes_may_be_ignored() -> None:
    assert reader(signup, "ignore")(b'{"to":"a","more":1}') == {"to": "a"}


def test_a_task_without_parameters_takes_an_empty_object() -> None:
    def work() -> None: ...

    assert reader(work)(b"{}") == {}
    with pytest.raises(InvalidArguments, match="unexpected argument: 'a'; it takes no arguments"):
        reader(work)(b'{"a":1}')


def test_other_names_go_to_the_parameter_that_takes_them_all() -> None:
    def work(a: int, **others: Point) -> None: ...

    assert reader(work)(b'{"a":1,"b c":{"x":2}}') == {"a": 1, "b c": Point(2)}
    with pytest.raises(InvalidArguments, match=r"argument 'b\.x' must be int, got str"):
        reader(work)(b'{"a":1,"b":{"x":"secret"}}')
    with pytest.raises(InvalidArguments, match="missing required argument: 'a'"):
        reader(work)(b'{"b":{"x":2}}')


def test_parameters_without_annotation_get_the_json_value() -> None:
    def work(a, b=1): ...  # type: ignore[no-untyped-def]

    assert reader(work)(b'{"a":{"x":"2020-01-01"}}') == {"a": {"x": "2020-01-01"}}


def test_positional_only_parameters_are_passed_by_position() -> None:
    def work(a: int, b: int = 2, /, c: int = 3, **others: int) -> tuple[Any, ...]:
        return a, b, c, others

    call = by_keyword(work, Binder("work", work))
    assert call(**reader(work)(b'{"a":1,"c":5,"d":6}')) == (1, 2, 5, {"d": 6})
    assert call(**reader(work)(b'{"a":1,"b":5}')) == (1, 5, 3, {})


def test_a_lone_surrogate_of_node_is_read() -> None:
    def work(a: str, when: datetime, **others: Any) -> None: ...

    raw = b'{"a":"\\ud83d","when":"2020-01-01T00:00:00Z","b":1}'
    assert reader(work)(raw) == {"a": "\ud83d", "when": datetime(2020, 1, 1, tzinfo=UTC), "b": 1}


def test_an_annotation_that_cannot_be_resolved_is_explained() -> None:
    def work(x: Unknown) -> None: ...

    with pytest.raises(ConfigurationError) as refused:
        reader(work)
    message = str(refused.value)
    assert "task 'work'" in message
    assert __file__ in message
    assert "name 'Unknown' is not defined" in message
    assert "TYPE_CHECKING" in message


class Custom: ...


@pytest.mark.parametrize(
    "kind",
    [Custom, list[Custom], Custom | int, complex, set[int] | list[int], Callable[[int], int]],
    ids=str,
)
def test_a_type_that_json_has_no_form_for_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Parameter 'x' of task 'work' .* is annotated"):
        reader(of(kind))


def test_a_result_has_the_type_of_the_return_annotation() -> None:
    def point() -> Point: ...  # type: ignore[empty-body]
    def custom() -> Custom: ...  # type: ignore[empty-body]
    def unknown() -> Unknown: ...
    def bare(): ...  # type: ignore[no-untyped-def]
    def nothing() -> None: ...

    assert result_reader(point)(b'{"x":1}') == Point(1)
    assert result_reader(nothing)(b"null") is None
    for function in (custom, unknown, bare):
        assert result_reader(function)(b'{"x":1}') == {"x": 1}
    with pytest.raises(ValueError, match="'x' must be int, got str"):
        result_reader(point)(b'{"x":"secret"}')


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
points = st.builds(Point, st.integers(-(2**53) + 1, 2**53 - 1), st.integers(0, 9))
ROUND_TRIPS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**53) + 1, 2**53 - 1)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, texts),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=10)),
    (datetime, st.datetimes(timezones=st.just(UTC))),
    (datetime, st.datetimes()),
    (date, st.dates()),
    (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (set[int], st.sets(st.integers(0, 99), max_size=5)),
    (tuple[int, str], st.tuples(st.integers(0, 9), texts)),
    (list[Point], st.lists(points, max_size=3)),
    (dict[str, Point | None], st.dictionaries(texts, st.none() | points, max_size=3)),
    (Box, st.builds(Box, points, st.lists(texts, max_size=3))),
    (Pair, st.builds(Pair, st.integers(0, 9), texts)),
]


@pytest.mark.parametrize(("kind", "values"), ROUND_TRIPS, ids=[str(k) for k, _ in ROUND_TRIPS])
@settings(deadline=None)  # other programs may hold it up
@given(data=st.data())
def test_what_is_enqueued_is_what_is_run(
    kind: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    function = of(kind)
    value = data.draw(values)
    raw = payload.encode(Binder("work", function).bind((value,), {}), "data")
    assert payload.decode(raw).keys() == {"x"}
    assert reader(function)(raw) == {"x": value}

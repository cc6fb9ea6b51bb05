"""The contract of an app: JSON Schema that matches stored values, names, and breaking changes.

tests/interop/test_contract.py compiles and runs the TypeScript.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar
from uuid import UUID, uuid4

import attr
import jsonschema
import msgspec
import pydantic
import pytest

from taskbull import App, Dedup
from taskbull.app import contract
from taskbull.app.contract import contract_of, typescript
from taskbull.app.contract_changes import breaks_of
from taskbull.core import payload
from taskbull.errors import ConfigurationError, InvalidArguments
from taskbull.testing import recorded
from tests.interop.contract import bazaar
from tests.interop.test_contract import example


def app_with(*functions: Any, remote: bool = False, **options: Any) -> App:
    app = App("shop")
    for function in functions:
        (app.remote if remote else app.task)(**options)(function)
    return app


def validator(document: dict[str, Any], name: str) -> jsonschema.Draft202012Validator:
    schema = {"$ref": f"#/$defs/{name}", "$defs": document["$defs"]}
    return jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


# Values


def everything() -> bazaar.Everything:
    return bazaar.Everything(
        a_str="ü", an_int=0, a_float=-1.5e300, a_bool=False, nothing=None,
        a_datetime=datetime.fromisoformat("2026-01-02T03:04:05.678"), a_date=date(2026, 1, 2),
        a_time=time(3, 4, 5, 600), a_timedelta=timedelta(days=-1, microseconds=5),
        a_uuid=uuid4(), a_decimal=Decimal("-1E+20"), some_bytes=b"\xff", a_path=Path("a/b"),
        a_color=bazaar.Color.BLUE, a_size=bazaar.Size.LARGE, a_literal=None, a_union=None,
        a_list=[1], a_set={"a"}, a_tuple=(1, "a"), a_long_tuple=(), a_dict={"a": 1},
        by_number={-1: "a"}, by_color={bazaar.Color.RED: 1},
        a_tree=bazaar.Tree("a", [bazaar.Tree("b")]), a_point=bazaar.Point(1),
        an_address={"name": "Ann"}, a_pet=bazaar.Cat(), a_pair=bazaar.Pair(1, 2),
        a_list_pair=bazaar.Pair([1], []), a_text_pair=bazaar.Pair([], ["a"]),
        some_rights=bazaar.Rights(3), a_patch=bazaar.Patch("a", msgspec.UNSET),
        a_parcel=bazaar.Parcel(5), by_ratio={1.0: "a", -0.5: "b"},
        a_price=bazaar.Price(amount=Decimal(5), discounts=[bazaar.Price(amount=Decimal(1))]),
        some_money=bazaar.Money("5 EUR"), anything=[{"a": None}],
    )  # fmt: skip


def test_what_python_writes_matches_the_schema() -> None:
    document = contract_of(bazaar.app)
    jsonschema.Draft202012Validator.check_schema(document)
    value = payload.decode(payload.encode(payload.with_text_keys(everything(), "r"), "result"))
    validator(document, "EchoResult").validate(value)
    for name in value:  # All fields are always written.
        less = {k: v for k, v in value.items() if k != name}
        assert not validator(document, "EchoResult").is_valid(less)


def test_what_python_reads_matches_the_schema() -> None:
    document = contract_of(bazaar.app)
    data = {"everything": example()}
    validator(document, "EchoData").validate(data)
    bazaar.echo.check_data(json.dumps(data).encode())


class Built(bazaar.Parcel):
    def __post_init__(self) -> None:
        self.stamps = 3


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (bazaar.Cat | bazaar.Dog, bazaar.Dog()),
        (bazaar.Cat | bazaar.Dog, bazaar.Dog(False)),
        (bazaar.Cat | bazaar.Dog, bazaar.Cat(3)),
        (bazaar.Patch, bazaar.Patch()),
        (bazaar.Patch, bazaar.Patch(pages=msgspec.UNSET)),
        (bazaar.Patch, bazaar.Patch("a", 2)),
        (bazaar.Parcel, bazaar.Parcel(1)),
        (Built, Built(1)),
    ],
)
def test_optional_fields_are_written_or_not_as_the_schema_says(kind: Any, value: Any) -> None:
    document = contract_of(app_with(hinted(kind, result=True)))
    validator(document, "TaskResult").validate(payload.decode(payload.encode(value, "result")))


@pytest.mark.parametrize("value", [bazaar.Rights(0), bazaar.Rights.READ, bazaar.Rights(3)])
def test_flags_can_be_combined(value: bazaar.Rights) -> None:
    document = contract_of(app_with(hinted(dict[bazaar.Rights, bazaar.Rights])))
    raw = payload.encode(payload.with_text_keys({value: value}, "data"), "data")
    validator(document, "TaskData").validate({"a": payload.decode(raw)})
    assert "a: Record<number, Rights>;" in typescript(document)
    assert "export type Rights = number;" in typescript(document)


def test_a_parameter_that_only_direct_calls_pass_takes_null() -> None:
    def fetch(url: str, on_done: Callable[[], None] | None = None) -> None: ...

    app = app_with(fetch)
    check = validator(contract_of(app), "FetchData")
    for data, fits in (({}, True), ({"on_done": None}, True), ({"on_done": "a"}, False)):
        assert check.is_valid({"url": "a", **data}) is fits
        raw = json.dumps({"url": "a", **data}).encode()
        with contextlib.nullcontext() if fits else pytest.raises(InvalidArguments):
            app.tasks["fetch"].check_data(raw)


WRONG: dict[str, Any] = {
    "a_str": 5, "an_int": -1, "a_float": "1", "a_bool": 1, "nothing": 0, "a_datetime": "today",
    "a_date": "2026-1-2", "a_time": "3 pm", "a_timedelta": "1 day", "a_uuid": "1",
    "a_decimal": "one", "a_path": 5, "a_color": "green", "a_size": 3, "a_literal": "y",
    "a_union": [], "a_list": ["a"], "a_set": [1], "a_tuple": [1], "a_long_tuple": ["a"],
    "a_dict": {"a": "b"}, "by_number": {"a": "b"}, "by_color": {"green": 1}, "a_tree": {},
    "a_point": [], "an_address": {}, "a_pet": {"type": "fish"}, "a_pair": [1],
    "a_list_pair": [[1], ["a"]], "a_text_pair": [[1], []], "some_rights": "READ",
    "a_patch": {"title": None}, "a_parcel": {"grams": "5"}, "by_ratio": {"a": "b"},
    "a_price": {"amount": "1", "unknown": 1}, "some_money": 5,
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_the_schema_and_the_worker_refuse_the_same(field: str) -> None:
    data = {"everything": {**example(), field: WRONG[field]}}
    assert not validator(contract_of(bazaar.app), "EchoData").is_valid(data)
    if field != "some_money":  # Its class takes anything.
        with pytest.raises(Exception, match=field):
            bazaar.echo.check_data(json.dumps(data).encode())


def test_data_are_closed_unless_the_task_ignores_more() -> None:
    def strict(a: int) -> None: ...
    def tolerant(a: int) -> None: ...
    def open_ended(a: int, **more: str) -> None: ...

    app = app_with(strict, open_ended)
    app.task(extra="ignore")(tolerant)
    document = contract_of(app)
    assert not validator(document, "StrictData").is_valid({"a": 1, "b": 2})
    assert validator(document, "TolerantData").is_valid({"a": 1, "b": 2})
    assert validator(document, "OpenEndedData").is_valid({"a": 1, "b": "2"})
    assert not validator(document, "OpenEndedData").is_valid({"a": 1, "b": 2})


# Refusals


class Weird:
    pass


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    inner: Weird


class Plain:
    pass


class Schemed:
    pass


class Typed:
    pass


def test_a_type_without_a_json_form_is_refused() -> None:
    def returns() -> Weird: ...  # type: ignore[empty-body]
    def model(a: Loose) -> None: ...

    def takes(a: int, b: list[complex]) -> None: ...

    for function, message in (
        (takes, r"Parameter 'b' of task 'takes' .*annotated list\[complex\].*complex"),
        (returns, r"the result of task 'returns' .*Weird"),
        (model, r"parameter 'a' of task 'model' .*Loose.*pydantic has no schema"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            contract_of(app_with(function))


@attr.s
class Bare:
    weight = attr.ib()  # type: ignore[var-annotated]


@dataclasses.dataclass
class Dangling:
    other: "Missing"  # type: ignore[name-defined]  # noqa: F821, UP037 - the error of the test


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(Bare, "its field 'weight' has no annotation"), (list[Dangling], "'Missing' is not defined")],
)
def test_a_class_whose_fields_have_no_type_is_refused(kind: Any, problem: str) -> None:
    app = app_with(hinted(kind))
    with pytest.raises(ConfigurationError, match=rf"Parameter 'a' of task 'task' .*{problem}"):
        contract_of(app)
    with pytest.raises(ConfigurationError, match=problem):
        app.tasks["task"].reader()


@pytest.mark.parametrize("kind", [tuple[int, int], bool, None, list[str]])
def test_keys_that_json_cannot_hold_are_refused(kind: Any) -> None:
    def takes(a: Any) -> None: ...

    takes.__annotations__["a"] = dict[kind, int]
    with pytest.raises(ConfigurationError, match=r"parameter 'a' of task 'takes' .* keys"):
        contract_of(app_with(takes))


class Level(Enum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("kind", "key", "wrong", "code"),
    [
        (int, -3, "a", "Record<number, boolean>"),
        (float, 1.5, "a", "Record<string, boolean>"),
        (Level, Level.HIGH, "3", 'Partial<Record<"1" | "2", boolean>>'),
        (Literal[1, 2], 2, "3", 'Partial<Record<"1" | "2", boolean>>'),
        (UUID, uuid4(), "a", "Record<string, boolean>"),
        (Path, Path("a/b"), None, "Record<string, boolean>"),
        (str | None, "a", None, "Record<string, boolean>"),
    ],
)
def test_keys_are_stored_as_the_contract_says(kind: Any, key: Any, wrong: Any, code: str) -> None:
    def takes(a: Any) -> Any:
        return a

    takes.__annotations__.update({"a": dict[kind, bool], "return": dict[kind, bool]})
    app = app_with(takes)
    document = contract_of(app)
    assert f"a: {code};" in typescript(document)
    check = validator(document, "TakesData")
    assert wrong is None or not check.is_valid({"a": {wrong: True}})
    with recorded(app) as box:
        job = app.tasks["takes"].delay({key: True})
        check.validate(box.jobs[0].data)
        box.run()
        assert job.result() == {key: True}


@pytest.mark.parametrize(
    ("reduce", "kind"),
    [
        ("".join, {"type": "string"}),
        (b"".join, {"type": "string", "contentEncoding": "base64"}),
        (len, {"type": "integer"}),
        (list, {"type": "array", "items": {"type": "string"}}),
        (None, {"type": "null"}),
    ],
)
def test_the_result_of_a_stream_has_the_type_that_reduce_returns(reduce: Any, kind: Any) -> None:
    def tokens() -> Iterator[str]:
        yield "a"

    assert contract_of(app_with(tokens, reduce=reduce))["$defs"]["TokensResult"] == kind


def test_a_registered_type_needs_a_schema() -> None:
    app = App("shop")
    app.register_type(Plain, str, lambda _: Plain())
    app.register_type(Schemed, str, lambda _: Schemed(), schema={"type": "string", "maxLength": 3})
    app.register_type(Typed, vars, lambda _: Typed(), schema=dict[str, int])

    @app.task
    def good(a: Schemed, b: Typed) -> None: ...

    found = contract_of(app)["$defs"]["GoodData"]["properties"]
    assert found["a"] == {"type": "string", "maxLength": 3}
    assert found["b"] == {"type": "object", "additionalProperties": {"type": "integer"}}

    @app.task
    def bad(a: Plain) -> None: ...

    message = r"parameter 'a' of task 'bad' .*Plain is registered without a schema"
    with pytest.raises(ConfigurationError, match=message):
        contract_of(app)


def test_names_that_collide_are_refused() -> None:
    app = App("shop")
    for name in ("send_email", "sendEmail"):
        app.task(name=name)(lambda: None)
    with pytest.raises(ConfigurationError, match=r"Tasks 'sendEmail' and 'send_email' would both"):
        contract_of(app)
    with pytest.raises(ConfigurationError, match=r"'!' .* has no letters or digits"):
        contract_of(app_with(lambda: None, name="!"))

    def first() -> Any:
        @dataclasses.dataclass
        class Item:
            a: int

        return Item

    def second() -> Any:
        @dataclasses.dataclass
        class Item:
            b: int

        return Item

    def both(a: Any, b: Any) -> None: ...

    both.__annotations__ = {"a": first(), "b": second()}
    with pytest.raises(ConfigurationError, match="two different types named 'Item'"):
        contract_of(app_with(both))


def test_a_fixed_expiry_is_refused() -> None:
    app = app_with(lambda: None, name="a", expires=datetime(2100, 1, 1, tzinfo=UTC))
    with pytest.raises(ConfigurationError, match=r"Task 'a' .* expires at a fixed time"):
        contract_of(app)


# Names


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("send_email", "sendEmail"), ("emails.send-email", "emailsSendEmail"),
        ("SendEmail", "sendEmail"), ("HTTPFetch", "httpFetch"), ("1st", "_1st"),
        ("über_weg", "überWeg"), ("delete", "delete"), ("a b", "aB"), ("_private", "private"),
        ("a_b_c", "aBC"), ("e_mail", "eMail"), ("PDF", "pdf"), ("日本", "日本"), ("2_fa", "_2Fa"),
    ],
)  # fmt: skip
def test_a_task_has_an_identifier(name: str, key: str) -> None:
    document = contract_of(app_with(lambda: None, name=name))
    assert document["tasks"][name]["key"] == key


def test_classes_may_have_the_names_of_tasks_and_of_the_module() -> None:
    @dataclasses.dataclass
    class FetchResult:
        a: int

    @dataclasses.dataclass
    class Task:
        a: int

    def fetch(a: Any) -> Any: ...

    fetch.__annotations__ = {"a": Task, "return": FetchResult}
    document = contract_of(app_with(fetch))
    assert document["tasks"]["fetch"]["result"] == {"$ref": "#/$defs/FetchResult"}
    assert document["$defs"]["FetchResult"]["type"] == "object"
    assert set(document["$defs"]) == {"FetchData", "FetchResult", "TaskType"}


def test_names_of_the_module_are_reserved() -> None:
    text = Path(contract.__file__).with_name("contract.ts").read_text()
    code = re.sub(r"/\*.*?\*/|//[^\n]*|\"[^\"]*\"|`[^`]*`", "", text, flags=re.DOTALL)
    used = set(re.findall(r"(?<![\w.])[A-Z]\w*", code))
    assert used - {"Data", "Result", "Extra", "T"} <= contract._TAKEN


T = TypeVar("T")


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


def test_a_generic_class_has_an_interface_for_each_argument() -> None:
    def generic(  # noqa: PLR0917 - one for each kind of argument
        a: Page[list[int]],
        b: Page[list[str]],
        c: Page[int | None],
        d: Page[Optional[str]],  # noqa: UP045 - another spelling
        e: Page[dict[str, int]],
        f: Page[Page[int]],
        g: Page[Annotated[int, msgspec.Meta(ge=0)]],
        h: Page[Literal["a", "b"]],
        i: Page[Any],
    ) -> None: ...

    assert set(contract_of(app_with(generic))["$defs"]) == {
        "GenericData", "GenericResult", "PageListInt", "PageListStr", "PageIntOrNone",
        "PageStrOrNone", "PageDictStrInt", "PageInt", "PagePageInt", "PageAnnotatedInt",
        "PageLiteralAB", "PageAny",
    }  # fmt: skip


@dataclasses.dataclass
class Event:
    at: datetime


class Log(pydantic.BaseModel):
    color: bazaar.Color
    event: Event


def test_a_class_may_be_used_alone_and_in_a_model() -> None:
    def use(log: Log, color: bazaar.Color, event: Event) -> Event: ...  # type: ignore[empty-body]

    app = app_with(use)
    document = contract_of(app)
    # The model accepts other texts for a datetime.
    assert set(document["$defs"]) == {"UseData", "UseResult", "Color", "Event", "Log", "LogEvent"}
    data = {"log": {"color": "red", "event": {"at": "2026-01-02T03:04:05Z"}}, "color": "blue"}
    data["event"] = {"at": "2026-01-02T03:04:05"}
    validator(document, "UseData").validate(data)
    app.tasks["use"].check_data(json.dumps(data).encode())


def test_a_class_has_two_interfaces_only_if_it_needs_them() -> None:
    def same(a: bazaar.Address) -> bazaar.Address: ...  # type: ignore[empty-body]
    def other(a: bazaar.Tree) -> list[bazaar.Tree]: ...  # type: ignore[empty-body]

    assert {"Address", "Tree", "TreeOutput"} <= set(contract_of(app_with(same, other))["$defs"])
    assert "AddressOutput" not in contract_of(app_with(same, other))["$defs"]
    assert "Tree" in contract_of(app_with(other))["$defs"]


def test_keys_of_deduplication_are_computed_where_it_is_possible() -> None:
    def by(a: int, b: str = "x", c: float = 1.0) -> None: ...

    def key(dedup: Any) -> Any:
        return contract_of(app_with(by, dedup=dedup))["tasks"]["by"]["dedup"]["key"]

    assert key("{a}-{{}}{b}") == [{"name": "a"}, "-{", "}", {"name": "b", "default": "x"}]
    assert key(Dedup("all", ttl=5)) == ["all"]
    for dedup in ("{c}", "{a:03}", "{a!r}", "{b.x}", lambda **_: "x"):
        assert key(dedup) is None


def test_groups_are_computed_where_it_is_possible() -> None:
    def by(a: int, b: str | None = None, c: float = 1.0) -> None: ...

    def group(**options: Any) -> Any:
        return contract_of(app_with(by, **options))["tasks"]["by"].get("group")

    assert group() is None
    assert group(group_by="a") == {"id": {"name": "a"}, "cost": 1}
    assert group(group_by="b", cost="a")["id"] == {"name": "b", "default": None}
    assert group(group_by="b", cost="a")["cost"] == {"name": "a"}
    assert group(group_by="a", cost=3)["cost"] == 3
    assert group(group_by="c")["id"] is None
    assert group(group_by=lambda **_: "x")["id"] is None
    assert group(group_by="a", cost=lambda **_: 1)["cost"] is None


def test_comments_and_texts_are_escaped() -> None:
    def risky(a: Annotated[int, msgspec.Meta(description="a */ b")]) -> Literal['"', "\\"]: ...  # type: ignore[empty-body]

    text = typescript(contract_of(app_with(risky)))
    assert "/** a *\\/ b */" in text
    assert r'"\"" | "\\"' in text


# Breaking changes


class Point2(NamedTuple):
    x: int
    y: int


class Fields(TypedDict):
    a: int


@dataclasses.dataclass
class Settings:
    size: int = 1


def first(a: int, b: str = "") -> str: ...  # type: ignore[empty-body]


def changed(new: Callable[..., Any], old: Callable[..., Any] = first, **kind: Any) -> list[str]:
    """Return the breaks if a task changes from one function to another."""
    before, after = (contract_of(app_with(each, name="task", **kind)) for each in (old, new))
    return breaks_of(json.loads(json.dumps(before)), after)


def hinted(hint: Any, *, result: bool = False) -> Callable[..., Any]:
    def task(a: Any) -> Any: ...

    task.__annotations__ = {"return": hint} if result else {"a": hint}
    return task


def test_no_change_is_no_break() -> None:
    document = contract_of(bazaar.app)
    assert breaks_of(json.loads(json.dumps(document)), document) == []


def test_a_new_required_parameter_breaks_producers() -> None:
    def new(a: int, c: int, b: str = "") -> str: ...  # type: ignore[empty-body]
    def optional(a: int, b: str = "", c: int = 0) -> str: ...  # type: ignore[empty-body]
    def required(a: int, b: str) -> str: ...  # type: ignore[empty-body]
    def removed(a: int) -> str: ...  # type: ignore[empty-body]

    assert changed(new) == ["task: data.c is now required"]
    assert changed(optional) == []
    assert changed(required) == ["task: data.b is now required"]
    assert changed(removed) == ["task: data.b is no longer accepted"]


def test_a_remote_task_breaks_the_other_way_round() -> None:
    def new(a: int, c: int, b: str = "") -> str: ...  # type: ignore[empty-body]
    def missing(b: str = "") -> str: ...  # type: ignore[empty-body]
    def less(a: int) -> str: ...  # type: ignore[empty-body]
    def optional(a: int = 0, b: str = "") -> str: ...  # type: ignore[empty-body]
    def wider(a: int | None, b: str = "") -> str: ...  # type: ignore[empty-body]
    def narrow_result(a: int, b: str = "") -> Literal["x"]: ...  # type: ignore[empty-body]
    def wide_result(a: int, b: str = "") -> str | int: ...  # type: ignore[empty-body]

    assert changed(new, remote=True) == ["task: data.c is new, and was not allowed before"]
    assert changed(missing, remote=True) == ["task: data.a may now be missing"]
    assert changed(less, remote=True) == []
    assert changed(optional, remote=True) == ["task: data.a may now be missing"]
    assert changed(wider, remote=True) == ["task: data.a can now be null"]
    assert changed(narrow_result, remote=True) == ["task: result no longer accepts string"]
    assert changed(wide_result, remote=True) == []


NARROWER: list[tuple[Any, Any]] = [
    (int | None, int), (float, int), (Any, int), (str, datetime), (str, Literal["a"]),
    (Literal["a", "b"], Literal["a"]), (list[int | str], list[int]), (list[int], tuple[int, int]),
    (dict[str, int], dict[int, int]), (dict[str, Any], dict[str, int]),
    (str, bytes), (int, Annotated[int, msgspec.Meta(ge=0)]), (bazaar.Cat | bazaar.Dog, bazaar.Cat),
    (Annotated[int, msgspec.Meta(le=9)], Annotated[int, msgspec.Meta(le=5)]),
    (bazaar.Point, Point2), (list[int], Annotated[list[int], msgspec.Meta(min_length=1)]),
    (str, bazaar.Color),
    (Annotated[str, msgspec.Meta(max_length=9)], Annotated[str, msgspec.Meta(max_length=5)]),
    (Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(gt=0)]),
    (Annotated[float, msgspec.Meta(ge=0)], Annotated[float, msgspec.Meta(gt=0)]),
    (Annotated[float, msgspec.Meta(gt=0)], Annotated[float, msgspec.Meta(ge=1)]),
    (Annotated[float, msgspec.Meta(lt=9)], Annotated[float, msgspec.Meta(lt=9, gt=0)]),
    (Annotated[float, msgspec.Meta(lt=9)], Annotated[float, msgspec.Meta(le=8)]),
    (Annotated[int, msgspec.Meta(multiple_of=2)], Annotated[int, msgspec.Meta(multiple_of=4)]),
    (Annotated[int, msgspec.Meta(ge=0)], Literal[0, 5]), (float, Literal[1, 2]),
    (Annotated[str, msgspec.Meta(min_length=2)], Literal["ab"]),
    (Annotated[str, msgspec.Meta(pattern="^a")], Literal["ab", "ac"]),
    (str, Annotated[str, msgspec.Meta(pattern="^$")]),
    (datetime, Annotated[datetime, msgspec.Meta(tz=True)]),
    (datetime, Annotated[datetime, msgspec.Meta(tz=False)]),
    (time, Annotated[time, msgspec.Meta(tz=True)]), (dict[float, int], dict[int, int]),
    (dict[int, int], dict[Literal[1, 2], int]),
]  # fmt: skip


SAME: list[tuple[Any, Any]] = [
    (Annotated[int, msgspec.Meta(gt=0)], Annotated[int, msgspec.Meta(ge=1)]),
    (Annotated[int, msgspec.Meta(le=5)], Annotated[int, msgspec.Meta(lt=6)]),
    (list[int], set[int]), (bazaar.Color, Literal["blue", "red"]), (int | None, None | int),
    (str, Annotated[str, msgspec.Meta(min_length=0, pattern="")]),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_another_spelling_of_a_type_breaks_nobody(one: Any, other: Any) -> None:
    for before, after in ((one, other), (other, one)):
        assert changed(hinted(after), hinted(before)) == []
        assert changed(hinted(after, result=True), hinted(before, result=True)) == []


UNRELATED: list[tuple[Any, Any]] = [
    (str, int), (dict[str, int], Fields), (date, datetime), (int, str), (bool, int),
    (int | str | list[int], int | str | list[str]), (bazaar.Tree, bazaar.Price),
    (Literal[1], Literal[True]), (dict[str, str], Settings),
    (Literal["b"], Annotated[str, msgspec.Meta(pattern="^a")]),
]  # fmt: skip


@pytest.mark.parametrize(("wide", "narrow"), NARROWER + UNRELATED)
def test_a_narrower_type_breaks_who_writes_it(wide: Any, narrow: Any) -> None:
    assert changed(hinted(narrow), hinted(wide))
    assert changed(hinted(wide, result=True), hinted(narrow, result=True))
    if (wide, narrow) not in UNRELATED:
        assert changed(hinted(wide), hinted(narrow)) == []
        assert changed(hinted(narrow, result=True), hinted(wide, result=True)) == []


def test_breaks_inside_of_values_are_named() -> None:
    def tree(version: int) -> Any:
        kind = str if version == 2 else int
        made = msgspec.defstruct("Tree", [("a", kind), ("b", list[int] | None, None)])
        whole: Any = list[dict[str, made]]  # type: ignore[valid-type]
        return hinted(whole)

    assert changed(tree(2), tree(1)) == ["task: data.a[].*.a no longer accepts integer"]
    before, after = (
        hinted(list[kind], result=True)  # type: ignore[valid-type]
        for kind in (int, str)
    )
    assert changed(after, before) == ["task: result[] can now be string"]


def test_recursive_types_are_compared() -> None:
    assert changed(hinted(bazaar.Tree), hinted(bazaar.Tree)) == []
    assert changed(hinted(bazaar.Price), hinted(bazaar.Price)) == []
    assert changed(hinted(Person), hinted(Person)) == []
    assert changed(hinted(Person), hinted(dict[str, Person] | None)) != []


class Person(msgspec.Struct):
    name: str
    parent: Person | None = None
    children: list[Person] | dict[str, Person | None] = []


def test_removed_and_moved_tasks_break() -> None:
    old = contract_of(app_with(first, name="a", queue="q"))
    assert breaks_of(old, contract_of(App("shop"))) == ["a: the task was removed"]
    moved = contract_of(app_with(first, name="a", queue="r"))
    assert breaks_of(old, moved) == ["a: the queue changed from q to r"]
    remote = contract_of(app_with(first, name="a", queue="q", remote=True))
    assert breaks_of(old, remote) == ["a: the task is now remote"]
    assert breaks_of(remote, contract_of(App("shop"))) == []
    assert breaks_of(contract_of(App("shop")), remote) == []
    other = contract_of(App("shop", prefix="other"))
    assert breaks_of(contract_of(App("shop")), other) == ["prefix changed from 'bull' to 'other'"]

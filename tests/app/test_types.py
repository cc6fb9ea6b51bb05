"""Types of arguments and results beyond JSON: paths, integer keys, lazy strings, custom types."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict
from uuid import UUID

import pytest

from taskbull import App
from taskbull.errors import (
    ConfigurationError,
    InvalidArguments,
    SerializationError,
    UnannotatedWarning,
)
from taskbull.testing import recorded

ID = UUID(int=7)


class Money:
    """A type of the application's own."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


class Gift(Money):
    """A subclass, which is stored in the same way."""


class Color(Enum):
    RED = 1


def read_money(text: Any) -> Money:
    if not isinstance(text, str):
        raise ValueError("Money is stored as text")  # noqa: TRY004 - what decoders raise
    return Money(int(text))


@dataclass
class Upload:
    path: Path
    price: Money | None = None


@pytest.fixture
def app() -> App:
    app = App("types", redis="redis://localhost:1", attempts=1)
    app.register_type(Money, show_money, read_money)
    return app


def show_money(money: Money) -> str:
    return str(money.cents)


def through(app: App, annotation: Any, value: Any) -> tuple[Any, Any]:
    """Return what a task gets for `value`, and what its caller gets back."""
    got: list[Any] = []

    def work(given: Any) -> Any:
        got.append(given)
        return given

    work.__annotations__ = {"given": annotation, "return": annotation}
    task = app.task(work)
    with recorded(app) as box:
        job = task.delay(value)
        box.run()
        return got[0], job.result()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Path, Path("/tmp/a b.txt")),
        (PurePosixPath, PurePosixPath("a/../b")),
        (list[Path], [Path("a"), Path("b")]),
        (Path | None, None),
        (dict[int, str], {1: "a", -2: "b"}),
        (dict[int, dict[int, None]], {1: {2: None}}),
        (list[dict[int, int]], [{1: 2}]),
        (dict[int, Path], {1: Path("a")}),
        (dict[int, Money], {1: Money(3)}),
        (Money, Money(500)),
        (list[Money], [Money(1), Money(2)]),
        (Upload, Upload(Path("a"), Money(3))),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (frozenset[str], frozenset("ab")),
    ],
)
def test_a_value_arrives_as_its_annotation_says(app: App, annotation: Any, value: Any) -> None:
    got, back = through(app, annotation, value)
    assert got == back == value
    assert type(got) is type(back) is type(value)


@dataclass
class Parcel:
    größe: int  # noqa: PLC2401 - the subject of the test
    money: Money | None = None


class Options(TypedDict):
    größe: datetime  # noqa: PLC2401 - the subject of the test


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (Parcel, Parcel(5, Money(3)), {"größe": "5"}),
        (dict[str, list[Parcel]], {"a": [Parcel(5)]}, {"a": [{"größe": None}]}),
        (Options, Options(größe=datetime.fromisoformat("2026-01-02T03:04:05")), {"größe": 5}),
    ],
)
def test_fields_may_have_names_beyond_ascii(app: App, kind: Any, value: Any, wrong: Any) -> None:
    @app.task
    def task(value: Any) -> Any:
        return value

    task.function.__annotations__.update(value=kind, **{"return": kind})
    with recorded(app) as box:
        job = task.delay(value)
        box.run()
        assert job.result() == value
    with pytest.raises(InvalidArguments, match="größe"):
        task.delay(wrong)


def test_a_subclass_of_a_registered_type_is_stored_like_it(app: App) -> None:
    assert through(app, Money, Gift(4)) == (Money(4), Money(4))


@pytest.mark.parametrize(
    ("annotation", "value", "error", "told"),
    [
        (Path, 3, InvalidArguments, "given' must be Path"),
        (dict[int, str], {"a": "b"}, InvalidArguments, "given"),
        (dict[str, str], {1: "b"}, SerializationError, "keys must be strings"),
        (Money, 3, InvalidArguments, "Money is stored as text"),
        (dict[int, object], {1: object()}, SerializationError, "cannot be serialized"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    app: App, annotation: Any, value: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        through(app, annotation, value)


@pytest.mark.parametrize(
    ("cls", "encode", "decode", "told"),
    [
        (3, str, str, "be a class"),
        (Money, str, Money, "already registered"),
        (datetime, str, str, "already has a JSON form"),
        (Upload, str, str, "already has a JSON form"),
        (Color, str, str, "already has a JSON form"),
        (complex, None, complex, "encode must be a sync function"),
        (complex, str, 3, "decode must be a sync function"),
    ],
)
def test_a_wrong_registration_is_refused(
    app: App, cls: Any, encode: Any, decode: Any, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        app.register_type(cls, encode, decode)
    app.register_type(Money, show_money, read_money)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (datetime(2026, 1, 1), "'first' is a datetime, but the task gets a str.*first: datetime"),  # noqa: DTZ001
        (ID, "is a UUID"),
        (Decimal("1.10"), "is a Decimal"),
        (b"abc", "is a bytes"),
        ({1, 2}, "is a set, but the task gets a list"),
        (Path("a"), "first: Path"),
    ],
)
def test_a_value_that_loses_its_type_warns_once(app: App, value: Any, told: str) -> None:
    @app.task
    def work(first, second=None): ...  # type: ignore[no-untyped-def]

    with recorded(app):
        with pytest.warns(UnannotatedWarning, match=told) as caught:
            work.delay(value)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            work.delay(value)
            work.delay(first="text", second=value)


def test_values_that_keep_their_type_do_not_warn(app: App) -> None:
    @app.task
    def work(first, second: Any = None, *, third: Path | None = None): ...  # type: ignore[no-untyped-def]

    with recorded(app), warnings.catch_warnings():
        warnings.simplefilter("error")
        work.delay(1, ID, third=Path("a"))
        work.delay({"a": [1.5, None, "b", True]}, datetime.now())  # noqa: DTZ005


def test_a_lazy_string_of_django_is_text(app: App) -> None:
    lazy = pytest.importorskip("django.utils.functional").lazystr
    assert through(app, str, lazy("Hi")) == ("Hi", "Hi")
    assert through(App("other"), dict[int, str], {1: lazy("Hi")})[0] == {1: "Hi"}

"""Enqueueing refuses exactly the arguments that a worker would refuse."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from taskbull.app.app import App
from taskbull.core.wire.job import encode_data
from taskbull.errors import InvalidArguments, SerializationError
from taskbull.testing import recorded
from tests.app.conftest import written


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


@dataclass
class Point:
    x: int
    y: float = 0.0


class Item(BaseModel):
    sku: str
    count: int = 1


class Pair(NamedTuple):
    a: int
    b: str


class Row(TypedDict):
    id: int


class Record(msgspec.Struct):
    n: int


UserId = NewType("UserId", int)

WRONG: Any = "1"

ANNOTATIONS: list[Any] = [
    *(str, int, float, bool, None, bytes, datetime, date, time, timedelta, UUID, Decimal),
    *(list, dict, tuple, set, Any, object, Colour, Level, Point, Item, Pair, Row, Record, UserId),
    *(list[int], list[Any], dict[str, Any], dict[str, int], tuple[int, str], set[int], list[Point]),
    *(int | None, str | None, int | str, int | float, bool | str, str | list[str]),
    *(
        Literal["a", "b"],
        Annotated[int, msgspec.Meta(ge=1)],
        Annotated[str, msgspec.Meta(max_length=3)],
    ),
    *(list[Item], Item | None, Point | None, datetime | None),
]

VALUES: list[Any] = [
    *("5", "", "a", "red", "2020-01-01", "2020-01-01T00:00:00Z", "P1D", "1.5", "QUJD", Text("7")),
    *("12345678-1234-5678-1234-567812345678", 5, 0, 1, -1, True, False, None, 1.5, 1.0, b"abc"),
    *(
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime.fromisoformat("2020-01-01"),
        date(2020, 1, 1),
        time(1, 2),
    ),
    *(timedelta(1), UUID(int=1), Decimal("1.5"), Colour.RED, Level.LOW, Point(1), Point(WRONG)),
    *(
        Item(sku="a"),
        Pair(1, "b"),
        Pair(WRONG, WRONG),
        Record(1),
        Record(WRONG),
        {"id": 1},
        {"id": "1"},
    ),
    *({"x": 1}, {"x": "1"}, {"sku": "a"}, {"sku": 1}, {"n": 1}, {}, [], [1], ["1"], [1, "b"]),
    *(
        [{"x": 1}],
        [{"x": "a"}],
        [Item(sku="a")],
        {1},
        {"a"},
        (1, "b"),
        (1, 2),
        {"a": 1},
        {"a": "b"},
    ),
]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_what_is_refused_is_what_a_worker_would_refuse(annotation: Any) -> None:
    app = App("local", redis="redis://localhost:1")

    def work(value: Any) -> None: ...

    work.__annotations__["value"] = annotation
    task: Any = app.task(work)
    read = task.reader()
    for value in VALUES:
        try:
            read(encode_data({"value": value}))
        except InvalidArguments:
            with pytest.raises(InvalidArguments, match=r"^work\(\): argument 'value"):
                task.job(value)
        else:
            assert task.job(value).data == {"value": value}


def declare(app: App) -> Any:
    @app.task
    def work(n: int, names: list[str] | None = None, *, at: datetime | None = None) -> None: ...

    return work


def test_the_refusal_names_the_parameter_the_types_and_no_value(  # findings of first days
    app: App, admin: Any, prefix: str
) -> None:
    work = declare(app)
    with pytest.raises(TypeError) as refused:
        work.delay("s3cret")
    assert str(refused.value) == ("work(): argument 'n' must be int, got str")
    with pytest.raises(InvalidArguments, match=r"argument 'names\[1\]' must be str, got int"):
        work.delay(1, ["a", 2])
    with pytest.raises(InvalidArguments, match="argument 'at' is not a valid RFC3339"):
        work.options(delay=5).job(1, at="tomorrow")
    assert written(admin, prefix) == set()


async def test_async_code_and_recorded_jobs_are_checked_as_well(app: App) -> None:
    work = declare(app)
    with pytest.raises(InvalidArguments):
        await work.adelay("5")
    with recorded(app) as box:
        with pytest.raises(InvalidArguments):
            await work.adelay("5")
        await work.adelay(5)
    assert len(box.jobs) == 1


def test_what_json_cannot_hold_is_reported_as_before(app: App) -> None:
    with pytest.raises(SerializationError, match=r"data\.n is of type object"):
        declare(app).delay(object())


def test_what_is_large_is_left_to_the_worker(app: App) -> None:
    work = declare(app)
    assert work.job(1, list(range(2000))).data["n"] == 1
    with pytest.raises(InvalidArguments):
        work.job(1, list(range(20)))


def test_other_fields_are_checked_by_their_annotation(app: App) -> None:
    @app.task
    def work(n: int, /, **rest: int) -> None: ...

    assert work.job(1, a=2).data == {"n": 1, "a": 2}
    with pytest.raises(InvalidArguments, match="argument 'a' must be int, got str"):
        work.job(1, a="2")  # type: ignore[arg-type]


def test_annotations_that_this_process_cannot_name_are_left_to_the_worker(app: App) -> None:
    @app.task
    def work(n: Unknown, m: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    wrong: Any = "6"
    assert work.job("5", wrong).data == {"n": "5", "m": "6"}


def test_a_parameter_that_is_none_by_default_takes_none(app: App) -> None:
    @app.task
    def resize(path: str = None, sizes: list[int] = None) -> str:  # type: ignore[assignment] # noqa: RUF013
        return f"{path} {sizes}"

    with recorded(app) as box:
        resize.delay(path=None, sizes=None)  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="argument 'path'"):
            resize.delay(5)  # type: ignore[arg-type]
        box.run()

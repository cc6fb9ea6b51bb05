"""An app whose tasks use every kind of type and option that a contract can contain."""

from __future__ import annotations

import dataclasses
import os
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntFlag
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic

from taskbull import App, Backoff, Dedup, Keep

app = App(
    "bazaar",
    prefix=os.environ.get("BAZAAR_PREFIX", "bull"),
    hash_tag=True if os.environ.get("BAZAAR_TAGGED") else None,
)

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Rights(IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)


class Point(NamedTuple):
    x: float
    y: float = 0.0


class _Named(TypedDict):
    name: str


class Address(_Named, total=False):
    street: str


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog", rename="camel", omit_defaults=True):
    good_boy: bool = True


class Pair(msgspec.Struct, Generic[T], array_like=True):
    first: T
    second: T


class Patch(msgspec.Struct):
    title: str | msgspec.UnsetType = msgspec.UNSET
    pages: int | msgspec.UnsetType = 1


@dataclasses.dataclass
class Parcel:
    grams: int
    stamps: int = dataclasses.field(init=False, default=1)


class Price(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"
    discounts: list[Price] = []
    color: Color = Color.RED


class Money:
    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


app.register_type(Money, lambda money: money.text, Money, schema=str)


@dataclasses.dataclass
class Everything:
    """One value of every type."""

    a_str: str
    an_int: Annotated[int, msgspec.Meta(ge=0)]
    a_float: float
    a_bool: bool
    nothing: None
    a_datetime: datetime
    a_date: date
    a_time: time
    a_timedelta: timedelta
    a_uuid: UUID
    a_decimal: Decimal
    some_bytes: bytes
    a_path: Path
    a_color: Color
    a_size: Size
    a_literal: Literal["x", 1] | None
    a_union: int | str | None
    a_list: list[int]
    a_set: set[str]
    a_tuple: tuple[int, str]
    a_long_tuple: tuple[int, ...]
    a_dict: dict[str, int]
    by_number: dict[int, str]
    by_color: dict[Color, int]
    a_tree: Tree
    a_point: Point
    an_address: Address
    a_pet: Cat | Dog
    a_pair: Pair[int]
    a_list_pair: Pair[list[int]]
    a_text_pair: Pair[list[str]]
    some_rights: Rights
    a_patch: Patch
    a_parcel: Parcel
    by_ratio: dict[float, str]
    a_price: Price
    some_money: Money
    anything: Any


@app.task(queue="bazaar")
async def echo(everything: Everything) -> Everything:
    return everything


@app.task(queue="bazaar", name="bazaar.add-up")
def add_up(numbers: list[int], **named: int) -> int:
    """Add numbers up.

    Those with names count */ as well.
    """
    return sum(numbers) + sum(named.values())


@app.task(queue="bazaar")
async def ping() -> None:
    """Do nothing."""


@app.batch_task(size=2, queue="bazaar")
def embed(texts: list[str]) -> list[list[float] | Exception]:
    return [[float(len(text))] for text in texts]


@app.batch_task(size=2, queue="bazaar")
def grow(trees: list[Tree]) -> list[int]:
    return [len(tree.children) for tree in trees]


@app.task(
    queue="options",
    attempts=7,
    backoff=Backoff.exponential(2, max_delay=60, jitter=0.5),
    error_backoffs={ConnectionError: Backoff.fixed(5)},
    priority=3,
    timeout=30,
    expires=600,
    keep_completed=Keep(age=60, count=5),
    keep_failed=Keep.all(),
    dedup=Dedup("report-{user}-`${{x}}-{day}", ttl=60),
)
async def report(user: int, day: str = "today") -> str:
    return f"{user} {day}"


@app.task(queue="options", lifo=True, backoff=Backoff.linear(1), keep_completed=Keep.none())
async def plain(text: str) -> None: ...


@app.task(queue="options", dedup=lambda text: f"custom-{text}")
async def by_function(text: str) -> None: ...


@app.task(queue="options", group_by="tenant", cost="tokens")
async def complete(prompt: str, tenant: str | None = "none", tokens: int = 1) -> str: ...  # type: ignore[empty-body]


@app.task(queue="options", group_by=lambda text: text[:1])
async def by_letter(text: str) -> None: ...


@app.remote(queue="node")
def shout(text: str, times: int = 1) -> str: ...  # type: ignore[empty-body]


@app.remote(queue="node", attempts=2, backoff=Backoff.fixed(0.01))
async def fetch_tree(name: str, at: datetime) -> Tree: ...  # type: ignore[empty-body]


@app.remote(queue="node")
def outline(colors: list[Color]) -> dict[str, list[tuple[Color, int]]]: ...  # type: ignore[empty-body]


@app.remote(queue="node", name="say.nothing")
async def say_nothing() -> None: ...

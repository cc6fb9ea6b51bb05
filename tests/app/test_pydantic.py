"""Models of pydantic as arguments and results, where the user has it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from taskbull.app.signature import Binder, arguments_reader, result_reader
from taskbull.core import payload
from taskbull.core.validation import is_pydantic_model
from taskbull.errors import InvalidArguments, SerializationError


class Item(BaseModel):
    model_config = ConfigDict(strict=True)

    sku: str = Field(alias="SKU")
    price: Decimal
    added: datetime


class Order(BaseModel):
    id: int
    items: list[Item] = []

    @field_validator("id")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("an order counts from 1")
        return value


def work(order: Order, others: dict[str, Order] = {}, last: Order | None = None) -> Order: ...  # type: ignore[empty-body]  # noqa: B006


ITEM = Item(SKU="a", price=Decimal("1.50"), added=datetime(2020, 1, 1, tzinfo=UTC))
ORDER = Order(id=1, items=[ITEM])


def read(raw: bytes) -> dict[str, Any]:
    return arguments_reader("work", work, Binder("work", work), "error")(raw)


def test_a_model_is_known_by_its_name() -> None:
    assert is_pydantic_model(Order)
    assert not is_pydantic_model(dict)


def test_models_are_stored_as_plain_json_and_made_again() -> None:
    call = Binder("work", work).bind((ORDER,), {"others": {"a": ORDER}, "last": None})
    raw = payload.encode(call, "data")
    item = {"SKU": "a", "price": "1.50", "added": "2020-01-01T00:00:00Z"}
    order = {"id": 1, "items": [item]}
    assert payload.decode(raw) == {"order": order, "others": {"a": order}, "last": None}
    assert read(raw) == {"order": ORDER, "others": {"a": ORDER}, "last": None}


def test_a_result_may_be_a_model() -> None:
    assert result_reader(work)(payload.encode(ORDER, "result")) == ORDER


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            b'{"order":{"id":"secret"}}',
            "'order' is not a valid Order: id: Input should be a valid integer.*str",
        ),
        (b'{"order":{}}', "'order' is not a valid Order: id: Field required$"),
        (
            b'{"order":{"id":0}}',
            "'order' is not a valid Order: id: Value error, an order counts from 1",
        ),
        (
            b'{"order":"secret"}',
            r"'order' is not a valid Order: Input should be an object \(got str\)",
        ),
        (b'{"order":{"id":1,"items":[{},{}]}}', "items.0.SKU: Field required; .*; and 3 more"),
        (
            b'{"order":{"id":1},"others":{"a":{}}}',
            r"'others\[...\]' is not a valid Order: id: Field required",
        ),
    ],
)
def test_what_is_no_such_model_is_explained_without_its_value(raw: bytes, problem: str) -> None:
    with pytest.raises(InvalidArguments, match=problem) as refused:
        read(raw)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


class Measure(BaseModel):
    value: float


def test_a_model_with_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SerializationError, match="data"):
        payload.encode({"m": Measure(value=float("nan"))}, "data")

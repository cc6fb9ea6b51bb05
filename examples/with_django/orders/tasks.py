"""The tasks: plain functions, for Django's database is used from threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from bookshop.jobs import app
from django.db import close_old_connections

from orders.models import Order

P = ParamSpec("P")
R = TypeVar("R")


def with_database(function: Callable[P, R]) -> Callable[P, R]:
    """Do what Django does around a request: drop connections that are too old or broken."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return call


@app.task
@with_database
def confirm_order(number: int) -> str:
    """Confirm an order. Its number travels, not the object; and it may run twice."""
    order = Order.objects.get(pk=number)
    order.state = "confirmed"
    order.save(update_fields=["state"])
    return f"{order.book} is on its way"

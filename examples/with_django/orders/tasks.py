"""The tasks: sync functions, for Django's database is used from threads."""

from __future__ import annotations

from bookshop.jobs import app

from orders.models import Order


@app.task
def confirm_order(number: int) -> str:
    """Confirm an order. Its number travels, not the object; and it may run twice."""
    order = Order.objects.get(pk=number)
    order.state = "confirmed"
    order.save(update_fields=["state"])
    return f"{order.book} is on its way"

"""The tasks. They are sync functions, because Django's ORM is used in threads."""

from __future__ import annotations

from bookshop.jobs import app

from orders.models import Order


@app.task
def confirm_order(number: int) -> str:
    """Confirm an order. It takes the id, not the object, and it is safe to run twice."""
    order = Order.objects.get(pk=number)
    order.state = "confirmed"
    order.save(update_fields=["state"])
    return f"{order.book} is on its way"

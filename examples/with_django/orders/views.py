"""A view that adds a job when its transaction is committed, and one that shows the order."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from orders.models import Order
from orders.tasks import confirm_order


@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store an order, and enqueue its confirmation."""
    with transaction.atomic():
        order = Order.objects.create(book=request.POST["book"])
        # Sent when the transaction is committed. A rollback sends nothing.
        confirm_order.delay(order.pk)
    return JsonResponse({"number": order.pk}, status=202)


def show_order(_: HttpRequest, number: int) -> JsonResponse:
    """Return the order from the database."""
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"book": order.book, "state": order.state})

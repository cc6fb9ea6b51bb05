"""The addresses of the site."""

from __future__ import annotations

from django.urls import path
from orders import views

urlpatterns = [
    path("orders", views.place_order),
    path("orders/<int:number>", views.show_order),
]

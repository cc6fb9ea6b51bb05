"""The tables of the project."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and what tasks did with it."""

    state: models.CharField[str, str] = models.CharField(max_length=200, default="new")

"""The tables of the database."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order of one book."""

    book: models.CharField[str, str] = models.CharField(max_length=200)
    state: models.CharField[str, str] = models.CharField(max_length=20, default="placed")

"""The tables of the project."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first tables."""

    operations: ClassVar[list[object]] = [  # type: ignore[assignment]
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("state", models.CharField(max_length=200, default="new")),
            ],
        )
    ]

"""The taskbull app of the project."""

from __future__ import annotations

from django.conf import settings

from taskbull import App

app = App("shop", redis=settings.REDIS, prefix=settings.PREFIX, queue="jobs", attempts=1)

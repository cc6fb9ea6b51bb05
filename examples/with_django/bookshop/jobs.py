"""The app that all tasks of the project belong to. It needs only Django's settings."""

from __future__ import annotations

from django.conf import settings

from taskbull import App

app = App("bookshop", redis=settings.TASKBULL_REDIS_URL)

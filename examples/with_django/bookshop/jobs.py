"""The app that all tasks of the project belong to. It needs Django's settings, nothing else."""

from __future__ import annotations

import os

from django.conf import settings

from taskbull import App

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bookshop.settings")
app = App("bookshop", redis=settings.TASKBULL_REDIS_URL)
